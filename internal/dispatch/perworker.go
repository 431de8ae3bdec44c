package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/worker"
)

// perWorker is what the dispatcher keeps about one lifetime.
type perWorker struct {
	carrier  exchange.Carrier
	err      error // why there is no carrier
	handoffs handoffCounts
	legs     [NumLegEnds]atomic.Uint64
	engine   atomic.Pointer[string] // id of the process, from its first hand-off
}

// checkEngine compares the id of the process that handed over with that of the
// worker's first hand-off: a lifetime is one process. It reports whether they
// differ: then the hand-off is of the process that has taken the place.
func (d *Dispatcher) checkEngine(w *worker.Worker, engine string) (other bool) {
	v, ok := d.workers.Load(w)
	if engine == "" || !ok {
		return false
	}
	p := v.(*perWorker)
	if p.engine.CompareAndSwap(nil, &engine) || *p.engine.Load() == engine {
		return false
	}
	d.deps.Health.Restarted(w, "engine id")
	return true
}

// handoffCounts count the hand-offs of one prefill worker.
type handoffCounts struct {
	produced, delivered, discarded, abandoned atomic.Uint64
	abandonedFor                              [numAbandonments]atomic.Uint64
}

// counts are the dispatcher's figures that belong to no worker.
type counts struct {
	departed   handoffCounts // hand-offs of workers that left before they were counted
	recomputed atomic.Uint64 // decode legs that compute the prompt for want of a hand-off
	retries    [worker.NumRoles]atomic.Uint64
}

// WorkerAdded implements [worker.Observer].
func (d *Dispatcher) WorkerAdded(w *worker.Worker) {
	p := &perWorker{}
	p.carrier, p.err = d.deps.NewCarrier(w.ID().URL)
	d.workers.Store(w, p)
}

// WorkerRemoved implements [worker.Observer]. Exchanges that run go on; their
// connections close when they are idle.
func (d *Dispatcher) WorkerRemoved(w *worker.Worker) {
	v, ok := d.workers.LoadAndDelete(w)
	if !ok {
		return
	}
	if c, ok := v.(*perWorker).carrier.(interface{ CloseIdle() }); ok {
		c.CloseIdle()
	}
}

// carrier returns the worker's carrier. A worker that has departed has none.
func (d *Dispatcher) carrier(w *worker.Worker) (exchange.Carrier, error) {
	v, ok := d.workers.Load(w)
	if !ok {
		return nil, &exchange.Error{Sent: exchange.Nothing, Err: errDeparted}
	}
	p := v.(*perWorker)
	if p.err != nil {
		return nil, &exchange.Error{Sent: exchange.Nothing, Err: p.err}
	}
	return p.carrier, nil
}

// handoffs returns the counts to add a worker's hand-off to.
func (d *Dispatcher) handoffs(w *worker.Worker) *handoffCounts {
	if v, ok := d.workers.Load(w); ok {
		return &v.(*perWorker).handoffs
	}
	return &d.counts.departed
}

func sortedCounts(m map[string]int) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[name], name))
	}
	return out
}

func containsString(list []string, s string) bool { return slices.Contains(list, s) }

// Handoffs are the figures of one prefill worker.
type Handoffs struct{ Produced, Delivered, Discarded, Abandoned uint64 }

// Handoffs returns the figures of a prefill worker, zero once it has left.
func (d *Dispatcher) Handoffs(w *worker.Worker) Handoffs {
	v, ok := d.workers.Load(w)
	if !ok {
		return Handoffs{}
	}
	h := &v.(*perWorker).handoffs
	return Handoffs{h.produced.Load(), h.delivered.Load(), h.discarded.Load(), h.abandoned.Load()}
}

// Abandoned returns why hand-offs of a prefill worker were left to their
// validity, and how many for each reason; nil if none was.
func (d *Dispatcher) Abandoned(w *worker.Worker) map[string]uint64 {
	v, ok := d.workers.Load(w)
	if !ok {
		return nil
	}
	var found map[string]uint64
	for why := range numAbandonments {
		if n := v.(*perWorker).handoffs.abandonedFor[why].Load(); n > 0 {
			if found == nil {
				found = make(map[string]uint64, numAbandonments)
			}
			found[abandonments[why]] = n
		}
	}
	return found
}

// countLeg counts how a leg of the worker ended, unless the worker has left.
func (d *Dispatcher) countLeg(w *worker.Worker, end LegEnd) {
	if v, ok := d.workers.Load(w); ok {
		v.(*perWorker).legs[end].Add(1)
	}
}

// Legs returns how many legs of the worker ended in each way, zero once it has
// left.
func (d *Dispatcher) Legs(w *worker.Worker) (n [NumLegEnds]uint64) {
	if v, ok := d.workers.Load(w); ok {
		for end := range v.(*perWorker).legs {
			n[end] = v.(*perWorker).legs[end].Load()
		}
	}
	return n
}

// countRetry counts a leg of the role that is tried again elsewhere.
func (r *run) countRetry(role worker.Role) {
	r.retries++
	r.d.counts.retries[role].Add(1)
}

// Retries returns how many legs of the role were tried again elsewhere.
func (d *Dispatcher) Retries(role worker.Role) uint64 { return d.counts.retries[role].Load() }

// Recomputed returns how many decode legs computed the prompt for want of a
// hand-off.
func (d *Dispatcher) Recomputed() uint64 { return d.counts.recomputed.Load() }
