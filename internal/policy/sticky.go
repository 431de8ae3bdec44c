package policy

import (
	"sync/atomic"

	"github.com/baton-llm/baton/internal/worker"
)

// Sticky keeps a session on one worker. A new session goes to the worker that is
// home to the fewest sessions, of equals to the least loaded; it is chosen and
// counted in one step, under the pool's lock, so that a burst of new sessions
// spreads. It stays until it has been idle for a time, is finished, or its
// worker is no candidate: then it moves for good, since its KV cache is elsewhere
// from then on. A request without a session goes by load and is not remembered.
//
// The rule is that of the proposal vllm-project/router#235,
// sticky_least_loaded, with ties by load and a bound on the number of sessions.
type Sticky struct {
	sessions sessions
	homes    atomic.Pointer[[]*home] // by the worker's slot; stored under pool.mu
}

// home is a worker and the number of sessions it is home to.
type home struct {
	w     *worker.Worker
	count atomic.Int64
}

var (
	_ Policy          = (*Sticky)(nil)
	_ worker.Observer = (*Sticky)(nil)
)

// NewSticky returns the policy.
func NewSticky(cfg Config) *Sticky {
	p := &Sticky{sessions: newSessions(cfg.SessionTTL, cfg.MaxSessions)}
	p.homes.Store(new([]*home))
	return p
}

// Name implements [Policy].
func (*Sticky) Name() string { return "sticky" }

// WorkerAdded implements [worker.Observer].
func (p *Sticky) WorkerAdded(w *worker.Worker) {
	homes := replaced(*p.homes.Load(), w.Slot(), &home{w: w})
	p.homes.Store(&homes)
}

// WorkerRemoved implements [worker.Observer]. Sessions notice when they are next
// used.
func (p *Sticky) WorkerRemoved(w *worker.Worker) {
	homes := replaced(*p.homes.Load(), w.Slot(), nil)
	p.homes.Store(&homes)
}

// Finish forgets the sessions of that id, for all models. Finishing one that is
// not known does nothing.
func (p *Sticky) Finish(id string) { p.sessions.finish(id) }

// Sessions returns how many sessions are remembered, those without a home
// included.
func (p *Sticky) Sessions() int { return p.sessions.len() }

// HomeOf returns how many sessions the worker is home to.
func (p *Sticky) HomeOf(w *worker.Worker) int64 {
	if h := homeOf(*p.homes.Load(), w); h != nil {
		return h.count.Load()
	}
	return 0
}

func homeOf(homes []*home, w *worker.Worker) *home {
	if w.Slot() < len(homes) && homes[w.Slot()] != nil && homes[w.Slot()].w == w {
		return homes[w.Slot()]
	}
	return nil
}

// Prepare implements [Policy].
func (p *Sticky) Prepare(r *Request, _ *worker.Snapshot) Choice {
	s := r.sessionOf()
	if s.ID == "" {
		return leastLoadChoice{plain{r.Work}}
	}
	return &stickyChoice{plain: plain{r.Work}, p: p, s: p.sessions.use(r.Model, s.ID)}
}

type stickyChoice struct {
	plain

	p      *Sticky
	s      *session
	moved  *home  // the home that this choice gave the session, nil if it had one
	uses   uint64 // of the session, when this choice was made
	reason string
}

func (ch *stickyChoice) Why(*worker.Worker) Why { return Why{Reason: ch.reason} }

func (ch *stickyChoice) Choose(c *worker.Candidates) *worker.Worker {
	ch.moved, ch.uses = nil, ch.s.uses.Add(1)
	old := ch.s.home.Load()
	if old == forgotten {
		ch.reason = "load"
		return leastLoadChoice{}.Choose(c)
	}
	homes := *ch.p.homes.Load()
	var best preference
	for i := range c.Len() {
		w := c.At(i)
		if old != nil && w == old.w {
			ch.reason = "session"
			return w
		}
		if h := homeOf(homes, w); h != nil {
			best.prefer(w, -h.count.Load())
		}
	}
	if best.w == nil {
		ch.reason = "load"
		return leastLoadChoice{}.Choose(c)
	}
	h := homeOf(homes, best.w)
	h.count.Add(1)
	if !ch.s.home.CompareAndSwap(old, h) { // forgotten, or given up, just now
		h.count.Add(-1)
		ch.reason = "load"
		return best.w
	}
	ch.reason, ch.moved = "new_session", h
	if old != nil {
		old.count.Add(-1)
		ch.reason = "moved_session"
	}
	return best.w
}

// Keep implements [Choice]. The undo gives up the home that this choice found,
// unless the session was used again since.
func (ch *stickyChoice) Keep(*worker.Worker) func() {
	if ch.moved == nil {
		return nil
	}
	return func() {
		if ch.s.uses.Load() == ch.uses && ch.s.home.CompareAndSwap(ch.moved, nil) {
			ch.moved.count.Add(-1)
		}
	}
}
