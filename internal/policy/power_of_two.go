package policy

import (
	"math/rand/v2"

	"github.com/baton-llm/baton/internal/worker"
)

// PowerOfTwo draws two candidates and chooses the one with less load; of equals
// the first drawn.
//
// It is vllm-project/router's policy of that name on load that is known: leases
// and holds, with what others have put on the engine counted in.
type PowerOfTwo struct{ draw func() uint64 }

var _ Policy = (*PowerOfTwo)(nil)

// NewPowerOfTwo returns a policy that draws from the given source, which must be
// safe for concurrent use; nil means math/rand/v2.
func NewPowerOfTwo(draw func() uint64) *PowerOfTwo {
	if draw == nil {
		draw = rand.Uint64
	}
	return &PowerOfTwo{draw: draw}
}

// Name implements [Policy].
func (*PowerOfTwo) Name() string { return "power_of_two" }

// Prepare implements [Policy].
func (p *PowerOfTwo) Prepare(r *Request, _ *worker.Snapshot) Choice {
	return powerOfTwoChoice{plain{r.Work}, p.draw()}
}

type powerOfTwoChoice struct {
	plain

	drawn uint64
}

func (powerOfTwoChoice) Why(*worker.Worker) Why { return Why{Reason: "load"} }

func (ch powerOfTwoChoice) Choose(c *worker.Candidates) *worker.Worker {
	n := uint64(c.Len())
	if n == 1 {
		return c.At(0)
	}
	high, low := ch.drawn>>32, ch.drawn&(1<<32-1)
	i := high % n
	j := (i + 1 + low%(n-1)) % n // any but i
	first, second := c.At(int(i)), c.At(int(j))
	if second.Demand() < first.Demand() {
		return second
	}
	return first
}
