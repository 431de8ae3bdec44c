package dispatch

import (
	"context"
	"io"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// count returns the counters that the pair's hand-off belongs to. A pair
// without a hand-off counts nowhere that is shown.
func (r *run) count(p *pair, h handoff) *handoffCounts {
	if h.Params == nil {
		return new(handoffCounts)
	}
	return r.d.handoffs(p.Prefill)
}

// abandon counts a hand-off that is left to its validity.
func (r *run) abandon(p *pair, h handoff) { r.count(p, h).abandoned.Add(1) }

// discard gives back a hand-off that will not be used, in the way of its
// dialect: by a leg to a decode worker, detached from the request, leased like
// any other, and bounded in time.
func (r *run) discard(p *pair, h handoff) { r.discardElsewhere(p, h, nil) }

func (r *run) discardElsewhere(p *pair, h handoff, except []*worker.Worker) {
	if h.Params == nil || h.expired(&p.spec) || r.lost(p, &h) {
		r.abandon(p, h)
		return
	}
	lease, reason := r.decodeForDiscard(p, except)
	if lease == nil {
		r.abandon(p, h)
		return
	}
	p.Decode, p.ID = lease.Worker(), r.legID()
	leg, read, err := p.dialect.Discard(&p.Pair, h.Handoff)
	l := r.newDetachedLeg(lease, reason)
	if err != nil {
		l.close()
		r.abandon(p, h)
		return
	}
	head := r.head(leg.Fields)
	r.d.background.Go(func() {
		defer l.close()
		timer := time.AfterFunc(r.d.cfg.DiscardTimeout, func() { l.cancel(context.DeadlineExceeded) })
		defer timer.Stop()
		err := l.send(head, leg.Body)
		if err == nil && read {
			_, err = io.Copy(io.Discard, l)
		}
		if err != nil || l.answer.Status >= 300 {
			r.abandon(p, h)
			return
		}
		r.count(p, h).discarded.Add(1)
	})
}

// decodeForDiscard leases the decode worker that takes a hand-off to throw it
// away: the one held, or any that is ready.
func (r *run) decodeForDiscard(p *pair, except []*worker.Worker) (*worker.Lease, string) {
	const reason = "discard"
	if p.hold != nil {
		if lease, err := p.hold.Start(); err == nil {
			return lease, reason
		}
		return nil, ""
	}
	want := r.want()
	want.Pair, want.Except = p.Prefill, except
	grants, err := worker.Pick(worker.Need{
		Pool: r.d.deps.Pools[worker.Decode], Take: worker.Acquire, Want: want, Chooser: r.choice(worker.Decode),
	})
	if err != nil {
		return nil, ""
	}
	return grants[0].Lease, reason
}
