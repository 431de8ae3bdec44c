//go:build e2e

package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestDialectLeave has clients leave at each step of a request, in each dialect:
// afterwards nothing is left of it, and the engines serve the next one.
func TestDialectLeave(t *testing.T) {
	t.Parallel()
	steps := []struct {
		name, role, point string
		stream            bool
		events            int // that the client has had
	}{
		{"before_prefill", prefill, "accept", false, 0},
		{"before_prefill_stream", prefill, "accept", true, 0},
		{"between_legs", decode, "accept", false, 0},
		{"between_legs_stream", decode, "accept", true, 0},
		{"before_head", decode, "headers", false, 0},
		{"before_head_stream", decode, "headers", true, 0},
		{"before_token", decode, "first", true, 0},
		{"mid_answer", decode, "chunk:40", false, 0},
		{"mid_stream", decode, "chunk:4", true, 4},
		// Prefill has done its work, and its answer is under way.
		{"prefill_answering", prefill, "headers", false, 0},
	}
	eachDialect(t, func(t *testing.T, d *dialect) {
		f := newRegistered(t, zmqConfig{
			prefill: 1, decode: 1, dialects: []*dialect{d}, period: 500 * time.Millisecond, ttl: 20 * time.Second,
			engines: []string{"--defer-timeout", "500ms"},
		})
		for i, step := range steps {
			if step.name == "prefill_answering" && d.name == "moriio_write" {
				continue // decode answers without waiting for that
			}
			for _, how := range []leave{leaves[i%len(leaves)], leaves[(i+1)%len(leaves)]} {
				f.leaveAt(t, d, step.role, step.point, step.stream, step.events, how)
				// What prefill gave when nobody listened any more is the engine's to free.
				if step.name != "prefill_answering" || d.name == "p2p" {
					await(t, 10*time.Second, fmt.Sprintf("%s, %s: nothing pinned", step.name, how), f.unpinned)
				}
				if t.Failed() {
					t.Fatalf("%s, %s", step.name, how)
				}
			}
		}
		f.clean(t)
		await(t, patience, "hand-offs counted", f.accounted)
	})
}

func (f *fleet) leaveAt(t *testing.T, d *dialect, role, at string, stream bool, events int, how leave) {
	t.Helper()
	q := question{api: chat, prompt: "I am off.", tokens: 10, stream: stream}
	gate := "leave" + newID()
	// A leg that gives the hand-off back passes.
	open := f.gate(role, enginesim.Fault{Leg: role, Point: at, Gate: gate, Times: 1})
	w := dial(t, f.addr)
	if err := w.post(q.api.path, newID(), q.body()); err != nil {
		t.Fatal(err)
	}
	awaitGate(t, f.role(role), gate, 1)
	if events > 0 {
		var got int
		buf := make([]byte, 4096)
		for got == 0 {
			_ = w.SetReadDeadline(time.Now().Add(patience))
			n, err := w.in.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}
	w.leave(how)
	// The router sees it at once, and acts on it unless the dialect wants the leg
	// to go on until the hand-off is over.
	_ = poll(300*time.Millisecond, func() error {
		if n := f.metric("baton_requests_active"); n != 0 {
			return fmt.Errorf("%v requests are active", n)
		}
		return nil
	})
	open()
	// A leg that must go on may bring a whole answer to who has half left.
	if err := w.awaitEnd(); how == leaveHalf && err != nil && !d.goesOn {
		t.Error(err)
	}
	await(t, patience, "nothing left", f.settled)
	q.prompt = "And I stay."
	f.ask(q)
}

// accounted wants every hand-off that was made to have been used, given back or
// given up, in the router's figures.
func (f *fleet) accounted() error {
	m, err := f.metrics()
	if err != nil {
		return err
	}
	figure := func(outcome string) float64 { return m.sum("baton_handoffs_total", `outcome="`+outcome+`"`) }
	if made, ended := figure("produced"), figure("delivered")+figure("discarded")+figure("abandoned"); made != ended {
		return fmt.Errorf("%v hand-offs were made, %v have ended", made, ended)
	}
	return nil
}
