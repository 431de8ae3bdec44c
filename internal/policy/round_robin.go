package policy

import "github.com/baton-llm/baton/internal/worker"

// RoundRobin chooses the candidate whose last pick is longest ago, whatever its
// load; of those never picked the first by URL and rank. Turns are those of the
// pool, so that requests with different candidates do not starve anybody.
type RoundRobin struct{}

var _ Policy = RoundRobin{}

// Name implements [Policy].
func (RoundRobin) Name() string { return "round_robin" }

// Prepare implements [Policy].
func (RoundRobin) Prepare(r *Request, _ *worker.Snapshot) Choice {
	return roundRobinChoice{plain{r.Work}}
}

type roundRobinChoice struct{ plain }

func (roundRobinChoice) Why(*worker.Worker) Why { return Why{Reason: "turn"} }

func (roundRobinChoice) Choose(c *worker.Candidates) *worker.Worker {
	best := c.At(0)
	for i := 1; i < c.Len(); i++ {
		if w := c.At(i); w.Turn() < best.Turn() {
			best = w
		}
	}
	return best
}
