// Package policy chooses a worker for a request, one file per policy. A policy
// does its costly work before the pick and keeps no load of its own: load is
// the worker's. All policies may be used from any goroutine.
//
// A policy is made for one role and knows only that role's workers. One that
// keeps something for each of them is a [worker.Observer] of the role's pool.
package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/baton-llm/baton/internal/worker"
)

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
	// call made; it may be nil. It must be called before Request.Done, if at all.
	Keep(w *worker.Worker) (undo func())
	// Why says why Choose returned the worker, for logs and metrics.
	Why(w *worker.Worker) Why
}

// Why says why a worker was chosen.
type Why struct {
	Reason string // a word, one of a fixed set
	// Matched is how much of the routing key the worker had been sent before, and
	// Key how long the key is, in bytes. Both are 0 if no key was looked up.
	Matched, Key int64
}

// makers lists the policies by name.
var makers = map[string]func(Config) Policy{
	"least_load":      func(Config) Policy { return LeastLoad{} },
	"least_wait":      func(cfg Config) Policy { return NewLeastWait(cfg) },
	"cache_aware":     func(cfg Config) Policy { return NewCacheAware(cfg) },
	"sticky":          func(cfg Config) Policy { return NewSticky(cfg) },
	"consistent_hash": func(Config) Policy { return NewConsistentHash() },
	"rendezvous_hash": func(Config) Policy { return RendezvousHash{} },
	"power_of_two":    func(Config) Policy { return NewPowerOfTwo(nil) },
	"round_robin":     func(Config) Policy { return RoundRobin{} },
	"random":          func(Config) Policy { return NewRandom(nil) },
}

// Default is the policy used unless another one is asked for.
const Default = "least_wait"

// Names lists the policies that can be made, sorted.
func Names() []string {
	names := make([]string, 0, len(makers))
	for name := range makers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// New makes the policy of that name. If it is a [worker.Observer], the pool of
// the role must be told of it.
func New(name string, cfg Config) (Policy, error) {
	mk, ok := makers[name]
	if !ok {
		return nil, fmt.Errorf("unknown policy %q: known are %s", name, strings.Join(Names(), ", "))
	}
	return mk(cfg), nil
}

// plain is what choices without affinity have in common.
type plain struct{ work worker.Work }

func (p plain) Work(*worker.Worker) worker.Work { return p.work }
func (plain) Keep(*worker.Worker) func()        { return nil }
