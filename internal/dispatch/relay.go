package dispatch

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
)

const relayBuffer = 32 << 10

var buffers = sync.Pool{New: func() any { return new([relayBuffer]byte) }}

// relay passes the leg's answer on as it comes, read by read. The leg is closed
// when the worker has sent its last byte, before that byte is passed on. The head
// of an answer in one piece goes with the first bytes of its body, so that one
// that breaks off before them is an error like any other.
func (r *run) relay(l *leg) error {
	if !l.answer.Fields.InOnePiece() {
		if err := r.begin(l.answer); err != nil {
			return err
		}
		return r.relayRest(l, nil, nil)
	}
	buf := buffers.Get().(*[relayBuffer]byte)
	defer buffers.Put(buf)
	n, err := l.Read(buf[:])
	if n == 0 && err != nil && err != io.EOF { //nolint:errorlint // leg.Read returns io.EOF itself
		return r.legError(l.lease.Worker().ID().Role, err)
	}
	if err := r.begin(l.answer); err != nil {
		return err
	}
	return r.relayRest(l, buf[:n], err)
}

// relayRest passes a body on whose head was sent. first is what a first read
// of it returned, with its error; it may be empty.
func (r *run) relayRest(l *leg, first []byte, err error) error {
	stream := l.answer.Fields.IsStream()
	buf := buffers.Get().(*[relayBuffer]byte)
	defer buffers.Put(buf)
	var end streamEnd
	for p := first; ; {
		if len(p) > 0 && stream {
			l.lease.Computed()
		}
		if err != nil {
			l.close()
		}
		if len(p) > 0 {
			if err := r.pass(p, &end); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF: //nolint:errorlint // leg.Read returns io.EOF itself
			return nil
		case err != nil:
			return r.broken(l, err, stream, end)
		}
		var n int
		n, err = l.Read(buf[:])
		p = buf[:n]
	}
}

// begin sends the head of the answer to the client, unless it has left: a
// connection of which only the client's half is closed would take it.
func (r *run) begin(a *exchange.Answer) error {
	if r.ctx.Err() != nil {
		return errClientGone
	}
	fields := a.Fields.EndToEnd().Set("X-Request-Id", r.call.ID)
	if fields.IsStream() && fields.Get("X-Accel-Buffering") == "" {
		// nginx, and what follows it, would hold the stream back.
		fields = fields.Set("X-Accel-Buffering", "no")
	}
	r.started = true
	if err := r.sink.Start(a.Status, fields); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// pass sends body bytes to the client.
func (r *run) pass(p []byte, end *streamEnd) error {
	r.firstByteSent()
	end.add(p)
	if err := r.sink.Write(p); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

func (r *run) firstByteSent() {
	if r.firstByte == 0 {
		r.firstByte = time.Since(r.start)
	}
}

// broken ends an answer whose body broke off: it must not look complete. A
// stream that is not encoded gets one well-formed error event first.
func (r *run) broken(l *leg, err error, stream bool, end streamEnd) error {
	role := l.lease.Worker().ID().Role
	e := r.legError(role, err)
	if e.Code != "first_byte_timeout" && e.Code != "idle_timeout" {
		e.Status, e.Code = http.StatusBadGateway, "stream_broken"
		e.Message = fmt.Sprintf("the %v worker broke off its answer", role)
	}
	if r.ctx.Err() == nil && stream && l.answer.Fields.Get("Content-Encoding") == "" {
		event := append(end.separator(), e.Object().Event(r.call.Request.Route)...)
		_ = r.sink.Write(event) // the connection is broken off next
	}
	r.sink.Abort()
	return e
}

// streamEnd keeps the last bytes of a stream: whether an event is open there.
type streamEnd struct {
	tail [4]byte
	any  bool
}

func (s *streamEnd) add(p []byte) {
	s.any = true
	if len(p) >= len(s.tail) {
		copy(s.tail[:], p[len(p)-len(s.tail):])
		return
	}
	copy(s.tail[:], s.tail[len(p):])
	copy(s.tail[len(s.tail)-len(p):], p)
}

// separator returns what ends an event that is open.
func (s *streamEnd) separator() []byte {
	if !s.any || bytes.HasSuffix(s.tail[:], []byte("\n\n")) || string(s.tail[:]) == "\r\n\r\n" {
		return nil
	}
	return []byte("\n\n")
}
