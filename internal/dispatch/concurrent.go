package dispatch

import (
	"errors"
	"fmt"
	"io"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/worker"
)

// concurrent runs both legs at once, each under its own lease. The client gets
// decode's answer, from the moment that either prefill has answered well or
// decode has sent a byte of its body: until then the first fatal error of
// either leg is the answer. A leg that failed ends the other one if the
// dialect's cancel rule allows; else the other one goes on by itself.
func (r *run) concurrent(p *pair) error {
	prefillLeg, err := p.dialect.Prefill(&p.Pair)
	if err != nil {
		p.prefill.Release()
		p.decode.Release()
		return err
	}
	decodeLeg, err := p.dialect.Decode(&p.Pair, pd.Handoff{})
	if err != nil {
		p.prefill.Release()
		p.decode.Release()
		return err
	}
	c := &both{r: r, p: p, prefillDone: make(chan prefillResult, 1), decoded: make(chan decodeEvent, 2)}
	c.prefill = r.newLeg(p.prefill, p.prefillWhy)
	c.decode = r.newLeg(p.decode, p.decodeWhy)
	// Both heads are made before either goroutine runs: the run is not theirs.
	prefillHead, decodeHead := r.head(prefillLeg.Fields), r.head(decodeLeg.Fields)
	c.prefill.obey(p.spec.Cancel)
	c.decode.obey(p.spec.Cancel)
	r.d.background.Go(func() { c.runPrefill(prefillHead, prefillLeg.Body) })
	r.d.background.Go(func() { c.runDecode(decodeHead, decodeLeg.Body) })
	return c.follow()
}

// both are the two legs of a concurrent pair. Each is used by its goroutine
// until that has sent its last result; then decode is follow's.
type both struct {
	r               *run
	p               *pair
	prefill, decode *leg
	prefillDone     chan prefillResult
	prefillOver     bool // the result has been taken
	decoded         chan decodeEvent
}

// prefillResult is how the prefill leg ended. answer is set if its body is to
// be passed on as the client's own error.
type prefillResult struct {
	err    error
	answer *exchange.Answer
	body   []byte
}

// decodeEvent is the decode leg's head, and then its first bytes.
type decodeEvent struct {
	head  bool
	first []byte
	err   error // io.EOF at the end of the body
}

func (c *both) runPrefill(head exchange.Head, body []byte) {
	// The lease ends with the connection, which close sees to, whatever the
	// result means.
	res := c.prefillResult(head, body)
	c.prefill.close()
	c.prefillDone <- res
}

func (c *both) prefillResult(head exchange.Head, body []byte) prefillResult {
	l, r := c.prefill, c.r
	if err := l.send(head, body); err != nil {
		return prefillResult{err: err}
	}
	answer, err := readAnswer(l, r.d.cfg.MaxPrefillAnswer)
	switch status := l.answer.Status; {
	case err != nil:
		return prefillResult{err: err}
	case status >= 500:
		return prefillResult{err: &again{err: r.prefillStatus(l.answer), exceptPrefill: c.p.Prefill}}
	case status >= 300:
		return prefillResult{answer: l.answer, body: answer}
	}
	if _, err := c.p.dialect.Read(&c.p.Pair, answer); err != nil && !errors.Is(err, pd.ErrNoHandoff) {
		return prefillResult{err: r.judgeHandoff(c.p, err)}
	}
	return prefillResult{}
}

func (c *both) runDecode(head exchange.Head, body []byte) {
	l := c.decode
	if err := l.send(head, body); err != nil {
		c.decoded <- decodeEvent{err: err}
		return
	}
	c.decoded <- decodeEvent{head: true}
	buf := make([]byte, relayBuffer)
	n, err := l.Read(buf)
	c.decoded <- decodeEvent{first: buf[:n], err: err}
}

// follow watches both legs until decode's answer may be passed on, and passes
// it on.
func (c *both) follow() error {
	r := c.r
	prefillDone := c.prefillDone
	head := false
	for {
		select {
		case res := <-prefillDone:
			prefillDone, c.prefillOver = nil, true
			if res.failed() {
				c.endDecode(head)
				return c.prefillFailure(res)
			}
			if head && !r.started && !c.decode.answer.Fields.InOnePiece() {
				if err := r.begin(c.decode.answer); err != nil {
					c.endDecode(true)
					return err
				}
			}
		case ev := <-c.decoded:
			switch {
			case ev.head && c.decode.answer.Status < 300:
				head = true
				if prefillDone != nil || c.decode.answer.Fields.InOnePiece() {
					continue
				}
				if err := r.begin(c.decode.answer); err != nil {
					c.endDecode(true)
					return err
				}
			case ev.head:
				// A refusal: the answer is decode's, and prefill has no use.
				c.endPrefill()
				ev = <-c.decoded
				return c.relay(ev)
			case ev.err != nil && ev.err != io.EOF && !r.started: //nolint:errorlint // leg.Read returns io.EOF itself
				c.endPrefill()
				c.decode.close()
				return c.decodeFailed(ev.err)
			default:
				return c.relay(ev)
			}
		case <-r.ctx.Done():
			c.endPrefill()
			c.endDecode(head)
			return errClientGone
		}
	}
}

func (res *prefillResult) failed() bool { return res.err != nil || res.answer != nil }

// prefillFailure says what a failed prefill leg means. It passes a refusal on.
func (c *both) prefillFailure(res prefillResult) error {
	if res.answer != nil {
		return c.r.passOn(res.answer, res.body)
	}
	if _, ok := errors.AsType[*again](res.err); ok {
		return res.err
	}
	return c.r.prefillFailed(c.p, res.err)
}

// decodeFailed is a decode leg that broke off before it sent anything.
func (c *both) decodeFailed(err error) error {
	e := c.r.legError(worker.Decode, err)
	if exchange.Unsent(err) {
		return &again{err: e, exceptDecode: c.p.Decode}
	}
	return e
}

// relay passes decode's answer on, its first bytes included. Prefill, should it
// still run, goes on under its own lease unless the client leaves.
func (c *both) relay(ev decodeEvent) error {
	defer c.decode.close()
	r := c.r
	if !r.started {
		if err := r.begin(c.decode.answer); err != nil {
			return err
		}
	}
	return r.relayRest(c.decode, ev.first, ev.err)
}

// reason is why a leg is ended that has not failed itself.
func (c *both) reason() error {
	if c.r.ctx.Err() != nil {
		return errClientGone
	}
	return errOtherLeg
}

// endPrefill ends the prefill leg, and waits until its connection is closed, if
// the dialect allows; else the leg goes on by itself.
func (c *both) endPrefill() {
	c.prefill.end(c.reason())
	if !c.prefill.alone.Load() && !c.prefillOver {
		<-c.prefillDone
	}
}

// endDecode does the same with the decode leg. head says whether its head has
// been seen.
func (c *both) endDecode(head bool) {
	c.decode.end(c.reason())
	finish := func() {
		defer c.decode.close()
		if !head {
			if ev := <-c.decoded; ev.err != nil {
				return
			}
		}
		<-c.decoded
	}
	if c.decode.alone.Load() {
		c.r.d.background.Go(finish)
		return
	}
	finish()
}

// passOn sends an answer that was read whole.
func (r *run) passOn(a *exchange.Answer, body []byte) error {
	if err := r.begin(a); err != nil {
		return err
	}
	r.firstByteSent()
	if err := r.sink.Write(body); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}
