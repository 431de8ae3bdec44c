package policy

import (
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// LeastWait chooses the worker on which the prompt is computed soonest. Its cost
// is the prompt tokens that wait there already and those that this request would
// add, which are the ones not in the worker's KV cache. Among the workers within
// a window of the least cost the one with the longest match is chosen; of equals
// the least loaded, then the one picked longest ago, then the first by position.
// The window is at most a part of the prompt: no match is worth a wait longer
// than what it saves.
//
// A fifth of what the worker was given to compute in the last half minute counts
// as waiting. On idle workers the one that has a beginning which many prompts
// share is always the cheapest by a little; without that term it is given every
// new conversation, and they evict each other from its cache while those of
// other workers stay empty.
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
	start  time.Time // of ticks
}

// Found with "make quality": they make caches fill evenly without breaking
// conversations up.
const (
	givenShare  = 0.2 // of the tokens that a worker was given lately, counted as waiting
	windowShare = 4   // the window is at most the prompt divided by this
)

// spread is the window of load on workers that generate too.
var spread = newWindow(16, 1.5)

var (
	_ Policy          = (*LeastWait)(nil)
	_ worker.Observer = (*LeastWait)(nil)
)

// NewLeastWait returns the policy for the role's workers.
func NewLeastWait(cfg Config) *LeastWait {
	p := &LeastWait{role: cfg.Role, window: cfg.TokenWindow, start: time.Now()}
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
	return &leastWaitChoice{
		indexed: indexed{plain: plain{r.Work}, l: p.look(r)},
		p:       p, now: tickAt(p.start, time.Now()), window: min(p.window, r.Work.Waiting/windowShare),
	}
}

type leastWaitChoice struct {
	indexed

	p      *LeastWait
	now    tick
	window int64
}

func (ch *leastWaitChoice) Choose(c *worker.Candidates) *worker.Worker {
	least := c.At(0).Demand()
	for i := 1; i < c.Len(); i++ {
		least = min(least, c.At(i).Demand())
	}
	soonest := c.At(0)
	cost := ch.cost(soonest, least)
	for i := 1; i < c.Len(); i++ {
		if n := ch.cost(c.At(i), least); n < cost {
			soonest, cost = c.At(i), n
		}
	}
	var best preference
	for i := range c.Len() {
		w := c.At(i)
		if ch.cost(w, least)-cost > ch.window {
			continue
		}
		match := ch.l.bytes(w)
		if ch.crowded(w, least) {
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

// crowded reports whether the worker generates for so many requests that a match
// does not count for it.
func (ch *leastWaitChoice) crowded(w *worker.Worker, least int64) bool {
	return ch.p.role == worker.Regular && !spread.inside(w.Demand(), least)
}

// cost returns the prompt tokens to be computed on the worker before the
// request's first token.
func (ch *leastWaitChoice) cost(w *worker.Worker, least int64) int64 {
	own := ch.work.Waiting
	if !ch.crowded(w, least) {
		own = ch.l.uncached(w, own)
	}
	cost := w.ChosenWork().Waiting + own
	if s := ch.p.seat(w); s != nil {
		cost += int64(givenShare * float64(s.given.at(ch.now)))
	}
	if ch.p.role == worker.Prefill {
		cost += w.Foreign() * ch.work.Waiting
	}
	return cost
}

// Keep implements [Choice]. What the worker has to compute counts as given,
// unless the prompt has no key: then it is not remembered either.
func (ch *leastWaitChoice) Keep(w *worker.Worker) func() {
	s := ch.p.seat(w)
	if s == nil || ch.l == nil {
		return nil
	}
	tokens := float32(ch.l.uncached(w, ch.work.Waiting))
	s.given.add(tokens, ch.now)
	undo := ch.indexed.Keep(w)
	return func() {
		now := tickAt(ch.p.start, time.Now())
		s.given.add(-left(tokens, ch.now, now), now)
		if undo != nil {
			undo()
		}
	}
}

type leastHeldChoice struct{ plain }

func (leastHeldChoice) Why(*worker.Worker) Why { return Why{Reason: "held"} }

func (ch leastHeldChoice) Choose(c *worker.Candidates) *worker.Worker {
	var best preference
	for i := range c.Len() {
		w := c.At(i)
		best.prefer(w, -(w.ChosenWork().Held + w.Foreign()*ch.work.Held))
	}
	return best.w
}
