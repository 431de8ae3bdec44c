//go:build e2e

package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/enginesim"
)

// ending is how an answer ends for a client.
type ending struct {
	status int    // of the head
	code   string // of the error object or of the error event; "" for an answer that is right
	broken bool   // the connection breaks off before the end of the body
	// own is set if the error is the engine's, which is passed on as it is: with
	// the [DONE] that an engine sends after its error event.
	own bool
}

var (
	right = ending{status: http.StatusOK}
	// brokenStream is an error event of the router's own as the last thing before
	// the connection breaks.
	brokenStream = ending{status: http.StatusOK, code: "stream_broken", broken: true}
	brokenBody   = ending{status: http.StatusOK, broken: true}
	// lostHandoff and lostHandoffStream are what an engine itself says.
	lostHandoff       = ending{status: http.StatusInternalServerError, code: "500", own: true}
	lostHandoffStream = ending{status: http.StatusOK, code: "500", own: true}
)

func badGateway(code string) ending { return ending{status: http.StatusBadGateway, code: code} }

// check returns in what an answer differs from the ending.
func (want ending) check(q question, a *answer) error {
	switch {
	case want == right:
		return q.check(a)
	case a.status != want.status:
		return fmt.Errorf("status %d, want %d: %v", a.status, want.status, a)
	case errors.Is(a.err, io.ErrUnexpectedEOF) != want.broken:
		return fmt.Errorf("broken off: %t, want %t: %v", !want.broken, want.broken, a)
	case a.status != http.StatusOK:
		return want.checkObject(a.body, a)
	case !q.stream:
		return nil // half of a body, and its length says so
	}
	var failures, done int
	for _, ev := range a.events {
		if code, _ := errorCode([]byte(ev.data)); code != "" {
			failures++
			if err := want.checkObject([]byte(ev.data), a); err != nil {
				return err
			}
			if named := q.api.name == "responses" || q.api.name == "messages"; named != (ev.name == "error") {
				return fmt.Errorf("the error event is named %q: %v", ev.name, a)
			}
		}
		if ev.data == "[DONE]" || ev.name == q.api.last {
			done++
		}
	}
	wantDone := 0
	if want.own {
		wantDone = 1
	}
	if failures != 1 || done != wantDone {
		return fmt.Errorf("%d error events, want 1; %d ends, want %d: %v", failures, done, wantDone, a)
	}
	if last := a.events[len(a.events)-1]; !want.own && !strings.Contains(last.data, want.code) {
		return fmt.Errorf("the error event is not the last: %v", a)
	}
	return nil
}

// checkAny returns nil if the answer has one of the endings.
func checkAny(endings []ending, q question, a *answer) error {
	var errs []error
	for _, want := range endings {
		err := want.check(q, a)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (want ending) checkObject(body []byte, a *answer) error {
	code, message := errorCode(body)
	if code != want.code || message == "" {
		return fmt.Errorf("error code %q, want %q, with a message: %v", code, want.code, a)
	}
	if strings.Contains(message, "127.0.0.1") {
		return fmt.Errorf("the message names an address: %v", a)
	}
	return nil
}

// killing is a moment at which an engine is killed, and what comes of the
// request that is there.
type killing struct {
	name   string
	role   string          // of the engine that is killed
	at     enginesim.Fault // where the request is meanwhile; none: it comes afterwards
	atRole string          // in an engine of which role, if not of role
	api    *api
	stream bool
	// warm makes the request go over a connection that was used before. If that
	// breaks within a second, the router cannot tell whether the engine had closed
	// it, and sends again; or, if it finds nobody there, to another engine.
	warm bool

	spare []ending // if there is another engine of the role, any of these
	alone []ending // if there is not
}

// point is where a leg is when an engine is killed.
func point(leg, at string) enginesim.Fault {
	return enginesim.Fault{Leg: leg, Point: at, Gate: "kill"}
}

var killings = func() []killing {
	always := func(e ...ending) []ending { return e }
	unconnected := always(badGateway("connect_failed"))
	var list []killing
	for _, stream := range []bool{false, true} {
		lost := lostHandoff
		if stream {
			lost = lostHandoffStream
		}
		list = append(list, []killing{
			{name: "prefill_idle", role: prefill, warm: true, spare: always(right), alone: unconnected},
			{name: "decode_idle", role: decode, warm: true, spare: always(right), alone: unconnected},
			{name: "regular_idle", role: regular, warm: true, spare: always(right), alone: unconnected},

			{
				name: "prefill_computing", role: prefill, at: point("prefill", "accept"),
				spare: always(right), alone: always(badGateway("prefill_failed")),
			},
			{
				name: "prefill_answering", role: prefill, at: point("prefill", "chunk:50"),
				spare: always(right), alone: always(badGateway("prefill_failed")),
			},
			// The hand-off is lost with its engine. Decode has been told of it by
			// then, and says so itself.
			{
				name: "prefill_between_legs", role: prefill, at: point("decode", "accept"), atRole: decode,
				spare: always(lost), alone: always(lost),
			},
			// Once it has been collected, prefill is not needed any more.
			{
				name: "prefill_after_handoff", role: prefill, at: point("decode", "chunk:4"), atRole: decode,
				spare: always(right), alone: always(right),
			},
			// From here on the engine may have begun, so nobody else is asked.
			{
				name: "decode_before_head", role: decode, at: point("decode", "accept"),
				spare: always(badGateway("decode_failed")), alone: always(badGateway("decode_failed")),
			},
			{
				name: "regular_before_head", role: regular, at: point("plain", "accept"),
				spare: always(badGateway("worker_failed")), alone: always(badGateway("worker_failed")),
			},
			{
				name: "decode_before_head_warm", role: decode, at: point("decode", "accept"), warm: true,
				spare: always(right, badGateway("decode_failed")),
				alone: always(badGateway("connect_failed"), badGateway("decode_failed")),
			},
			{
				name: "regular_before_head_warm", role: regular, at: point("plain", "accept"), warm: true,
				spare: always(right, badGateway("worker_failed")),
				alone: always(badGateway("connect_failed"), badGateway("worker_failed")),
			},
		}...)
		for i := len(list) - 11; i < len(list); i++ {
			list[i].stream = stream
		}
	}
	list = append(
		list,
		killing{
			name: "decode_mid_body", role: decode, at: point("decode", "chunk:40"),
			spare: always(brokenBody), alone: always(brokenBody),
		},
		killing{
			name: "regular_mid_body", role: regular, at: point("plain", "chunk:40"),
			spare: always(brokenBody), alone: always(brokenBody),
		},
		// Another engine cannot collect what this one has.
		killing{
			name: "decode_collected_warm", role: decode, at: point("decode", "headers"), warm: true,
			spare: always(lostHandoff, badGateway("decode_failed")),
			alone: always(badGateway("connect_failed"), badGateway("decode_failed")),
		},
		killing{
			name: "regular_mid_stream", role: regular, at: point("plain", "chunk:4"), stream: true,
			spare: always(brokenStream), alone: always(brokenStream),
		},
	)
	for _, api := range apis {
		list = append(list, killing{
			name: "decode_before_token_" + api.name, role: decode, at: point("decode", "first"), api: api, stream: true,
			spare: always(brokenStream), alone: always(brokenStream),
		}, killing{
			name: "decode_mid_stream_" + api.name, role: decode, at: point("decode", "chunk:4"), api: api, stream: true,
			spare: always(brokenStream), alone: always(brokenStream),
		})
	}
	return list
}()

// TestKill kills an engine at every moment of a request.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, k := range killings {
		for _, engines := range []int{2, 1} {
			name, want := k.name, k.spare
			if k.stream {
				name += "/stream"
			}
			if engines == 1 {
				name, want = name+"/alone", k.alone
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				k.run(t, engines, want)
			})
		}
	}
}

func (k killing) run(t *testing.T, engines int, want []ending) {
	cfg := fleetConfig{prefill: 1, decode: 1}
	switch k.role {
	case prefill:
		cfg.prefill = engines
	case decode:
		cfg.decode = engines
	default:
		cfg = fleetConfig{regular: engines}
	}
	f := newFleet(t, cfg)
	q := question{api: k.api, prompt: "Who runs first?", tokens: 20, stream: k.stream}
	if q.api == nil {
		q.api = chat
	}
	for range 2 { // as many as there are engines
		if k.warm {
			f.ask(q)
		}
	}
	killed := k.kill(t, f, q, want)
	// Another request finds an engine; or it does once there is one again.
	if engines == 1 {
		killed.restart()
	}
	for range 3 {
		if engines == 1 {
			// Also between the requests: the first hand-off shows that it is another
			// engine, which then is probed before it is used again.
			await(t, patience, "all workers ready again", func() error { return f.ready(len(f.engines())) })
		}
		f.ask(q)
	}
	await(t, patience, "idle", f.quiet)
}

// kill kills an engine, with the request where it is meant to be, and checks the
// answer.
func (k killing) kill(t *testing.T, f *fleet, q question, want []ending) *engine {
	t.Helper()
	if k.at.Gate == "" {
		killed := f.role(k.role)[0]
		killed.kill()
		// One of two requests in a row meets it, if there is another engine.
		for range len(f.role(k.role)) {
			if err := checkAny(want, q, f.client.post(q.api.path, q.body())); err != nil {
				t.Error(err)
			}
		}
		if w := f.look(killed); w.Ready || w.LastError == "" {
			t.Errorf("the router does not see that the engine is gone: %+v", w)
		}
		return killed
	}
	atRole := k.atRole
	if atRole == "" {
		atRole = k.role
	}
	open := f.gate(atRole, k.at)
	coming := f.client.async(q.api.path, q.body())
	killed := awaitGate(t, f.role(atRole), k.at.Gate, 1)
	if atRole != k.role {
		killed = f.holder(q)
	}
	killed.kill()
	open()
	if err := checkAny(want, q, receive(t, coming)); err != nil {
		t.Error(err)
	}
	return killed
}

// holder returns the prefill engine that was asked last.
func (f *fleet) holder(q question) *engine {
	f.t.Helper()
	var found *engine
	var newest enginesim.Record
	for _, e := range f.prefill {
		for _, r := range e.records() {
			if r.Path == q.api.path && r.Arrival.After(newest.Arrival) {
				found, newest = e, r
			}
		}
	}
	return found
}
