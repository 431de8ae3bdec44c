package dispatch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// pair is one attempt at a request by a prefill and a decode worker. Before it
// ends it starts or drops its hold and makes a leg of each lease.
type pair struct {
	pd.Pair

	dialect pd.Dialect
	spec    pd.Spec

	prefill    *worker.Lease
	prefillWhy policy.Why
	decode     *worker.Lease // with a concurrent dialect
	hold       *worker.Hold  // if the decode worker was chosen first
	decodeWhy  policy.Why
	undo       func() // takes back the affinity recorded for the prefill, may be nil
	undoDecode func() // the same for decode
}

// again is the failure of a pair that may be tried anew with other workers. It
// wraps what the client is told if it is not.
type again struct {
	err                         *Error
	exceptPrefill, exceptDecode *worker.Worker // nil: may be chosen again
}

func (a *again) Error() string { return a.err.Error() }
func (a *again) Unwrap() error { return a.err }

// pairs carries the request out by prefill and decode, with one more pair if
// the first fails before a byte was passed on. A NoneError means that nothing
// was done.
func (r *run) pairs() error {
	var exceptPrefill, exceptDecode []*worker.Worker
	var failed error
	for try := 1; ; try++ {
		p, err := r.pickPair(exceptPrefill, exceptDecode)
		if err != nil {
			if failed != nil {
				return failed
			}
			return err
		}
		if p.spec.Concurrent {
			err = r.concurrent(p)
		} else {
			err = r.sequential(p)
		}
		retry, ok := errors.AsType[*again](err)
		if !ok {
			return err
		}
		if p.spec.Concurrent {
			p.takeBack(retry)
		}
		if try == maxTries || r.ctx.Err() != nil {
			return retry.err
		}
		failed = retry.err
		if w := retry.exceptPrefill; w != nil {
			exceptPrefill = append(exceptPrefill, w)
			r.countRetry(worker.Prefill)
		}
		if w := retry.exceptDecode; w != nil {
			exceptDecode = append(exceptDecode, w)
			r.countRetry(worker.Decode)
		}
	}
}

// pickPair chooses the prefill worker, and the decode worker as far as the
// dialect wants it chosen now. Fleets of different dialects share the pools, so
// each dialect's way of taking decode is asked for in turn.
func (r *run) pickPair(exceptPrefill, exceptDecode []*worker.Worker) (*pair, error) {
	dialects := r.dialects()
	groups := 0
	var err error
	for _, group := range r.d.takes {
		if group.dialects&dialects == 0 {
			continue
		}
		var p *pair
		if p, err = r.pickPairAs(group.take, group.dialects&dialects, exceptPrefill, exceptDecode); err == nil {
			return p, nil
		}
		groups++
	}
	if groups != 1 {
		// Which role is missing shows when all dialects are asked for together.
		err = r.checkPair(dialects, exceptPrefill, exceptDecode)
	}
	return nil, err
}

// checkPair returns why no pair of the dialects can be had.
func (r *run) checkPair(dialects uint64, exceptPrefill, exceptDecode []*worker.Worker) error {
	if dialects != 0 {
		want := r.want()
		want.Dialects = dialects
		prefill, decode := want, want
		prefill.Except, decode.Except = exceptPrefill, exceptDecode
		_, err := worker.Pick(
			worker.Need{Pool: r.d.deps.Pools[worker.Prefill], Take: worker.Check, Want: prefill},
			worker.Need{Pool: r.d.deps.Pools[worker.Decode], Take: worker.Check, Want: decode},
		)
		if err != nil {
			return err
		}
	}
	return &worker.NoneError{Role: worker.Prefill}
}

func (r *run) pickPairAs(take worker.Take, dialects uint64, exceptPrefill, exceptDecode []*worker.Worker) (*pair, error) {
	pc, dc := r.choice(worker.Prefill), r.choice(worker.Decode)
	want := r.want()
	want.Dialects = dialects
	wantPrefill, wantDecode := want, want
	wantPrefill.Except, wantDecode.Except = exceptPrefill, exceptDecode
	grants, err := worker.Pick(
		worker.Need{Pool: r.d.deps.Pools[worker.Prefill], Take: worker.Acquire, Want: wantPrefill, Chooser: pc},
		worker.Need{Pool: r.d.deps.Pools[worker.Decode], Take: take, Want: wantDecode, Chooser: dc},
	)
	if err != nil {
		return nil, err
	}
	p := &pair{
		Pair:    pd.Pair{Request: r.call.Request, ID: r.legID(), Mint: mint(), Prefill: grants[0].Worker(), Decode: grants[1].Worker()},
		prefill: grants[0].Lease, prefillWhy: pc.Why(grants[0].Worker()),
		decode: grants[1].Lease, hold: grants[1].Hold,
	}
	p.dialect = r.d.deps.Dialects.Of(p.Prefill)
	p.spec = p.dialect.Spec()
	r.paired = true
	p.undo = pc.Keep(p.Prefill)
	if p.Decode != nil {
		p.decodeWhy = dc.Why(p.Decode)
		p.undoDecode = dc.Keep(p.Decode)
	}
	return p, nil
}

// takeBack takes back the affinity of the legs of a concurrent pair that failed.
func (p *pair) takeBack(failed *again) {
	if failed.exceptPrefill != nil {
		takeBack(p.undo)
	}
	if failed.exceptDecode != nil {
		takeBack(p.undoDecode)
	}
}

// takeBack calls what [policy.Choice.Keep] returned.
func takeBack(undo func()) {
	if undo != nil {
		undo()
	}
}

// mint returns 32 hex digits that have not been returned before.
func mint() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}

// takeGroup is a way to take the decode worker, and the dialects that want it.
type takeGroup struct {
	take     worker.Take
	dialects uint64
}

// takeGroups sorts the dialects by how they want the decode worker taken.
func takeGroups(dialects pd.Set) []takeGroup {
	bits := map[worker.Take]uint64{}
	for i, d := range dialects {
		spec := d.Spec()
		take := worker.Check
		switch {
		case spec.Concurrent:
			take = worker.Acquire
		case spec.PairFirst:
			take = worker.AcquireHold
		}
		bits[take] |= 1 << i
	}
	var groups []takeGroup
	for _, take := range []worker.Take{worker.Check, worker.AcquireHold, worker.Acquire} {
		if bits[take] != 0 {
			groups = append(groups, takeGroup{take, bits[take]})
		}
	}
	return groups
}

// sequential runs prefill to its end, then decode.
func (r *run) sequential(p *pair) error {
	if p.hold != nil {
		defer p.hold.Drop()
	}
	h, done, err := r.prefillLeg(p)
	if done || err != nil {
		takeBack(p.undo)
		return err
	}
	return r.decodeLegs(p, h)
}

// handoff is a hand-off and when its validity began.
type handoff struct {
	pd.Handoff

	at time.Time
	// successor is set if the worker's place was taken before the hand-off was
	// made: then it is not the worker's process that keeps it.
	successor bool
}

func (h *handoff) expired(spec *pd.Spec) bool {
	return spec.Validity > 0 && h.Params != nil && time.Since(h.at) >= spec.Validity
}

// lost reports whether the process that keeps the hand-off has been followed by
// another one. A hand-off without a validity is with decode already.
func (r *run) lost(p *pair, h *handoff) bool {
	return p.spec.Validity > 0 && h.Params != nil && !h.successor && r.replaced(p.Prefill)
}

func (r *run) replaced(prefill *worker.Worker) bool {
	return r.d.deps.Pools[worker.Prefill].Replaced(prefill)
}

// prefillLeg runs the prefill leg. done means that the client has its answer.
func (r *run) prefillLeg(p *pair) (h handoff, done bool, err error) {
	leg, err := p.dialect.Prefill(&p.Pair)
	l := r.newLeg(p.prefill, p.prefillWhy)
	defer l.close()
	l.obey(p.spec.Cancel)
	if err != nil {
		return h, false, err
	}
	if err := l.send(r.head(leg.Fields), leg.Body); err != nil {
		return h, false, r.prefillFailed(p, err)
	}
	h.at, h.successor = time.Now(), r.replaced(p.Prefill)
	switch status := l.answer.Status; {
	case status >= 500:
		return h, false, &again{err: r.prefillStatus(l.answer), exceptPrefill: p.Prefill}
	case status >= 300:
		// The client's own error, or something it has to act on.
		return h, true, r.relay(l)
	}
	// The hand-off exists. Even if the client leaves, it is read, so that it can
	// be given back.
	l.untie()
	body, err := readAnswer(l, r.d.cfg.MaxPrefillAnswer)
	if err != nil {
		return h, false, r.prefillFailed(p, err)
	}
	l.lease.Computed()
	l.close()
	r.learn(body)
	h.Handoff, err = p.dialect.Read(&p.Pair, body)
	if r.d.checkEngine(p.Prefill, h.Engine) {
		h.successor = true
	}
	return h, false, r.judgeHandoff(p, err)
}

// judgeHandoff says what the reading of a hand-off means, and counts it.
func (r *run) judgeHandoff(p *pair, err error) error {
	failed, isFailed := errors.AsType[*pd.FailedError](err)
	switch {
	case err == nil:
		r.d.handoffs(p.Prefill).produced.Add(1)
		return nil
	case errors.Is(err, pd.ErrNoHandoff) && r.d.cfg.AllowRecompute:
		r.d.counts.recomputed.Add(1)
		return nil
	case errors.Is(err, pd.ErrNoHandoff):
		return &again{exceptPrefill: p.Prefill, err: &Error{
			Status: http.StatusBadGateway, Code: "handoff_missing", Err: fmt.Errorf("%s: %w", p.Prefill.ID(), err),
			Message: "the prefill worker answered without kv_transfer_params: check that it was started with " +
				"--kv-transfer-config and the KV connector that --kv-connector names (--pd-allow-recompute lets decode compute the prompt instead)",
		}}
	case isFailed:
		return &again{exceptPrefill: p.Prefill, err: &Error{
			Status: http.StatusBadGateway, Code: "prefill_failed", Err: fmt.Errorf("%s: %w", p.Prefill.ID(), err),
			Message: "the prefill worker gave up: " + failed.Reason,
		}}
	default:
		return &again{exceptPrefill: p.Prefill, err: &Error{
			Status: http.StatusBadGateway, Code: "prefill_failed", Err: fmt.Errorf("%s: %w", p.Prefill.ID(), err),
			Message: "the prefill worker's answer could not be read",
		}}
	}
}

// prefillFailed is a prefill leg that broke off: another worker may do it,
// unless time ran out, which a second try would only double.
func (r *run) prefillFailed(p *pair, err error) error {
	e := r.legError(worker.Prefill, err)
	if e.Status == http.StatusGatewayTimeout {
		return e
	}
	return &again{err: e, exceptPrefill: p.Prefill}
}

// prefillStatus is a prefill answer of 5xx.
func (r *run) prefillStatus(a *exchange.Answer) *Error {
	e := &Error{
		Status: http.StatusBadGateway, Code: "prefill_failed", Sent: exchange.Maybe,
		Message: fmt.Sprintf("the prefill worker answered %d", a.Status),
	}
	if a.Status == http.StatusServiceUnavailable {
		e.Status, e.RetryAfter = a.Status, a.Fields.Get("Retry-After")
	}
	return e
}

// decodeLegs runs the decode leg, on another worker with the same hand-off if
// the first did not admit it and the dialect allows that.
func (r *run) decodeLegs(p *pair, h handoff) error {
	var except []*worker.Worker
	var failed error
	for try := 1; ; try++ {
		if r.ctx.Err() != nil {
			r.discard(p, h)
			return errClientGone
		}
		if err := r.void(p, &h); err != nil {
			return err
		}
		lease, why, err := r.pickDecode(p, except)
		if err != nil {
			if r.ctx.Err() != nil {
				r.discard(p, h)
				return errClientGone
			}
			r.abandon(p, h, noDecode)
			if failed != nil {
				return failed
			}
			return err
		}
		p.Decode = lease.Worker()
		if err := r.void(p, &h); err != nil {
			lease.Release()
			return err
		}
		err = r.decodeLeg(p, h, lease, why, try < maxTries)
		retry, ok := errors.AsType[*again](err)
		if !ok {
			return err
		}
		takeBack(p.undoDecode)
		failed, except = retry.err, append(except, p.Decode)
		if !p.spec.Again {
			// The pair is void: the next one needs a prefill of its own.
			r.abandon(p, h, notAdmitted)
			return retry
		}
		if try == maxTries {
			r.discardElsewhere(p, h, except)
			return failed
		}
		r.countRetry(worker.Decode)
		p.ID = r.legID()
	}
}

// void returns why the hand-off must not be used any more, nil if it may be, and
// abandons it. Prefill has to be done anew then.
func (r *run) void(p *pair, h *handoff) error {
	e, why := &Error{Status: http.StatusServiceUnavailable, RetryAfter: "1"}, expired
	switch {
	case h.expired(&p.spec):
		e.Code = "handoff_expired"
		e.Message = fmt.Sprintf("no decode worker took over within the %s for which the hand-off is valid (--handoff-max-age)", p.spec.Validity)
	case r.lost(p, h):
		why = lost
		e.Code = "handoff_lost"
		e.Message = "the prefill worker was restarted before a decode worker took over"
	default:
		return nil
	}
	r.abandon(p, *h, why)
	return &again{err: e}
}

// admissionDoubt is for how long it is uncertain that a decode worker has taken
// a request over which was cut off before its answer began. If it has not, the
// hand-off must still be given back; if it has, giving it back again does
// nothing. The head of a stream comes with its admission.
const admissionDoubt = time.Second

// decodeLeg sends the decode leg and relays its answer. An *again error means
// that the worker did not admit it.
func (r *run) decodeLeg(p *pair, h handoff, lease *worker.Lease, why policy.Why, more bool) error {
	leg, err := p.dialect.Decode(&p.Pair, h.Handoff)
	l := r.newLeg(lease, why)
	defer l.close()
	l.obey(p.spec.Cancel)
	if err != nil {
		return err
	}
	if err := l.send(r.head(leg.Fields), leg.Body); err != nil {
		e := r.legError(worker.Decode, err)
		switch {
		case exchange.Unsent(err):
			return &again{err: e, exceptDecode: p.Decode}
		case r.ctx.Err() != nil && (r.call.Request.Stream || time.Since(l.start) < admissionDoubt):
			l.close()
			r.discard(p, h)
		default:
			r.abandon(p, h, cutOff)
		}
		return e
	}
	switch status := l.answer.Status; {
	case status == http.StatusServiceUnavailable && more && r.otherDecode(p):
		return &again{exceptDecode: p.Decode, err: &Error{
			Status: status, Code: "decode_failed", RetryAfter: l.answer.Fields.Get("Retry-After"), Sent: exchange.Maybe,
			Message: "the decode worker answered 503",
		}}
	case status < 300:
		r.count(p, h).delivered.Add(1)
	default:
		// A worker that refuses a request tells prefill itself, if it got that far.
		r.abandon(p, h, refused)
	}
	return r.relay(l)
}

// otherDecode reports whether another decode worker could take over.
func (r *run) otherDecode(p *pair) bool {
	want := r.want()
	want.Pair, want.Except = p.Prefill, []*worker.Worker{p.Decode}
	_, err := worker.Pick(worker.Need{Pool: r.d.deps.Pools[worker.Decode], Take: worker.Check, Want: want})
	return p.spec.Again && err == nil
}

// pickDecode leases the decode worker: the one held, or else the best one now,
// for which it waits a little if there is none.
func (r *run) pickDecode(p *pair, except []*worker.Worker) (*worker.Lease, policy.Why, error) {
	if p.hold != nil {
		lease, err := p.hold.Start()
		if err != nil {
			return nil, policy.Why{}, &again{exceptDecode: p.Decode, err: &Error{
				Status: http.StatusServiceUnavailable, Code: "no_decode", RetryAfter: "1", Err: err,
				Message: "the decode worker left while prefill ran",
			}}
		}
		return lease, p.decodeWhy, nil
	}
	want := r.want()
	want.Pair, want.Except = p.Prefill, except
	choice := r.choice(worker.Decode)
	need := worker.Need{Pool: r.d.deps.Pools[worker.Decode], Take: worker.Acquire, Want: want, Chooser: choice}
	deadline := time.Now().Add(r.d.cfg.DecodeWait)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		grants, err := worker.Pick(need)
		if err == nil {
			w := grants[0].Worker()
			p.undoDecode = choice.Keep(w)
			return grants[0].Lease, choice.Why(w), nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			none, _ := errors.AsType[*worker.NoneError](err)
			return nil, policy.Why{}, r.noneError(none)
		}
		if !sleep(r.ctx, min(pause, left)) {
			return nil, policy.Why{}, errClientGone
		}
	}
}

// sleep waits for d and reports whether it did so without ctx ending.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// readAnswer reads the whole body, up to the limit.
func readAnswer(l *leg, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(l, limit+1))
	if err == nil && int64(len(body)) > limit {
		return nil, l.fail(fmt.Errorf("%w: over %d bytes", errAnswerTooLong, limit))
	}
	return body, err
}
