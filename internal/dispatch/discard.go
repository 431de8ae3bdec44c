package dispatch

import (
	"context"
	"io"
	"time"

	"github.com/baton-llm/baton/internal/policy"
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

// abandonment is why a hand-off is left to its validity.
type abandonment int

const (
	expired       abandonment = iota // too old to be used or given back
	lost                             // its process was replaced
	noDecode                         // no decode worker to use it or to give it back
	notAdmitted                      // the decode worker that it was made for did not admit it
	cutOff                           // the decode leg broke off: the worker may have it
	refused                          // the decode worker answered with an error
	discardFailed                    // giving it back went wrong
	numAbandonments
)

var abandonments = [numAbandonments]string{"expired", "lost", "no_decode", "not_admitted", "cut_off", "refused", "discard_failed"}

// abandon counts a hand-off that is left to its validity.
func (r *run) abandon(p *pair, h handoff, why abandonment) {
	c := r.count(p, h)
	c.abandoned.Add(1)
	c.abandonedFor[why].Add(1)
}

// discard gives back a hand-off that will not be used, in the way of its
// dialect: by a leg to a decode worker, detached from the request, leased like
// any other, and bounded in time.
func (r *run) discard(p *pair, h handoff) { r.discardElsewhere(p, h, nil) }

func (r *run) discardElsewhere(p *pair, h handoff, except []*worker.Worker) {
	if h.Params == nil {
		r.abandon(p, h, noDecode)
		return
	}
	if err := r.void(p, &h); err != nil {
		return
	}
	lease := r.decodeForDiscard(p, except)
	if lease == nil {
		r.abandon(p, h, noDecode)
		return
	}
	p.Decode, p.ID = lease.Worker(), r.legID()
	leg, read, err := p.dialect.Discard(&p.Pair, h.Handoff)
	l := r.newDetachedLeg(lease, policy.Why{Reason: "discard"})
	if err != nil {
		l.close()
		r.abandon(p, h, discardFailed)
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
			r.abandon(p, h, discardFailed)
			return
		}
		r.count(p, h).discarded.Add(1)
	})
}

// decodeForDiscard leases the decode worker that takes a hand-off to throw it
// away: the one held, or any that is ready.
func (r *run) decodeForDiscard(p *pair, except []*worker.Worker) *worker.Lease {
	if p.hold != nil {
		if lease, err := p.hold.Start(); err == nil {
			return lease
		}
		return nil
	}
	want := r.want()
	want.Pair, want.Except = p.Prefill, except
	grants, err := worker.Pick(worker.Need{
		Pool: r.d.deps.Pools[worker.Decode], Take: worker.Acquire, Want: want, Chooser: r.choice(worker.Decode),
	})
	if err != nil {
		return nil
	}
	return grants[0].Lease
}
