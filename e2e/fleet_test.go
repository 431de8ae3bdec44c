//go:build e2e

package e2e_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/baton-llm/baton/internal/enginesim"
)

// fleetConfig says what a fleet is made of.
type fleetConfig struct {
	prefill, decode, regular             int
	router                               []string // flags
	prefillArgs, decodeArgs, regularArgs []string // flags
}

// fleet is a router with its engines. When the test ends all of it must be idle,
// no engine may have been sent what a router should not send, and the router
// must end well.
type fleet struct {
	*router

	t                        testing.TB
	prefill, decode, regular []*engine
	client                   *client
	guilty                   bool // violations are meant
}

func newFleet(t testing.TB, cfg fleetConfig) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for range cfg.prefill {
		f.prefill = append(f.prefill, startEngine(t, prefill, cfg.prefillArgs...))
	}
	for range cfg.decode {
		f.decode = append(f.decode, startEngine(t, decode, cfg.decodeArgs...))
	}
	for range cfg.regular {
		f.regular = append(f.regular, startEngine(t, regular, cfg.regularArgs...))
	}
	args := slices.Clone(cfg.router)
	for _, e := range f.prefill {
		args = append(args, "--prefill", e.url)
	}
	for _, e := range f.decode {
		args = append(args, "--decode", e.url)
	}
	for _, e := range f.regular {
		args = append(args, "--worker-urls", e.url)
	}
	f.router = startRouter(t, args...)
	f.client = newClient(t, f.url)
	await(t, patience, "all workers ready", func() error { return f.ready(len(f.engines())) })
	t.Cleanup(f.verify)
	return f
}

func (f *fleet) engines() []*engine { return slices.Concat(f.prefill, f.decode, f.regular) }

// role returns the engines of a role.
func (f *fleet) role(role string) []*engine {
	switch role {
	case prefill:
		return f.prefill
	case decode:
		return f.decode
	default:
		return f.regular
	}
}

// quiet returns why router and engines are not idle, nil if they are.
func (f *fleet) quiet() error {
	var errs []error
	if f.running() {
		errs = append(errs, f.idle())
	}
	for _, e := range f.engines() {
		if e.running() {
			errs = append(errs, e.idle())
		}
	}
	return errors.Join(errs...)
}

// verify is what must hold at the end of every test.
func (f *fleet) verify() {
	f.client.close()
	if err := poll(patience, f.quiet); err != nil {
		f.t.Errorf("not idle at the end: %v", err)
	}
	for _, e := range f.engines() {
		if !e.running() || f.guilty {
			continue
		}
		if err := e.innocent(); err != nil {
			f.t.Error(err)
		}
	}
	f.end()
}

// gate stops requests at a point in all engines of a role until the returned
// function lets them go on and removes it.
func (f *fleet) gate(role string, at enginesim.Fault) (open func()) {
	f.t.Helper()
	at.Action = "gate"
	engines := f.role(role)
	removes := make([]func(), len(engines))
	for i, e := range engines {
		removes[i] = e.fault(at)
	}
	return func() {
		for i, e := range engines {
			if e.running() {
				removes[i]()
				e.open(at.Gate)
			}
		}
	}
}

// legs returns where the legs of a request went, one line for each, in order. A
// leg ends a moment after its client has read the answer; that is waited for.
func (f *fleet) legs(id string) []string {
	f.t.Helper()
	var out []string
	await(f.t, patience, "legs of "+id+" over", func() error {
		out = nil
		for _, e := range f.engines() {
			if !e.running() {
				continue
			}
			for _, r := range e.records() {
				if r.Header.Get("X-Request-Id") != id {
					continue
				}
				if r.Outcome == "" {
					return fmt.Errorf("%s: a %s leg has not ended", e, r.Leg)
				}
				out = append(out, fmt.Sprintf("%s leg on %s engine: %d %s", r.Leg, e.role, r.Status, r.Outcome))
			}
		}
		return nil
	})
	slices.Sort(out)
	return out
}
