// Package exchange is the seam between the router's core and HTTP: what a
// client sent, where its answer goes, and how a worker is asked. The core knows
// only these types, so that the ends can be replaced. It does no I/O itself.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"strings"
)

// Field is one header field. Names are in the canonical form of net/textproto.
type Field struct{ Name, Value string }

// Fields are header fields in order; a name may occur more than once.
type Fields []Field

// Get returns the first value of a name given in canonical form, or "".
func (f Fields) Get(name string) string {
	for i := range f {
		if f[i].Name == name {
			return f[i].Value
		}
	}
	return ""
}

// Set replaces all values of a name by one, which comes last. The array is
// reused.
func (f Fields) Set(name, value string) Fields {
	f = f.Del(name)
	return append(f, Field{name, value})
}

// IsStream reports whether they are of a stream of server-sent events.
func (f Fields) IsStream() bool {
	return strings.HasPrefix(f.Get("Content-Type"), "text/event-stream")
}

// InOnePiece reports whether they are of an answer that is made before it is
// sent: its length is known. Nobody waits for the head of such an answer alone.
func (f Fields) InOnePiece() bool {
	return f.Get("Content-Length") != "" && !f.IsStream()
}

// Del removes all values of a name. The array is reused.
func (f Fields) Del(name string) Fields {
	kept := f[:0]
	for _, field := range f {
		if field.Name != name {
			kept = append(kept, field)
		}
	}
	return kept
}

// hopByHop are the fields of RFC 9110 section 7.6.1 and their relatives that
// concern one connection only.
var hopByHop = map[string]bool{
	"Connection":          true,
	"Keep-Alive":          true,
	"Proxy-Authenticate":  true,
	"Proxy-Authorization": true,
	"Proxy-Connection":    true,
	"Te":                  true,
	"Trailer":             true,
	"Transfer-Encoding":   true,
	"Upgrade":             true,
}

// EndToEnd returns a copy of the fields without the hop-by-hop ones, those that
// a Connection field names included.
func (f Fields) EndToEnd() Fields {
	var named map[string]bool
	for _, field := range f {
		if field.Name != "Connection" {
			continue
		}
		for name := range strings.SplitSeq(field.Value, ",") {
			if named == nil {
				named = make(map[string]bool)
			}
			named[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	kept := make(Fields, 0, len(f)+4)
	for _, field := range f {
		if !hopByHop[field.Name] && !named[field.Name] {
			kept = append(kept, field)
		}
	}
	return kept
}

// Head is a request without its body.
type Head struct {
	Method string
	Target string // path and query as received, such as /v1/models?x=1
	Fields Fields
}

// Sink takes one answer to a client. It is used from one goroutine.
type Sink interface {
	// Start sends status and fields at once, but for those of an answer in one
	// piece, which may go with the first bytes of its body. It is called at most
	// once, before Write.
	Start(status int, f Fields) error
	// Write sends body bytes at once. It does not keep p.
	Write(p []byte) error
	// Abort breaks the connection off when the answer ends, so that a body that
	// is not complete cannot look so.
	Abort()
}

// Carrier sends requests to one worker. It may be used from any goroutine.
type Carrier interface {
	// Send sends the request and waits for the head of the answer. Ending ctx ends
	// the exchange at any time, the reading of the answer's body included, and
	// closes its connection. body must not be changed until the answer's Body
	// has been closed. The error is an *Error, or ctx's.
	Send(ctx context.Context, h Head, body []byte) (*Answer, error)
}

// Answer is a worker's answer. Body must be closed; closing it before its end
// closes the connection.
type Answer struct {
	Status int
	Fields Fields
	Body   io.ReadCloser
}

// Sent says how much of a request may have reached the worker.
type Sent uint8

// How much was sent.
const (
	_       Sent = iota
	Nothing      // no connection was made: the worker cannot have seen it
	Stale        // a reused connection broke at once: the worker had closed it
	Maybe        // the worker may be working on it
)

// Error is a failed exchange with a worker.
type Error struct {
	Sent Sent
	Err  error
}

func (e *Error) Error() string {
	if e.Sent == Nothing {
		return fmt.Sprintf("connect: %v", e.Err)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Unsent reports whether err says that the worker cannot have seen the request.
func Unsent(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Sent == Nothing
}
