package policy

import (
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/worker"
)

// Source is where a policy learns of a request what it needs to know. Each
// method may be costly and is called only by policies that use it.
type Source interface {
	// KeyRoot returns what requests must have in common to share a prefix.
	KeyRoot() []string
	// WriteKey writes the routing key, nothing if the request has none.
	WriteKey(w openai.KeyWriter)
	// Session returns the session the request belongs to, if it names one.
	Session() openai.Session
	// Placement returns the text to hash in place of a session, "" if none.
	Placement() string
}

// Request is what a policy may know of the request it chooses for. It serves all
// picks of one client request, in any role, and belongs to that request's
// goroutine. What has been computed for one pick is kept for the next.
type Request struct {
	Work          worker.Work // what it adds to the worker chosen, if nothing is cached there
	Model         string
	BytesPerToken float64 // as learned of the model; 0: unknown
	Source        Source  // nil: nothing to route by but load

	session   openai.Session
	hasAsked  bool // session is set
	placement string
	hasPlaced bool
	lookups   []*lookup // one for each index asked
}

// bytesPerToken is the ratio assumed where none has been learned.
const bytesPerToken = 4

func (r *Request) ratio() float64 {
	if r.BytesPerToken > 0 {
		return r.BytesPerToken
	}
	return bytesPerToken
}

// sessionOf returns the request's session, the zero Session if it has none.
func (r *Request) sessionOf() openai.Session {
	if !r.hasAsked && r.Source != nil {
		r.session, r.hasAsked = r.Source.Session(), true
	}
	return r.session
}

// placementOf returns the text to hash of a request without a session.
func (r *Request) placementOf() string {
	if !r.hasPlaced && r.Source != nil {
		r.placement, r.hasPlaced = r.Source.Placement(), true
	}
	return r.placement
}

// Done says that no choice and no undo of this request will be used any more.
func (r *Request) Done() {
	for _, l := range r.lookups {
		l.release()
	}
	r.lookups = nil
}
