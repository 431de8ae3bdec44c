//go:build e2e

package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// pairKilling is a moment at which an engine of a pair is killed, and what may
// come of the request. Connections are kept between the requests: if one breaks
// within a second the router cannot tell whether the engine had closed it, and
// connects again.
type pairKilling struct {
	name   string
	role   string // of the engine that is killed
	atRole string // where the request is meanwhile; "": it comes afterwards
	point  string
	want   func(d *dialect, q question, spare bool) []ending
}

func oneOf(list ...ending) []ending { return list }

// ended is what an engine says that could not load its blocks.
func ended(q question) ending {
	if q.stream {
		return lostHandoffStream
	}
	return lostHandoff
}

var (
	connectFailed = badGateway("connect_failed")
	prefillFailed = badGateway("prefill_failed")
	decodeFailed  = badGateway("decode_failed")
)

// orElse is right if there is another engine of the role, else one of the rest.
func orElse(spare bool, alone ...ending) []ending {
	if spare {
		return oneOf(right)
	}
	return alone
}

var pairKillings = []pairKilling{
	{
		name: "prefill_idle", role: prefill,
		want: func(_ *dialect, _ question, spare bool) []ending { return orElse(spare, connectFailed) },
	},
	{
		name: "decode_idle", role: decode,
		want: func(_ *dialect, _ question, spare bool) []ending { return orElse(spare, connectFailed) },
	},
	{
		name: "prefill_computing", role: prefill, atRole: prefill, point: "accept",
		want: func(_ *dialect, _ question, spare bool) []ending { return orElse(spare, connectFailed, prefillFailed) },
	},
	// Decode is there when prefill is asked, and not when it has answered. Only
	// with moriio WRITE does it have its leg by then.
	{
		name: "decode_during_prefill", role: decode, atRole: prefill, point: "accept",
		want: func(d *dialect, _ question, spare bool) []ending {
			if d.name == "moriio_write" {
				return append(orElse(spare, connectFailed), decodeFailed)
			}
			return orElse(spare, connectFailed)
		},
	},
	// With p2p the blocks are with decode already. Else decode has been told of
	// them, and says so itself when it cannot have them. A prefill that is killed
	// when it has just answered may not have answered.
	{
		name: "prefill_between_legs", role: prefill, atRole: decode, point: "accept",
		want: func(d *dialect, q question, spare bool) []ending {
			switch d.name {
			case "p2p":
				return oneOf(right)
			case "moriio_write":
				return append(orElse(spare, prefillFailed, connectFailed), ended(q))
			default:
				return oneOf(ended(q))
			}
		},
	},
	{
		name: "decode_before_head", role: decode, atRole: decode, point: "accept",
		want: func(_ *dialect, _ question, spare bool) []ending {
			return append(orElse(spare, connectFailed), decodeFailed)
		},
	},
	// A stream has its head by then, another answer has not.
	{
		name: "decode_before_token", role: decode, atRole: decode, point: "first",
		want: func(_ *dialect, q question, _ bool) []ending {
			if q.stream {
				return oneOf(brokenStream)
			}
			return oneOf(decodeFailed)
		},
	},
	{
		name: "decode_mid_answer", role: decode, atRole: decode, point: "chunk:4",
		want: func(_ *dialect, q question, _ bool) []ending {
			if q.stream {
				return oneOf(brokenStream)
			}
			return oneOf(brokenBody)
		},
	},
}

// TestDialectKill kills an engine at every moment of a request, in each dialect,
// with another engine of its role and without.
func TestDialectKill(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d *dialect) {
		for _, engines := range []int{2, 1} {
			spare := engines == 2
			t.Run(map[bool]string{true: "spare", false: "alone"}[spare], func(t *testing.T) {
				t.Parallel()
				f := newRegistered(t, zmqConfig{
					prefill: engines, decode: engines, dialects: []*dialect{d}, period: 300 * time.Millisecond, ttl: 20 * time.Second,
					router: []string{"--engine-metrics-interval", "0"},
				})
				f.killAll(t, d, spare)
			})
		}
	})
}

func (f *fleet) killAll(t *testing.T, d *dialect, spare bool) {
	for i, k := range pairKillings {
		q := question{api: chat, prompt: "Who runs first? " + k.name, tokens: 20, stream: spare != (i%2 == 0)}
		killed := f.killPaired(t, k, q, k.want(d, q, spare))
		if t.Failed() {
			t.Fatalf("%s, stream %t: %s was killed", k.name, q.stream, killed)
		}
		if spare {
			f.ask(q) // before it is back
		}
		await(t, patience, k.name+": the others are done", f.settled)
		killed.restart()
		for range 2 {
			await(t, patience, "all workers ready again", func() error { return f.ready(len(f.engines())) })
			f.ask(q)
		}
	}
	f.clean(t)
}

// killPaired kills an engine, with the request where it is meant to be, and
// checks the answer.
func (f *fleet) killPaired(t *testing.T, k pairKilling, q question, want []ending) *engine {
	t.Helper()
	if k.atRole == "" {
		killed := f.role(k.role)[0]
		killed.kill()
		for range f.role(k.role) {
			if err := checkAny(want, q, f.client.post(q.api.path, q.body())); err != nil {
				t.Errorf("%s: %v", k.name, err)
			}
		}
		return killed
	}
	gate := k.name + newID()
	open := f.gate(k.atRole, enginesim.Fault{Leg: k.atRole, Point: k.point, Gate: gate})
	coming := f.client.async(q.api.path, q.body())
	at := awaitGate(t, f.role(k.atRole), gate, 1)
	killed := at
	if k.atRole != k.role {
		killed = f.partner(t, at, k.role)
	}
	killed.kill()
	open()
	if err := checkAny(want, q, receive(t, coming)); err != nil {
		t.Errorf("%s: %v", k.name, err)
	}
	return killed
}

// partner returns the engine of the other role that the newest leg of an engine
// is paired with, or will be. If that is prefill, it waits for its answer.
func (f *fleet) partner(t *testing.T, e *engine, role string) *engine {
	t.Helper()
	var newest enginesim.Record
	for _, r := range e.records() {
		if r.Arrival.After(newest.Arrival) {
			newest = r
		}
	}
	id := newest.Header.Get("X-Request-Id")
	other := f.role(role)[0] // any, if it is not chosen yet
	if m := pairAddrs.FindStringSubmatch(id); m != nil {
		for _, p := range f.role(role) {
			if at := p.zmq(); at == m[1] || at == m[2] {
				other = p
			}
		}
	} else if role == prefill {
		for _, p := range f.prefill {
			if _, err := p.record(id); err == nil {
				other = p
			}
		}
	}
	if role == prefill {
		await(t, patience, "prefill has answered", func() error {
			r, err := other.record(id)
			if err == nil && r.Outcome == "" {
				err = fmt.Errorf("%+v", r)
			}
			return err
		})
	}
	return other
}
