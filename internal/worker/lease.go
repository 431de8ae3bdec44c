package worker

import (
	"errors"
	"runtime"
	"sync/atomic"
)

// ErrDeparted is returned when a hold is started on a worker that has left its
// pool. The choice has to be made anew.
var ErrDeparted = errors.New("worker departed")

// Lease states: bits of Lease.state.
const (
	computed = 1 << iota // the prompt phase is over
	released
)

// Lease is one unit of load on one worker, with the tokens it added. Its owner
// must call Release when the exchange it accounts for is over. A lease on a
// departed worker changes only that worker, never its successor.
type Lease struct {
	w     *Worker
	work  Work
	state atomic.Uint32
	leak  *atomic.Bool // set when released; nil unless leaks are watched for
}

// Worker returns the worker the lease is on.
func (l *Lease) Worker() *Worker { return l.w }

// Computed says that the prompt phase is over: the waiting tokens leave, the
// request and the held tokens stay. Further calls, and calls after Release, do
// nothing.
func (l *Lease) Computed() {
	if l.state.CompareAndSwap(0, computed) {
		l.w.load.waiting.Add(-l.work.Waiting)
	}
}

// Release takes back exactly what the lease added. Only the first call does
// anything; it may come from any goroutine.
func (l *Lease) Release() {
	old := l.state.Or(released)
	if old&released != 0 {
		return
	}
	rest := l.work
	if old&computed != 0 {
		rest.Waiting = 0
	}
	l.w.load.add(-1, rest)
	if l.leak != nil {
		l.leak.Store(true)
	}
}

// Hold is a worker chosen now that will be loaded later. It counts in choices
// and not in load. Its owner must call Start or Drop.
type Hold struct {
	pool *Pool
	w    *Worker
	work Work
	done atomic.Bool
}

// Worker returns the worker the hold is on.
func (h *Hold) Worker() *Worker { return h.w }

// Start turns the hold into a lease. If the worker has departed, the hold is
// dropped and the error is [ErrDeparted]. Only one of Start and Drop may
// succeed; Start after either returns ErrDeparted.
func (h *Hold) Start() (*Lease, error) {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	h.pool.reconcileLocked()
	if !h.done.CompareAndSwap(false, true) {
		return nil, ErrDeparted
	}
	h.w.holds.add(-1, h.work)
	if h.w.departed.Load() {
		return nil, ErrDeparted
	}
	return h.pool.leaseLocked(h.w, h.work), nil
}

// Drop gives the choice up. It does nothing after Start or Drop.
func (h *Hold) Drop() {
	if h.done.CompareAndSwap(false, true) {
		h.w.holds.add(-1, h.work)
	}
}

// leaseLocked takes a lease on w. It is called with pool.mu held, so that the
// next pick sees the load.
func (p *Pool) leaseLocked(w *Worker, work Work) *Lease {
	w.load.add(1, work)
	w.picked.Add(1)
	l := &Lease{w: w, work: work}
	if p.leaked != nil {
		p.watch(l)
	}
	return l
}

// watch reports the lease as leaked if it is collected before its release.
func (p *Pool) watch(l *Lease) {
	type record struct {
		id       ID
		released atomic.Bool
	}
	r := &record{id: l.w.id}
	l.leak = &r.released
	leaked := p.leaked
	runtime.AddCleanup(l, func(r *record) {
		if !r.released.Load() {
			leaked(r.id)
		}
	}, r)
}
