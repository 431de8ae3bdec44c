package policy

import "github.com/baton-llm/baton/internal/worker"

// LeastLoad chooses the candidate with the fewest leases and holds, with the
// requests that others have put on the engine counted in; of equals
// the one whose last pick is longest ago, then the first by URL and rank.
//
// The tie-break is that of vllm-project/router#299 with the time since the last
// pick in place of the number of picks: a worker that was away, or is new,
// gets its share and not everything until a count has caught up.
type LeastLoad struct{}

var _ Policy = LeastLoad{}

// Name implements [Policy].
func (LeastLoad) Name() string { return "least_load" }

// Prepare implements [Policy].
func (LeastLoad) Prepare(r *Request, _ *worker.Snapshot) Choice {
	return leastLoadChoice{plain{r.Work}}
}

type leastLoadChoice struct{ plain }

func (leastLoadChoice) Why(*worker.Worker) Why { return Why{Reason: "load"} }

func (leastLoadChoice) Choose(c *worker.Candidates) *worker.Worker {
	best := c.At(0)
	load, turn := best.Demand(), best.Turn()
	for i := 1; i < c.Len(); i++ {
		w := c.At(i)
		if l := w.Demand(); l < load || l == load && w.Turn() < turn {
			best, load, turn = w, l, w.Turn()
		}
	}
	return best
}
