package nethttp

import (
	"net/http"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
)

// Sink writes an answer to a net/http client. The handler that made it must
// call End last.
type Sink struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	until   time.Time // the write deadline that is set
	status  int
	bytes   int64
	aborted bool
}

var _ exchange.Sink = (*Sink)(nil)

// NewSink returns a sink for one answer. A client that does not take a write
// within the timeout counts as gone; 0 means no timeout.
func NewSink(w http.ResponseWriter, timeout time.Duration) *Sink {
	return &Sink{w: w, rc: http.NewResponseController(w), timeout: timeout}
}

// extend moves the write deadline now and then, not for each write.
func (s *Sink) extend() {
	if s.timeout == 0 {
		return
	}
	if now := time.Now(); s.until.Sub(now) < s.timeout {
		s.until = now.Add(s.timeout + s.timeout/4)
		_ = s.rc.SetWriteDeadline(s.until) // without deadlines there is none to keep
	}
}

// Start implements [exchange.Sink].
func (s *Sink) Start(status int, f exchange.Fields) error {
	h := s.w.Header()
	for _, field := range f {
		h[field.Name] = append(h[field.Name], field.Value)
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // not guessed from the body
	}
	s.status = status
	s.extend()
	s.w.WriteHeader(status)
	if f.InOnePiece() {
		return nil
	}
	return s.rc.Flush()
}

// Write implements [exchange.Sink].
func (s *Sink) Write(p []byte) error {
	s.extend()
	n, err := s.w.Write(p)
	s.bytes += int64(n)
	if err != nil {
		return err
	}
	return s.rc.Flush()
}

// Abort implements [exchange.Sink].
func (s *Sink) Abort() { s.aborted = true }

// Status returns the status sent, 0 if none was.
func (s *Sink) Status() int { return s.status }

// Bytes returns the number of body bytes written.
func (s *Sink) Bytes() int64 { return s.bytes }

// End breaks the connection off if the answer was aborted. It panics with
// http.ErrAbortHandler then, as net/http wants it. A write deadline is left for
// what net/http still has to send; it takes it away before the next request.
func (s *Sink) End() {
	if s.aborted {
		panic(http.ErrAbortHandler)
	}
}

// Head returns the head of a client's request.
func Head(r *http.Request) exchange.Head {
	return exchange.Head{Method: r.Method, Target: r.URL.RequestURI(), Fields: fields(r.Header)}
}
