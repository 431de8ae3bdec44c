package policy

import "github.com/baton-llm/baton/internal/worker"

// LeastWait chooses the worker on which the prompt is computed soonest. Its cost
// is the prompt tokens that wait there already and those that this request would
// add, which are the ones not in the worker's KV cache. Among the workers within
// a window of the least cost the one with the longest match is chosen; of equals
// the least loaded, then the one picked longest ago, then the first by position.
//
// Where tokens are generated too (role regular), a prompt that is computed soon
// is not all: a worker whose load is far above the least gets no more because of
// a match, or a beginning that all prompts share would draw all of them to the
// first worker that saw it. On decode the cost is the tokens held, and nothing is
// looked up. An engine's requests from elsewhere are taken to be like this one,
// on the roles where requests do just one thing.
//
// That waiting work and the request's own uncached tokens belong in one sum is
// from NVIDIA Dynamo's KV router: hit rate alone is the wrong target. The window,
// which keeps small differences of load from breaking affinity up, takes the
// place of its weights and temperature.
type LeastWait struct {
	*affinity // nil on decode

	role   worker.Role
	window int64
}

// spread is the window of load on workers that generate too.
var spread = newWindow(16, 1.5)

var (
	_ Policy          = (*LeastWait)(nil)
	_ worker.Observer = (*LeastWait)(nil)
)

// NewLeastWait returns the policy for the role's workers.
func NewLeastWait(cfg Config) *LeastWait {
	p := &LeastWait{role: cfg.Role, window: cfg.TokenWindow}
	if cfg.Role != worker.Decode {
		p.affinity = newAffinity(cfg)
	}
	return p
}

// Name implements [Policy].
func (*LeastWait) Name() string { return "least_wait" }

// WorkerAdded implements [worker.Observer].
func (p *LeastWait) WorkerAdded(w *worker.Worker) {
	if p.affinity != nil {
		p.affinity.WorkerAdded(w)
	}
}

// WorkerRemoved implements [worker.Observer].
func (p *LeastWait) WorkerRemoved(w *worker.Worker) {
	if p.affinity != nil {
		p.affinity.WorkerRemoved(w)
	}
}

// Prepare implements [Policy].
func (p *LeastWait) Prepare(r *Request, _ *worker.Snapshot) Choice {
	if p.affinity == nil {
		return leastHeldChoice{plain{r.Work}}
	}
	return &leastWaitChoice{indexed: indexed{plain: plain{r.Work}, l: p.look(r)}, p: p}
}

type leastWaitChoice struct {
	indexed

	p *LeastWait
}

func (ch *leastWaitChoice) Choose(c *worker.Candidates) *worker.Worker {
	soonest := c.At(0)
	cost, least := ch.cost(soonest), soonest.Demand()
	for i := 1; i < c.Len(); i++ {
		w := c.At(i)
		least = min(least, w.Demand())
		if n := ch.cost(w); n < cost {
			soonest, cost = w, n
		}
	}
	var best preference
	for i := range c.Len() {
		w := c.At(i)
		if ch.cost(w)-cost > ch.p.window {
			continue
		}
		match := ch.l.bytes(w)
		if ch.p.role == worker.Regular && !spread.inside(w.Demand(), least) {
			match = 0
		}
		best.prefer(w, match)
	}
	if best.w == nil { // load moves meanwhile
		best.w = soonest
	}
	ch.reason = "wait"
	if ch.l.bytes(best.w) > 0 {
		ch.reason = "prefix"
	}
	return best.w
}

// cost returns the prompt tokens to be computed on the worker before the
// request's first token.
func (ch *leastWaitChoice) cost(w *worker.Worker) int64 {
	cost := w.ChosenWork().Waiting + ch.l.uncached(w, ch.work.Waiting)
	if ch.p.role == worker.Prefill {
		cost += w.Foreign() * ch.work.Waiting
	}
	return cost
}

type leastHeldChoice struct{ plain }

func (leastHeldChoice) Reason() string { return "held" }

func (ch leastHeldChoice) Choose(c *worker.Candidates) *worker.Worker {
	var best preference
	for i := range c.Len() {
		w := c.At(i)
		best.prefer(w, -(w.ChosenWork().Held + w.Foreign()*ch.work.Held))
	}
	return best.w
}
