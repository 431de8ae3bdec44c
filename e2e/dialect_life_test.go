//go:build e2e

package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// A registration lives for this long, three periods and some.
const (
	pingPeriod = 600 * time.Millisecond
	shortTTL   = 2 * time.Second
)

// hello is a question for the engines of one dialect.
func (d *dialect) hello(prompt string) question {
	return question{api: chat, prompt: prompt, tokens: 12, stream: true, model: d.name}
}

// gone returns nil if no worker is at the engine's address.
func (f *fleet) gone(e *engine) error {
	list, err := f.workers()
	if err != nil {
		return err
	}
	for _, w := range list {
		if w.URL == e.url {
			return fmt.Errorf("%+v", w)
		}
	}
	return nil
}

// renewed returns nil if the engine is a ready worker of a later generation.
func (f *fleet) renewed(e *engine, before workerView) error {
	w, err := f.worker(e)
	if err == nil && (w.Generation <= before.Generation || !w.Ready) {
		err = fmt.Errorf("%+v, before %+v", w, before)
	}
	return err
}

// TestDialectRestart restarts engines on their ports, with the identity that
// they had and with another one, within the time of their registration and after
// it. Each is another worker, and nothing of the old process is used.
func TestDialectRestart(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d *dialect) {
		f := newRegistered(t, zmqConfig{
			prefill: 1, decode: 1, dialects: []*dialect{d}, period: pingPeriod, ttl: shortTTL,
			router: []string{"--engine-metrics-interval", "100ms"},
		})
		for _, other := range []bool{true, false} {
			for _, e := range f.engines() {
				f.replace(t, d, other, false, e)
			}
		}
		f.replace(t, d, true, true, f.engines()...)
		f.replace(t, d, false, true, f.engines()...)
		f.clean(t)
	})
}

func (f *fleet) replace(t *testing.T, d *dialect, other, expired bool, engines ...*engine) {
	t.Helper()
	what := fmt.Sprintf("%v, other identity %t, expired %t", engines, other, expired)
	q := d.hello("Who are you?")
	for range 2 {
		f.ask(q)
	}
	f.scraped(t, engines...)
	before := map[*engine]workerView{}
	for _, e := range engines {
		if before[e] = f.look(e); before[e].Picked == 0 {
			t.Fatalf("%s: not used: %+v", what, before[e])
		}
		e.kill()
	}
	for _, e := range engines {
		if expired {
			await(t, patience, what+": gone", func() error { return f.gone(e) })
		}
		var args []string
		if other {
			args = e.otherIdentity()
		}
		e.restart(args...)
	}
	for _, e := range engines {
		await(t, patience, what+": another lifetime", func() error { return f.renewed(e, before[e]) })
		w := f.look(e)
		if w.Picked != 0 || w.Load != 0 || w.Holds != 0 || w.Held != 0 {
			t.Errorf("%s: its figures are not fresh: %+v", what, w)
		}
		if same := w.ZMQ == before[e].ZMQ; same == other && before[e].ZMQ == e.zmq() {
			t.Errorf("%s: the ZMQ address is %q, before %q", what, w.ZMQ, before[e].ZMQ)
		}
	}
	await(t, patience, what+": all ready", func() error { return f.ready(len(f.engines())) })
	for range 3 {
		f.ask(q)
	}
	for _, e := range engines {
		// Three requests, three legs: none of another lifetime's.
		if w := f.look(e); w.Picked != 3 || len(e.records()) != 3 {
			t.Errorf("%s: picked %d times, %d legs, want 3: %+v", what, w.Picked, len(e.records()), w)
		}
		s, err := e.stats()
		if err != nil || s.FailedLoads != 0 {
			t.Errorf("%s: %d hand-offs could not be loaded, %v", what, s.FailedLoads, err)
		}
	}
	f.checkPairs(t)
	if t.Failed() {
		t.FailNow()
	}
}

// scraped waits until the router has read figures that count what the engines
// have done.
func (f *fleet) scraped(t *testing.T, engines ...*engine) {
	t.Helper()
	for _, e := range engines {
		reads := func() int {
			s, err := e.stats()
			if err != nil {
				t.Fatal(err)
			}
			return s.Paths["/metrics"]
		}
		from := reads()
		await(t, patience, "figures read", func() error {
			if reads() < from+2 {
				return errNotYet
			}
			return nil
		})
	}
}

// TestDialectStaleHandoff replaces engines while a request waits between its
// legs: what the old processes have is not used, and the answer is right or an
// error.
func TestDialectStaleHandoff(t *testing.T) {
	t.Parallel()
	for _, d := range dialects[:3] { // the others have both legs at once
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			f := newRegistered(t, zmqConfig{
				prefill: 1, decode: 1, dialects: []*dialect{d}, period: 200 * time.Millisecond, ttl: 10 * time.Second,
				router: []string{"--decode-wait", "10s"},
			})
			q := d.hello("Still there?")
			f.ask(q)
			open := f.gate(prefill, enginesim.Fault{Leg: prefill, Point: "accept", Gate: "stale"})
			coming := f.client.async(q.api.path, q.body())
			awaitGate(t, f.prefill, "stale", 1)
			before := f.look(f.decode[0])
			f.decode[0].kill()
			f.decode[0].restart(f.decode[0].otherIdentity()...)
			await(t, patience, "another decode", func() error { return f.renewed(f.decode[0], before) })
			open()
			if err := checkAny(oneOf(right), q, receive(t, coming)); err != nil {
				t.Error(err)
			}
			for _, r := range f.decode[0].records() {
				if m := pairAddrs.FindStringSubmatch(r.Header.Get("X-Request-Id")); m != nil && m[2] != f.look(f.decode[0]).ZMQ {
					t.Errorf("the new decode has a leg for the old one: %+v", r)
				}
			}
			await(t, patience, "idle", f.quiet)
			for _, e := range f.engines() {
				if err := e.innocent(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestDialectDeadHandoff replaces prefill when it has answered and no decode is
// there: what it has handed over died with it, and decode must not be sent there.
func TestDialectDeadHandoff(t *testing.T) {
	t.Parallel()
	nixl := dialects[0]
	f := newRegistered(t, zmqConfig{
		prefill: 1, decode: 1, dialects: []*dialect{nixl}, period: 200 * time.Millisecond, ttl: time.Second,
		router: []string{"--decode-wait", "15s"},
	})
	q := nixl.hello("Whose blocks?")
	f.ask(q)
	open := f.gate(prefill, enginesim.Fault{Leg: prefill, Point: "accept", Gate: "dead"})
	coming := f.client.async(q.api.path, q.body())
	awaitGate(t, f.prefill, "dead", 1)
	f.decode[0].kill()
	await(t, patience, "no decode", func() error { return f.gone(f.decode[0]) })
	open()
	await(t, patience, "the hand-off is made", func() error {
		if n := f.metric("baton_handoffs_total", `outcome="produced"`); n != 2 {
			return fmt.Errorf("%v were", n)
		}
		return nil
	})
	before := f.look(f.prefill[0])
	f.prefill[0].kill()
	f.prefill[0].restart(f.prefill[0].otherIdentity()...)
	await(t, patience, "another prefill", func() error { return f.renewed(f.prefill[0], before) })
	f.decode[0].restart()
	if err := checkAny(oneOf(right), q, receive(t, coming)); err != nil {
		t.Error(err)
	}
	s, err := f.decode[0].stats()
	if err != nil || s.FailedLoads != 0 {
		t.Errorf("decode was sent to the dead process %d times; %v", s.FailedLoads, err)
	}
	f.ask(q)
	f.clean(t)
}

// pausePings holds an engine's registrations back or lets them go on.
func (e *engine) pausePings(paused bool) {
	e.t.Helper()
	if err := e.call("POST", "/sim/pings", map[string]bool{"paused": paused}, nil); err != nil {
		e.t.Errorf("%s: %v", e, err)
	}
}

// lose holds n registrations back. They come at whole periods after the start of
// the engine; it begins and ends half-way between two.
func (e *engine) lose(n int, period time.Duration) {
	e.t.Helper()
	since := time.Since(e.listening)
	from := e.listening.Add(since - since%period + period/2)
	if from.Before(time.Now()) {
		from = from.Add(period)
	}
	wait := time.NewTimer(time.Until(from))
	defer wait.Stop()
	<-wait.C
	e.pausePings(true)
	wait.Reset(time.Until(from.Add(time.Duration(n) * period)))
	<-wait.C
	e.pausePings(false)
}

// TestDialectLostPings has registrations get lost: of a time to live of three
// periods and some, one and two change nothing; four end a worker, and it comes
// back as another one.
func TestDialectLostPings(t *testing.T) {
	t.Parallel()
	const period = 900 * time.Millisecond
	f := newRegistered(t, zmqConfig{prefill: 1, decode: 1, dialects: dialects, period: period, ttl: 3 * time.Second})
	loseAll := func(n int) {
		var wg sync.WaitGroup
		for _, e := range f.engines() {
			wg.Go(func() { e.lose(n, period) })
		}
		wg.Wait()
	}
	before := map[*engine]workerView{}
	for _, e := range f.engines() {
		before[e] = f.look(e)
	}
	var asking []*loops
	for _, d := range dialects {
		asking = append(asking, f.loops(1, d.hello("Did you miss me?")))
	}
	for n := 1; n <= 2; n++ {
		loseAll(n)
		for _, e := range f.engines() {
			if w := f.look(e); w.Generation != before[e].Generation || !w.Ready {
				t.Errorf("%s, %d registrations lost: %+v, before %+v", e, n, w, before[e])
			}
		}
	}
	for _, l := range asking {
		if err := l.atLeast(20); err != nil {
			t.Error(err)
		}
		for _, failure := range l.end() {
			t.Error(failure.err)
		}
	}

	var wg sync.WaitGroup
	for _, e := range f.engines() {
		wg.Go(func() {
			if err := poll(patience, func() error { return f.gone(e) }); err != nil {
				t.Errorf("%s, 4 registrations lost: still there: %v", e, err)
			}
		})
	}
	loseAll(4)
	wg.Wait()
	for _, e := range f.engines() {
		await(t, patience, e.name+" is back", func() error { return f.renewed(e, before[e]) })
	}
	for _, d := range dialects {
		f.ask(d.hello("And I you?"))
	}
	f.clean(t)
}

// TestDialectExpiryInFlight has the registration of decode expire while it has a
// request, which it finishes, and while it is promised one, which it does not
// get.
func TestDialectExpiryInFlight(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d *dialect) {
		f := newRegistered(t, zmqConfig{
			prefill: 1, decode: 1, dialects: []*dialect{d}, period: 200 * time.Millisecond, ttl: time.Second,
			router: []string{"--decode-wait", "100ms"},
		})
		e := f.decode[0]
		q := d.hello("Are you still registered?")
		for _, role := range []string{decode, prefill} {
			at := map[string]string{decode: "chunk:4", prefill: "accept"}[role]
			open := f.gate(role, enginesim.Fault{Leg: role, Point: at, Gate: "expiry"})
			coming := f.client.async(q.api.path, q.body())
			awaitGate(t, f.role(role), "expiry", 1)
			before := f.look(e)
			e.pausePings(true)
			await(t, patience, "decode has expired", func() error { return f.gone(e) })
			open()
			want := oneOf(right)
			if role == prefill && d.name != "moriio_write" {
				want = oneOf(ending{status: 503, code: "no_decode"})
			}
			if err := checkAny(want, q, receive(t, coming)); err != nil {
				t.Errorf("at %s of %s: %v", at, role, err)
			}
			e.pausePings(false)
			await(t, patience, "decode is back", func() error { return f.renewed(e, before) })
			f.ask(q)
		}
		if d.name == "moriio_write" {
			f.clean(t)
			return
		}
		// There is nobody to give the hand-off back to: prefill keeps it for its time,
		// and with p2p decode for good. That must show.
		await(t, patience, "idle", f.quiet)
		await(t, patience, "hand-offs counted", f.accounted)
		if n := f.metric("baton_handoffs_total", `outcome="abandoned"`); n != 1 {
			t.Errorf("%v hand-offs count as abandoned, want 1", n)
		}
		for _, e := range f.engines() {
			s, err := e.stats()
			if err != nil || s.Halted || s.Dead {
				t.Errorf("%s: stands still %t, died %t, %v", e, s.Halted, s.Dead, err)
			}
		}
		f.checkPairs(t)
	})
}

// restart starts the router anew, with the same arguments.
func (r *router) restart(t *testing.T) {
	t.Helper()
	r.process = start(t, "router", r.args...)
	if _, err := r.awaitLine(patience, `"msg":"serving"`); err != nil {
		t.Fatal(err)
	}
}

// TestDialectRouterRestart ends the router under traffic, at once and with a
// drain, and starts it again.
func TestDialectRouterRestart(t *testing.T) {
	t.Parallel()
	f := newRegistered(t, zmqConfig{
		prefill: 1, decode: 1, dialects: dialects, period: pingPeriod, ttl: shortTTL,
		router:  []string{"--port", freePort(t)},
		engines: []string{"--kv-lease-duration", "3s", "--decode-per-token", "2ms", "--prefill-base", "5ms"},
	})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		var asking []*loops
		for _, d := range dialects {
			asking = append(asking, f.loops(2, d.hello("Who leads?")))
		}
		for _, l := range asking {
			await(t, patience, "traffic", func() error { return l.atLeast(6) })
		}
		ended := time.Now()
		f.signal(signal)
		code, err := f.exitCode(patience)
		if signal == syscall.SIGTERM && (err != nil || code != 0) {
			t.Errorf("%s: exit code %d, %v", signal, code, err)
		}
		f.restart(t)
		up := time.Now()
		await(t, patience, "all workers found again", func() error { return f.ready(len(f.engines())) })
		ready := time.Now()
		t.Logf("%s: up after %s, all workers found within %s", signal, up.Sub(ended).Round(time.Millisecond), ready.Sub(up).Round(time.Millisecond))
		if took := ready.Sub(up); took > pingPeriod+2*time.Second {
			t.Errorf("%s: the workers were found after %s, a period is %s", signal, took, pingPeriod)
		}
		for _, l := range asking {
			enough := l.count() + 6
			await(t, patience, "requests again", func() error { return l.atLeast(enough) })
		}
		cut := 0
		for _, l := range asking {
			for _, failure := range l.end() {
				switch {
				case failure.began.After(ready):
					t.Errorf("%s: a request failed after all was found: %v", signal, failure.err)
				case failure.began.Before(ended) && signal == syscall.SIGTERM:
					t.Errorf("%s: a request failed that was there before: %v", signal, failure.err)
				default:
					cut++
				}
			}
		}
		t.Logf("%s: %d requests failed meanwhile", signal, cut)
		await(t, patience, signal.String()+": idle", f.quiet)
		await(t, patience, signal.String()+": nothing pinned", f.unpinned)
		for _, e := range f.engines() {
			s, err := e.stats()
			switch {
			case err != nil:
				t.Fatal(err)
			case s.Halted, s.Dead, s.DecodesWaiting != 0:
				t.Errorf("%s: %s stands still %t, died %t, %d decodes wait", signal, e, s.Halted, s.Dead, s.DecodesWaiting)
			case s.P2PUnclaimed != 0 && signal == syscall.SIGTERM:
				t.Errorf("%s: %s keeps %d prompts that nobody will fetch", signal, e, s.P2PUnclaimed)
			case s.P2PUnclaimed != 0:
				t.Logf("%s: %s keeps %d prompts whose router was killed", signal, e, s.P2PUnclaimed)
			}
		}
	}
	for _, e := range f.engines() {
		if err := e.innocent(); err != nil {
			t.Error(err)
		}
	}
	f.checkPairs(t)
}

// TestMoRIIOModeChange brings the engines of a fleet from one transfer mode to
// the other, one by one, while requests come. Pairs are always of one mode, and
// only what an engine was doing as it ended may be lost.
func TestMoRIIOModeChange(t *testing.T) {
	t.Parallel()
	read := dialects[slices.IndexFunc(dialects, func(d *dialect) bool { return d.name == "moriio_read" })]
	f := newRegistered(t, zmqConfig{
		prefill: 2, decode: 2, dialects: []*dialect{read}, period: 300 * time.Millisecond, ttl: shortTTL,
	})
	mode := map[string]string{}
	for _, e := range f.engines() {
		mode[e.zmq()] = "READ"
	}
	asking := f.loops(3, read.hello("READ or WRITE?"))
	type span struct{ from, to time.Time }
	var outages []span
	for _, e := range []*engine{f.prefill[0], f.decode[0], f.prefill[1], f.decode[1]} {
		enough := asking.count() + 10
		await(t, patience, "traffic", func() error { return asking.atLeast(enough) })
		f.checkModes(t, mode)
		before := f.look(e)
		outage := span{from: time.Now()}
		e.kill()
		// A leg that was promised to the old process must not find the new one before
		// that has registered.
		await(t, patience, e.name+" has no legs left", func() error {
			// One that nobody has use for any more just expires.
			w, err := f.worker(e)
			if err == nil && (w.Ready || w.Load != 0 || w.Holds != 0) {
				return fmt.Errorf("%+v", w)
			}
			return nil
		})
		e.restart("--transfer-mode", "WRITE", "--defer-timeout", "5s")
		mode[e.zmq()] = "WRITE"
		await(t, patience, e.name+" is another worker", func() error { return f.renewed(e, before) })
		outage.to = time.Now()
		outages = append(outages, outage)
	}
	enough := asking.count() + 20
	await(t, patience, "traffic in the other mode", func() error { return asking.atLeast(enough) })
	for _, failure := range asking.end() {
		during := false
		for _, o := range outages {
			// A request of a few milliseconds that was there when the engine was killed.
			during = during || failure.began.Before(o.from) && o.from.Sub(failure.began) < time.Second
		}
		if during {
			t.Logf("in flight when an engine was killed: %.200s", failure.err)
		} else {
			t.Errorf("began %s after the first kill: %v", failure.began.Sub(outages[0].from), failure.err)
		}
	}
	f.checkModes(t, mode)
	f.clean(t)
	await(t, patience, "nothing pinned by the new processes", f.unpinned)
}

// checkModes wants both engines of each leg to be of one mode. Legs of a process
// that was replaced are forgotten with it.
func (f *fleet) checkModes(t *testing.T, mode map[string]string) {
	t.Helper()
	latest := map[string]time.Time{}
	for _, e := range f.engines() {
		latest[e.zmq()] = e.began
	}
	checked := 0
	for _, e := range f.engines() {
		for _, r := range e.records() {
			m := pairAddrs.FindStringSubmatch(r.Header.Get("X-Request-Id"))
			if m == nil {
				t.Errorf("%s: no pair: %+v", e, r.Header)
				continue
			}
			other := m[1]
			if other == e.zmq() {
				other = m[2]
			}
			if latest[other].After(r.Arrival) {
				continue // it was of another process
			}
			checked++
			if mode[m[1]] != mode[m[2]] {
				t.Errorf("%s: a pair of %s and %s: %+v", e, mode[m[1]], mode[m[2]], r)
			}
			// Only with READ does decode know the blocks. Older bodies are not kept.
			if r.Leg == decode && r.Body != "" && strings.Contains(r.Body, `"remote_block_ids":null`) == (mode[m[2]] == "READ") {
				t.Errorf("%s: a leg of the other mode: %s", e, r.Body)
			}
		}
	}
	if checked == 0 {
		t.Error("no legs to check")
	}
}

// freeze stops the process without ending it, until it gets SIGCONT or the test
// ends.
func (e *engine) freeze() {
	e.t.Helper()
	e.signal(syscall.SIGSTOP)
	e.t.Cleanup(func() { _ = e.cmd.Process.Signal(syscall.SIGCONT) }) // it may have ended
	await(e.t, patience, e.name+" stands still", func() error { return stopped(e.cmd.Process.Pid) })
}

// TestDialectFrozen stops engines without ending them. Once their registrations
// have expired they get no request, what hangs there ends, and when they go on
// they are other workers.
func TestDialectFrozen(t *testing.T) {
	t.Parallel()
	f := newRegistered(t, zmqConfig{
		prefill: 2, decode: 2, dialects: dialects, period: pingPeriod, ttl: shortTTL,
		router:  []string{"--request-timeout-secs", "4"},
		engines: []string{"--decode-per-token", "1ms"},
	})
	before := map[*engine]workerView{}
	var frozen []*engine
	for _, d := range dialects {
		f.ask(d.hello("Warm?"))
		frozen = append(frozen, of(d, f.prefill)[0])
		if d.name != "p2p" { // where prefill would stand still with decode
			frozen = append(frozen, of(d, f.decode)[0])
		}
	}
	for _, e := range frozen {
		before[e] = f.look(e)
		e.freeze()
	}
	// These find frozen engines: each is answered rightly or with an error, in time.
	type hung struct {
		q      question
		answer <-chan *answer
	}
	var hanging []hung
	for _, d := range dialects {
		for i := range 4 {
			q := d.hello(fmt.Sprintf("Cold %d?", i))
			hanging = append(hanging, hung{q, f.client.async(q.api.path, q.body())})
		}
	}
	for _, e := range frozen {
		await(t, patience, e.name+" has expired", func() error { return f.gone(e) })
	}
	for _, h := range hanging {
		a := receive(t, h.answer)
		code, message := a.code()
		switch {
		case h.q.check(a) == nil:
		case a.status >= 500 && message != "":
			t.Logf("%s: %d %s", h.q.model, a.status, code)
		case lostHandoffStream.check(h.q, a) == nil:
			t.Logf("%s: blocks that did not come", h.q.model)
		default:
			t.Errorf("%s: %v", h.q.model, a)
		}
	}
	for _, d := range dialects {
		for i := range 4 {
			f.ask(d.hello(fmt.Sprintf("Anybody? %d", i)))
		}
	}
	await(t, patience, "the router is idle", f.idle)
	for _, e := range frozen {
		e.signal(syscall.SIGCONT)
	}
	for _, e := range frozen {
		await(t, patience, e.name+" is back", func() error { return f.renewed(e, before[e]) })
		for _, r := range e.records() {
			if strings.Contains(r.Body, "Anybody?") {
				t.Errorf("%s was sent a request after it had expired", e)
			}
		}
	}
	for _, e := range frozen {
		d := dialects[slices.IndexFunc(dialects, func(d *dialect) bool { return len(of(d, []*engine{e})) > 0 })]
		await(t, patience, e.name+" is used again", func() error {
			f.ask(d.hello("Thawed?"))
			if w := f.look(e); w.Picked == 0 {
				return fmt.Errorf("%+v", w)
			}
			return nil
		})
	}
	await(t, patience, "idle", f.quiet)
	for _, e := range f.engines() {
		s, err := e.stats()
		if err != nil || s.Halted || s.Dead || s.DecodesWaiting != 0 {
			t.Errorf("%s: stands still %t, died %t, %d decodes wait, %v", e, s.Halted, s.Dead, s.DecodesWaiting, err)
		}
		if s.P2PUnclaimed != 0 { // of a prefill that went on after its request had timed out
			t.Logf("%s: %d prompts not fetched", e, s.P2PUnclaimed)
		}
		if err := e.innocent(); err != nil {
			t.Error(err)
		}
	}
}

// TestP2PFrozenDecode stops a decode engine that prefill is about to send to:
// prefill stands still with it, and goes on with it. Decode has its leg only if
// it is still the worker that it was promised to.
func TestP2PFrozenDecode(t *testing.T) {
	t.Parallel()
	p2p := dialects[slices.IndexFunc(dialects, func(d *dialect) bool { return d.name == "p2p" })]
	f := newRegistered(t, zmqConfig{
		prefill: 1, decode: 1, dialects: []*dialect{p2p}, period: 200 * time.Millisecond, ttl: time.Second,
		engines: []string{"--send-timeout", "0s"}, // as real ones
	})
	q := p2p.hello("Cold?")
	f.ask(q)
	e := f.decode[0]
	before := f.look(e)
	e.freeze()
	coming := f.client.async(q.api.path, q.body())
	halted := func() error {
		s, err := f.prefill[0].stats()
		if err == nil && !s.Halted {
			err = errNotYet
		}
		return err
	}
	await(t, patience, "prefill stands still", halted)
	await(t, patience, "decode has expired", func() error { return f.gone(e) })
	e.signal(syscall.SIGCONT)
	await(t, patience, "decode is back", func() error { return f.renewed(e, before) })
	if err := checkAny(oneOf(right, ending{status: 503, code: "no_decode"}), q, receive(t, coming)); err != nil {
		t.Error(err)
	}
	for range 3 {
		f.ask(q)
	}
	await(t, patience, "idle", f.quiet)
	if err := halted(); err == nil {
		t.Error("prefill stands still")
	}
	f.checkPairs(t)
}
