package dispatch

import (
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/policy"
)

// source answers what policies ask of a request.
type source struct{ call *Call }

var _ policy.Source = source{}

// KeyRoot implements [policy.Source].
func (s source) KeyRoot() []string { return s.call.Request.KeyRoot() }

// WriteKey implements [policy.Source].
func (s source) WriteKey(w openai.KeyWriter) { s.call.Request.WriteKey(w) }

// Session implements [policy.Source].
func (s source) Session() openai.Session { return s.call.Request.Session(s.call.Head.Fields.Get) }

// Placement implements [policy.Source].
func (s source) Placement() string { return s.call.Request.Placement() }
