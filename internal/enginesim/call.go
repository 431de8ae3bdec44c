package enginesim

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// How an exchange can end before its time.
var (
	errGone     = errors.New("the client left")
	errClosed   = errors.New("the engine was closed")
	errAnswered = errors.New("a fault has answered")
)

// injection is the error of a fault that the generation itself acts on:
// error_event, abort or error_finish.
type injection string

func (i injection) Error() string { return "injected " + string(i) }

// call is one HTTP exchange. It belongs to the goroutine of its handler.
type call struct {
	e         *Engine
	w         http.ResponseWriter
	r         *http.Request
	rec       *Record // guarded by Engine.mu, written only through note
	faults    []*boundFault
	generates bool
	body      []byte
	parsed    object // of body, if bodyErr is nil; set by classify
	bodyErr   *apiError
	outcome   string          // if not to be told from the status
	sent      int             // events of a stream, or bytes of a plain body
	first     bool            // a byte of the body is out
	inject    injection       // for the generation to act on
	settle    func()          // gives back what the request holds; nil for nothing
	closed    bool            // the record is
	life      *life           // of the engine, when the exchange began
	aborts    <-chan struct{} // closed to end a generation; nil outside of one
	gz        *gzip.Writer
	gzOut     bytes.Buffer
}

// wait waits for ch, or for what ends the exchange.
func (c *call) wait(ch <-chan struct{}) error { return await(c, ch) }

func (c *call) sleep(d time.Duration) error {
	if d <= 0 {
		return c.alive()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	return await(c, t.C)
}

func await[T any](c *call, ch <-chan T) error {
	select {
	case <-ch:
		return nil
	case <-c.r.Context().Done():
		return errGone
	case <-c.aborts:
		return injection("abort")
	case <-c.life.over:
		return errDead
	case <-c.e.done:
		return errClosed
	}
}

// alive returns why the exchange cannot go on, if so.
func (c *call) alive() error {
	select {
	case <-c.r.Context().Done():
		return errGone
	case <-c.aborts:
		return injection("abort")
	case <-c.life.over:
		return errDead
	case <-c.e.done:
		return errClosed
	default:
		return nil
	}
}

// form tells whether a fault of that form action is bound.
func (c *call) form(action string) *Fault {
	for _, f := range c.faults {
		if f.form && f.Action == action {
			return &f.Fault
		}
	}
	return nil
}

// point lets the faults of a point act. next is what would be sent next.
func (c *call) point(at int, next []byte) error {
	for _, f := range c.faults {
		if f.fired || f.form || f.point != at {
			continue
		}
		f.fired = true
		if err := c.act(&f.Fault, at, next); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) act(f *Fault, at int, next []byte) error {
	switch f.Action {
	case "status":
		c.answerFault(f)
		return errAnswered
	case "raw":
		c.hijack(func(conn net.Conn) { _, _ = io.WriteString(conn, f.Body) })
	case "hang":
		// A server sees its client leave only once it has read the body.
		_, _ = io.Copy(io.Discard, c.r.Body)
		return c.wait(nil)
	case "gate":
		return c.late(at, c.e.waitGate(c, f.Gate))
	case "delay":
		return c.late(at, c.sleep(f.Delay))
	case "cut":
		c.half(f, next)
		c.down()
		panic(http.ErrAbortHandler)
	case "reset":
		c.half(f, next)
		c.hijack(func(conn net.Conn) {
			if t, ok := conn.(*net.TCPConn); ok {
				_ = t.SetLinger(0) // best effort: a close follows anyway
			}
		})
	default:
		if at > pointHeaders {
			return injection(f.Action)
		}
		c.inject = injection(f.Action)
	}
	return nil
}

// late lets a request that was accepted late go on although its client has left:
// a server finds that out only afterwards.
func (c *call) late(at int, err error) error {
	if at == pointAccept && errors.Is(err, errGone) {
		return nil
	}
	return err
}

// half sends half of what comes next if the fault is meant to cut it.
func (c *call) half(f *Fault, next []byte) {
	if f.MidEvent && len(next) > 0 {
		_ = c.push(next[:(len(next)+1)/2]) // the connection ends anyway
	}
	if c.rec.Status != 0 {
		c.flush()
	}
}

// hijack takes the connection, lets do use it, closes it and ends the handler.
func (c *call) hijack(do func(net.Conn)) {
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		do(conn)
	}
	c.down()
	if err == nil {
		_ = conn.Close()
	}
	panic(http.ErrAbortHandler)
}

// down ends the request before its connection ends, so that who sees the latter
// finds true figures.
func (c *call) down() {
	if c.settle != nil {
		c.settle()
	}
	c.e.closeRecord(c, false)
}

func (c *call) answerFault(f *Fault) {
	status := f.Status
	if status == 0 {
		status = http.StatusServiceUnavailable
	}
	body := []byte(f.Body)
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	if f.Body == "" {
		body = statusError(status).body()
	}
	for k, v := range f.Header {
		h.Set(k, v)
	}
	c.send(status, body)
}
