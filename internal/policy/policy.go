// Package policy chooses a worker for a request, one file per policy. A policy
// does its costly work before the pick and keeps no load of its own: load is
// the worker's. All policies may be used from any goroutine.
package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/baton-llm/baton/internal/worker"
)

// Request is what a policy may know of the request it chooses for.
type Request struct {
	Work worker.Work // what it adds to the worker chosen, if nothing is cached there
}

// Policy makes a choice ready. Prepare runs without any lock: hashing and
// everything that grows with the number of workers belongs here.
type Policy interface {
	// Name is the policy's name in flags and metrics.
	Name() string
	// Prepare returns the choice for one request. The snapshot may be older than
	// the candidates the choice will see.
	Prepare(r *Request, s *worker.Snapshot) Choice
}

// Choice is one request's use of a policy.
type Choice interface {
	worker.Chooser
	// Keep records affinity for the worker chosen, after the pick has unlocked
	// and before anything is sent. The undo it returns takes back only what this
	// call made; it may be nil.
	Keep(w *worker.Worker) (undo func())
	// Reason says in a word why the worker was chosen, for logs and metrics. It
	// is valid after Choose.
	Reason() string
}

// makers lists the policies by name.
var makers = map[string]func() Policy{
	"least_load":  func() Policy { return LeastLoad{} },
	"round_robin": func() Policy { return RoundRobin{} },
	"random":      func() Policy { return NewRandom(nil) },
}

// Names lists the policies that can be made, sorted.
func Names() []string {
	names := make([]string, 0, len(makers))
	for name := range makers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// New makes the policy of that name.
func New(name string) (Policy, error) {
	mk, ok := makers[name]
	if !ok {
		return nil, fmt.Errorf("unknown policy %q: known are %s", name, strings.Join(Names(), ", "))
	}
	return mk(), nil
}

// plain is what choices without affinity have in common.
type plain struct{ work worker.Work }

func (p plain) Work(*worker.Worker) worker.Work { return p.work }
func (plain) Keep(*worker.Worker) func()        { return nil }
