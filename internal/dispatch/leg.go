package dispatch

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// leg is one exchange with one worker, under the lease it owns. Its owner must
// call close, which ends the exchange, closes its connection unless the answer
// was read to its end, and then releases the lease. A leg is used from one
// goroutine; cancel may come from any.
type leg struct {
	r      *run
	lease  *worker.Lease
	ctx    context.Context //nolint:containedctx // the exchange's own
	cancel context.CancelCauseFunc
	stop   func() bool // ends the tie to the client
	timer  *time.Timer
	start  time.Time
	read   bool        // a byte of the body was read
	ended  bool        // the body was read to its end, or the exchange has failed
	broke  bool        // the exchange has failed
	alone  atomic.Bool // may not be cut off: it goes on by itself when its owner closes it
	tied   bool        // made for a client, and not begun once it has left
	closed bool
	answer *exchange.Answer
	record *Leg
}

// newLeg makes the leg of a lease that was granted, tied to the client: it ends
// when the client leaves. From here on the lease is released by close and by
// nothing else.
func (r *run) newLeg(lease *worker.Lease, why policy.Why) *leg {
	l := r.newDetachedLeg(lease, why)
	l.tied = true
	l.stop = context.AfterFunc(r.ctx, func() { l.cancel(errClientGone) })
	return l
}

// newDetachedLeg makes a leg that the client's departure does not end.
func (r *run) newDetachedLeg(lease *worker.Lease, why policy.Why) *leg {
	r.attempts++
	now, id := time.Now(), lease.Worker().ID()
	l := &leg{
		r: r, lease: lease, start: now,
		record: &Leg{
			Worker: id, Attempt: r.attempts, Policy: r.d.deps.Policies[id.Role].Name(), Why: why, Start: now.Sub(r.start),
		},
	}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(r.ctx))
	l.stop = func() bool { return true }
	r.mu.Lock()
	r.legs = append(r.legs, l.record)
	r.mu.Unlock()
	if b := r.d.deps.Breaker; b != nil {
		b.Begin(lease.Worker())
	}
	return l
}

// obey makes the leg follow the dialect's cancel rule: a leg that may not be
// cut off survives the client.
func (l *leg) obey(rule pd.Cancel) {
	if rule == pd.UntilHandoff || rule == pd.DecodeUntilHandoff && l.lease.Worker().ID().Role == worker.Decode {
		l.alone.Store(true)
		l.untie()
	}
}

// end ends the exchange for a reason outside of it, if it may be cut off. Its
// user sees the error and closes it.
func (l *leg) end(reason error) {
	if !l.alone.Load() {
		l.cancel(reason)
	}
}

// untie lets the leg go on when the client leaves.
func (l *leg) untie() { l.stop() }

// send sends the request and waits for the head of the answer.
func (l *leg) send(head exchange.Head, body []byte) error {
	if l.tied && l.r.ctx.Err() != nil {
		l.ended = true
		l.cancel(errClientGone)
		return l.note(errClientGone)
	}
	if d := l.r.d.cfg.FirstByteTimeout; d > 0 {
		l.timer = time.AfterFunc(d, func() { l.cancel(errFirstByte) })
	}
	w := l.lease.Worker()
	carrier, err := l.r.d.carrier(w)
	if err == nil {
		l.answer, err = carrier.Send(l.ctx, head, body)
	}
	if err != nil {
		l.ended, l.broke = true, true
		if exchange.Unsent(err) && !errors.Is(err, errDeparted) {
			l.r.d.deps.Health.ConnectFailed(w, err)
		}
		return l.note(err)
	}
	l.r.mu.Lock()
	l.record.Status = l.answer.Status
	l.r.mu.Unlock()
	return nil
}

// Read reads the answer's body. Only the time spent waiting for the worker
// counts as idle.
func (l *leg) Read(p []byte) (int, error) {
	if l.read && l.timer != nil {
		l.timer.Reset(l.r.d.cfg.IdleTimeout)
	}
	n, err := l.answer.Body.Read(p)
	if n > 0 || err != nil {
		if !l.read {
			l.firstByte()
		} else if l.timer != nil {
			l.timer.Stop()
		}
	}
	if err == nil {
		return n, nil
	}
	l.ended = true
	if err == io.EOF {
		return n, io.EOF
	}
	l.broke = true
	return n, l.note(err)
}

// firstByte ends the wait for the first byte; from then on the idle time counts.
// Of a decode leg it is the end of the hand-off too: whatever the cancel rule,
// the leg may be cut off from here on.
func (l *leg) firstByte() {
	l.read = true
	if l.alone.Load() && l.lease.Worker().ID().Role == worker.Decode {
		l.alone.Store(false)
		l.stop = context.AfterFunc(l.r.ctx, func() { l.cancel(errClientGone) })
	}
	l.r.mu.Lock()
	l.record.FirstByte = time.Since(l.start)
	l.r.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if d := l.r.d.cfg.IdleTimeout; d > 0 {
		l.timer = time.AfterFunc(d, func() { l.cancel(errIdle) })
		l.timer.Stop()
	}
}

// note keeps the error of the exchange, in terms of what ended it.
func (l *leg) note(err error) error {
	if cause := context.Cause(l.ctx); cause != nil {
		err = cause
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.record.Err = err
	return err
}

// fail ends the exchange for a reason of the router's own, which it returns.
func (l *leg) fail(err error) error {
	l.ended, l.broke = true, true
	l.cancel(err)
	return l.note(err)
}

// close ends the exchange and releases the lease. A leg that may not be cut off
// is read to its end first, by a goroutine of its own. Further calls do nothing.
func (l *leg) close() {
	if l.closed {
		return
	}
	l.closed = true
	if l.alone.Load() && !l.ended && l.answer != nil {
		// The request is over for this leg: what comes of it now is not its outcome.
		l.r.mu.Lock()
		last := *l.record
		l.r.mu.Unlock()
		l.record = &last
		l.r.d.background.Go(func() {
			_, _ = io.Copy(io.Discard, l) // its end is all that counts
			l.shut()
		})
		return
	}
	l.shut()
}

func (l *leg) shut() {
	cause := context.Cause(l.ctx)
	if l.timer != nil {
		l.timer.Stop()
	}
	l.stop()
	if l.answer != nil {
		// The context goes first: a body that is not at its end is then closed
		// with its connection, instead of being read to keep the connection.
		l.cancel(nil)
		_ = l.answer.Body.Close() // the exchange is over either way
	}
	l.cancel(nil)
	end, w := l.howItEnded(cause), l.lease.Worker()
	if b := l.r.d.deps.Breaker; b != nil {
		b.End(w, end.result())
	}
	l.r.d.countLeg(w, end)
	l.lease.Release()
	l.r.mu.Lock()
	l.record.Duration = time.Since(l.start)
	l.r.mu.Unlock()
}

// LegEnd is how a leg ended.
type LegEnd uint8

// The ends of legs.
const (
	LegOK      LegEnd = iota // answered to the end, with a status below 400
	LegRefused               // answered with 4xx: the client's own error
	LegFailed                // 5xx, or no answer
	LegBroken                // broke off after the first byte of the answer's body
	LegCutOff                // ended from outside: the client left, the other leg failed, or its head was all that was wanted
	NumLegEnds
)

// String returns the word of the end in metrics.
func (e LegEnd) String() string {
	return [...]string{"ok", "refused", "failed", "broken", "cut_off"}[e]
}

// howItEnded returns how the leg ended. cause is what cancelled it, if anything
// did before it was shut.
func (l *leg) howItEnded(cause error) LegEnd {
	switch {
	case errors.Is(cause, errClientGone), errors.Is(cause, errOtherLeg):
		return LegCutOff
	case l.broke && l.read:
		return LegBroken
	case l.broke, l.answer != nil && l.answer.Status >= 500:
		return LegFailed
	case l.answer == nil:
		return LegCutOff
	case l.answer.Status >= 400:
		return LegRefused
	case !l.ended:
		return LegCutOff
	default:
		return LegOK
	}
}

// result is what the end says of the worker. A leg that was cut off from outside
// says nothing.
func (e LegEnd) result() breaker.Result {
	switch e {
	case LegCutOff:
		return breaker.Unknown
	case LegFailed, LegBroken:
		return breaker.Bad
	default:
		return breaker.Good
	}
}

// head returns what is sent to a worker: the client's end-to-end fields, with
// those of the leg in their place.
func (r *run) head(extra exchange.Fields) exchange.Head {
	h := exchange.Head{Method: r.call.Head.Method, Target: r.call.Head.Target, Fields: r.call.Head.Fields.EndToEnd()}
	h.Fields = h.Fields.Del("Expect")
	if r.paired {
		// A rank is one worker's; the pair's own are in extra.
		h.Fields = h.Fields.Del("X-Data-Parallel-Rank")
	}
	for _, f := range extra {
		h.Fields = h.Fields.Set(f.Name, f.Value)
	}
	return h
}

// maxID is the longest request id a worker is given.
const maxID = 128

// legID is the request id of the next attempt: the client's, with a suffix on
// each attempt after the first, so that no worker sees one id twice.
func (r *run) legID() string {
	if r.attempts == 0 {
		return r.call.ID
	}
	suffix := "-r" + strconv.Itoa(r.attempts)
	return r.call.ID[:min(len(r.call.ID), maxID-len(suffix))] + suffix
}
