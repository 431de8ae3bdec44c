package policy

import (
	"math/rand/v2"

	"github.com/baton-llm/baton/internal/worker"
)

// Random chooses any candidate with equal chance, whatever its load.
type Random struct{ draw func() uint64 }

var _ Policy = (*Random)(nil)

// NewRandom returns a policy that draws from the given source, which must be
// safe for concurrent use; nil means math/rand/v2.
func NewRandom(draw func() uint64) *Random {
	if draw == nil {
		draw = rand.Uint64
	}
	return &Random{draw: draw}
}

// Name implements [Policy].
func (*Random) Name() string { return "random" }

// Prepare implements [Policy].
func (p *Random) Prepare(r *Request, _ *worker.Snapshot) Choice {
	return randomChoice{plain{r.Work}, p.draw()}
}

type randomChoice struct {
	plain
	drawn uint64
}

func (randomChoice) Why(*worker.Worker) Why { return Why{Reason: "random"} }

func (ch randomChoice) Choose(c *worker.Candidates) *worker.Worker {
	return c.At(int(ch.drawn % uint64(c.Len())))
}
