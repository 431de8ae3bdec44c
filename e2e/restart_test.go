//go:build e2e

package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestRestart kills an engine under load and starts another on its port: the
// router must show another lifetime with figures of its own, lose no request
// but those that the dead engine had, and keep a request that is still being
// carried out for the old lifetime away from the new one.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, role := range []string{regular, prefill, decode} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			restart(t, role)
		})
	}
}

func restart(t *testing.T, role string) {
	cfg := fleetConfig{prefill: 2, decode: 2}
	if role == regular {
		cfg = fleetConfig{regular: 2}
	}
	// A worker's port must refuse for the down threshold before what answers then
	// counts as another process.
	cfg.router = []string{"--health-check-interval-secs", "1", "--health-failure-threshold", "1"}
	f := newFleet(t, cfg)
	old := f.role(role)[0]
	q := question{api: chat, prompt: "Who takes the baton?", tokens: 12, stream: true}
	for range 4 {
		f.ask(q)
	}
	before := f.look(old)
	if before.Picked == 0 || before.Generation == 0 {
		t.Fatalf("the engine was not used: %+v", before)
	}
	// A prefill engine answers at once: there is no request of it to hold on to.
	var stalled *wire
	if role != prefill {
		stalled = f.stall(t, old)
	}

	loops := f.loops(4, q)
	await(t, patience, "requests in the background", func() error { return loops.atLeast(8) })
	old.kill()
	killed := time.Now()
	await(t, patience, "a probe is refused", func() error {
		w, err := f.worker(old)
		if err == nil && (w.State != "pending" || !containsAll(w.LastError, []string{"/health", "connection refused"})) {
			err = fmt.Errorf("%+v", w)
		}
		return err
	})
	if stalled != nil {
		await(t, patience, "only the stalled request left", func() error {
			if w := f.look(old); w.Load != 1 || w.Generation != before.Generation {
				return fmt.Errorf("%+v, want load 1 in generation %d", w, before.Generation)
			}
			return nil
		})
	}

	old.restart("--engine-id", "another-engine")
	var after workerView
	await(t, patience, "the worker is ready again", func() (err error) {
		after, err = f.worker(old)
		if err == nil && !after.Ready {
			err = fmt.Errorf("%+v", after)
		}
		return err
	})
	readmitted := time.Now()
	if after.Generation <= before.Generation {
		t.Errorf("generation is %d, want above %d", after.Generation, before.Generation)
	}
	enough := loops.count() + 16
	await(t, patience, "new requests", func() error { return loops.atLeast(enough) })
	await(t, patience, "the new engine has its share", func() error {
		if w := f.look(old); w.Picked < 2 {
			return fmt.Errorf("%+v", w)
		}
		return nil
	})
	for _, failure := range loops.end() {
		switch {
		case failure.began.After(readmitted):
			t.Errorf("a request failed %s after readmission: %v", failure.began.Sub(readmitted), failure.err)
		case failure.began.After(killed):
			t.Errorf("a request failed that began %s after the kill: %v", failure.began.Sub(killed), failure.err)
		default:
			t.Logf("in flight when the engine was killed: %v", failure.err)
		}
	}

	if stalled != nil {
		await(t, patience, "only the stalled request active", func() error {
			if n := f.metric("baton_requests_active"); n != 1 {
				return fmt.Errorf("%v are active", n)
			}
			return nil
		})
		w := f.look(old)
		if w.Load != 0 || w.Held != 0 {
			t.Errorf("the old request counts for the new lifetime: %+v", w)
		}
		stalled.leave(leaveRST)
		await(t, patience, "the old request is over", f.idle)
		if now := f.look(old); now != w {
			t.Errorf("the end of the old request changed the new lifetime from %+v to %+v", w, now)
		}
	}
	await(t, patience, "idle", f.quiet)
}

// stall starts a request at the engine whose client takes nothing of the answer,
// and returns when the answer is stuck.
func (f *fleet) stall(t *testing.T, e *engine) *wire {
	t.Helper()
	// More than all the buffers on the way can hold.
	q := question{api: completions, prompt: "Go on and on.", tokens: 32000, stream: true}
	body := q.body(map[string]any{"logprobs": 1, "n": 6})
	for range 2 {
		w, id := dialSmall(t, f.addr), newID()
		if err := w.post(q.api.path, id, body); err != nil {
			t.Fatal(err)
		}
		var on *engine
		await(t, patience, "the stalled request arrives", func() error {
			for _, e := range f.role(e.role) {
				if _, err := e.record(id); err == nil {
					on = e
					return nil
				}
			}
			return errors.New("not there")
		})
		if on != e {
			w.leave(leaveRST)
			await(t, patience, "idle", f.quiet)
			continue
		}
		events, since := -1, time.Now()
		await(t, patience, "the answer is stuck", func() error {
			r, err := e.record(id)
			if err != nil {
				return err
			}
			if r.Outcome != "" {
				t.Fatalf("the answer fits into the buffers: %+v", r)
			}
			if r.Events != events {
				events, since = r.Events, time.Now()
			}
			if stuck := time.Since(since); stuck < 300*time.Millisecond || events == 0 {
				return fmt.Errorf("%d events, the last %s ago", events, stuck)
			}
			return nil
		})
		return w
	}
	t.Fatalf("%s gets no request", e)
	return nil
}

// loops are clients that ask the same question again and again.
type loops struct {
	wg   sync.WaitGroup
	stop chan struct{}

	mu       sync.Mutex
	asked    int
	failures []failure
}

type failure struct {
	began time.Time
	err   error
}

func (f *fleet) loops(n int, q question) *loops {
	l := &loops{stop: make(chan struct{})}
	body, want := q.body(), q.want()
	for range n {
		l.wg.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				began := time.Now()
				a := f.client.post(q.api.path, body)
				text, err := q.text(a)
				if err == nil && text != want {
					err = fmt.Errorf("text is %q, want %q", text, want)
				}
				l.mu.Lock()
				l.asked++
				if err != nil {
					l.failures = append(l.failures, failure{began, err})
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

func (l *loops) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

func (l *loops) atLeast(n int) error {
	if got := l.count(); got < n {
		return fmt.Errorf("%d requests were answered", got)
	}
	return nil
}

// end ends the clients and returns what went wrong.
func (l *loops) end() []failure {
	close(l.stop)
	l.wg.Wait()
	return l.failures
}

// TestRestartUnnoticed replaces engines so fast that no probe sees it. The
// connections kept to the old one must not cost a request, and what the next
// hand-off says shows that it is another one.
func TestRestartUnnoticed(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1, router: []string{"--engine-metrics-interval", "0"}})
	q := question{api: chat, prompt: "Was that you?", tokens: 5}
	for range 3 {
		f.ask(q)
		before := f.look(f.prefill[0])
		for _, e := range f.engines() {
			e.kill()
			e.restart("--engine-id", "another-"+newID())
		}
		f.ask(q)
		await(t, patience, "another lifetime of prefill", func() error {
			if w := f.look(f.prefill[0]); w.Generation <= before.Generation || !w.Ready {
				return fmt.Errorf("%+v", w)
			}
			return nil
		})
		f.ask(q)
		if w := f.look(f.prefill[0]); w.Picked != 1 {
			t.Errorf("the new lifetime was picked %d times, want once", w.Picked)
		}
	}
}

// TestRestartByFigures replaces engines that nobody asks for anything: their own
// figures show it, once.
func TestRestartByFigures(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1, regular: 1, router: []string{"--engine-metrics-interval", "150ms"}})
	scraped := func(e *engine, more int) {
		t.Helper()
		s, err := e.stats()
		if err != nil {
			t.Fatal(err)
		}
		from := s.Paths["/metrics"]
		await(t, patience, "figures read", func() error {
			if s, err = e.stats(); err == nil && s.Paths["/metrics"] < from+more {
				err = errNotYet
			}
			return err
		})
	}
	q := question{api: completions, prompt: "Count me.", tokens: 5}
	f.ask(q)
	if a := f.client.post(q.api.path, q.body(map[string]any{"prompt_logprobs": 1})); a.status != http.StatusOK {
		t.Fatal(a)
	}
	for _, e := range f.engines() {
		scraped(e, 2) // with what the requests have counted
		before := f.look(e)
		e.kill()
		e.restart()
		var after workerView
		await(t, patience, "another lifetime of "+e.name, func() error {
			if after = f.look(e); after.Generation <= before.Generation || !after.Ready {
				return fmt.Errorf("%+v", after)
			}
			return nil
		})
		scraped(e, 4)
		if w := f.look(e); w.Generation != after.Generation || w.Picked != 0 {
			t.Errorf("%s: %+v, want it as it was, %+v", e, w, after)
		}
	}
	f.ask(q)
}
