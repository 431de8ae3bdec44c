package enginesim

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// errDead ends what is under way when the engine dies.
var errDead = errors.New("the engine has died")

// life is the time from the start of an engine, or its revival, to its death.
// Guarded by Engine.mu.
type life struct {
	over  chan struct{} // closed when it ends
	next  chan struct{} // closed when the engine lives again
	halts int           // reasons to stand still
	moved chan struct{} // closed and replaced when the last of them is gone
}

func newLife() *life {
	return &life{over: make(chan struct{}), next: make(chan struct{}), moved: make(chan struct{})}
}

func (l *life) ended() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// die ends the engine as an exception in a step of its worker does: what is under
// way loses its connection, and nothing is answered or sent until Revive.
func (e *Engine) die() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dieLocked(nil)
}

// dieLocked leaves connections with a request to their handlers, so that who sees one
// end finds true figures, and spares one.
func (e *Engine) dieLocked(except net.Conn) {
	if e.dead {
		return
	}
	e.dead = true
	close(e.life.over)
	e.conn.lostLocked()
	for c, state := range e.conns {
		switch {
		case c == except:
		case state == http.StateActive:
			_ = c.SetReadDeadline(time.Unix(1, 0)) // for one that reads its request
		default:
			_ = c.Close() // whoever reads it finds out
		}
	}
}

// Revive lets an engine that has died, or that stands still, go on: what was under
// way has lost its connection, and all hand-offs are gone. Its figures and its
// prefix cache go on; for a restart that shows in them, Close the engine and make a
// new one at the same address.
func (e *Engine) Revive() { e.revive(nil) }

// revive spares the connection that asks for it.
func (e *Engine) revive(except net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dieLocked(except)
	old := e.life
	e.life, e.dead, e.thaw = newLife(), false, nil
	close(old.next)
	e.dispatchLocked()
}

// alive returns the present life and whether it goes on.
func (e *Engine) alive() (l *life, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life, !e.dead
}

// halt makes all requests of the engine stand still until each such call's
// function was called.
func (e *Engine) halt(l *life) (resume func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.haltLocked(l)
}

func (e *Engine) haltLocked(l *life) (resume func()) {
	l.halts++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		l.halts--
		if l.halts == 0 {
			close(l.moved)
			l.moved = make(chan struct{})
			e.dispatchLocked()
		}
	}
}

// standing returns a channel that ends with the present standstill, nil for none.
func (e *Engine) standing(l *life) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.halts == 0 {
		return nil
	}
	return l.moved
}

// moving waits while the engine stands still.
func (c *call) moving() error {
	for {
		ch := c.e.standing(c.life)
		if ch == nil {
			return c.alive()
		}
		if err := c.wait(ch); err != nil {
			return err
		}
	}
}

// persist waits for ch even if the client leaves, which only ends the record: for
// what the engine does in a step, where it hears of no departure.
func (c *call) persist(ch <-chan struct{}) error {
	left := c.r.Context().Done()
	for {
		select {
		case <-ch:
			return nil
		case <-left:
			c.part()
			left = nil
		case <-c.life.over:
			return errDead
		case <-c.e.done:
			return errClosed
		}
	}
}

// linger keeps what a request holds although its client has left, while the engine
// stands still: it hears of the departure in its next step.
func (c *call) linger() {
	for ch := c.e.standing(c.life); ch != nil; ch = c.e.standing(c.life) {
		if c.persist(ch) != nil {
			return
		}
	}
}

// lasting is a context for what outlives the client: it ends with the engine's
// life, and after timeout if there is one.
func (c *call) lasting(timeout time.Duration) (context.Context, context.CancelFunc) {
	return endingWith(context.WithoutCancel(c.r.Context()), timeout, c.e.done, c.life.over)
}

// within is a context that ends with the exchange, and after timeout.
func (c *call) within(timeout time.Duration) (context.Context, context.CancelFunc) {
	return endingWith(c.r.Context(), timeout, c.e.done, c.life.over, c.aborts)
}

func endingWith(ctx context.Context, timeout time.Duration, ends ...<-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var stops []func() bool
	for _, ch := range ends {
		if ch != nil {
			stops = append(stops, context.AfterFunc(closedContext{ch}, cancel))
		}
	}
	if timeout > 0 {
		stops = append(stops, time.AfterFunc(timeout, cancel).Stop)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// part ends the record of an exchange whose client has left, although the engine
// does not know yet.
func (c *call) part() {
	c.outcome = OutcomeAbort
	c.e.closeRecord(c, true)
}

// connKey is the key of a request's net.Conn.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

func connOf(ctx context.Context) net.Conn {
	c, _ := ctx.Value(connKey{}).(net.Conn)
	return c
}
