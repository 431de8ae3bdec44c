package health_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

// TestRestart is L16: who refuses connections for as long as it takes to call a
// worker down, and then answers, is another process.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host)
		old := s.ready()
		rank := s.add(worker.Decode, host, worker.AtRank(1))
		synctest.Wait()
		s.net.Kill(host)
		s.until(8 * time.Second)
		s.wantState(old, "pending")
		never := s.add(worker.Prefill, host, 0) // it comes while nobody listens
		s.net.Restore(host)
		s.until(15 * time.Second)

		renewed := s.takeRenewed()
		if len(renewed) != 2 || renewed[0] == renewed[1] {
			t.Errorf("renewed %v, want the two workers that had been ready, once each", renewed)
		}
		for _, w := range []*worker.Worker{old, rank} {
			id := w.ID()
			now := s.worker(id.Role, host, id.Rank)
			if !w.Departed() || now.ID().Generation <= id.Generation {
				t.Errorf("%v is followed by %v", id, now.ID())
			}
			s.wantState(now, "ready")
		}
		if never.Departed() {
			t.Error("a worker that had never been ready was renewed")
		}
		s.wantState(never, "ready")

		s.until(5 * time.Minute)
		if more := s.takeRenewed(); len(more) != 0 {
			t.Errorf("renewed once more: %v", more)
		}
		if got := len(s.log.with(t, `"worker restarted"`)); got != 2 {
			t.Errorf("%d lines say that a worker was restarted", got)
		}
	})
}

// TestStartsUpAfterRestart: a process that answers 503 while it starts is a new
// one all the same.
func TestStartsUpAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		old := s.ready()
		s.net.Kill(host)
		s.until(8 * time.Second)
		e.set("/health", status(503))
		s.net.Restore(host)
		s.until(time.Minute)
		s.wantState(old, "pending")
		if got := s.takeRenewed(); len(got) != 0 {
			t.Errorf("renewed %v before it could serve", got)
		}
		e.set("/health", status(200))
		s.sleep(s.longest())
		if got := s.takeRenewed(); len(got) != 1 || !old.Departed() {
			t.Errorf("renewed %v", got)
		}
	})
}

// TestFlapKeepsState is the other half of L16: whatever else befalls a worker,
// it stays the same one.
func TestFlapKeepsState(t *testing.T) {
	handler := func(answer http.HandlerFunc) func(*stage, *engine) {
		return func(_ *stage, e *engine) { e.set("/health", answer) }
	}
	for _, tt := range []struct {
		name  string
		spoil func(*stage, *engine)
	}{
		{"503", handler(status(503))},
		{"500 of the list", func(_ *stage, e *engine) { e.set("/v1/models", status(500)) }},
		{"no answer", handler(hang)},
		{"closed", handler(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })},
		{"reset", handler(reset)},
		{"stopped", func(s *stage, _ *engine) { s.net.Freeze(host) }},
		{"unreachable", func(s *stage, _ *engine) { s.net.Blackhole(host) }},
		{"refused twice", func(s *stage, _ *engine) {
			s.net.Refuse(host)
			s.sleep(5300 * time.Millisecond)
			s.net.Restore(host)
		}},
		{"refused now and then", func(s *stage, e *engine) {
			e.set("/health", status(503))
			for range 10 {
				s.net.Refuse(host)
				for len(s.takeDials(host)) == 0 {
					s.sleep(50 * time.Millisecond)
				}
				s.net.Restore(host)
				for len(s.takeDials(host)) == 0 {
					s.sleep(50 * time.Millisecond)
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				e := s.serve(host)
				w := s.ready()
				w.Block(worker.Draining) // any state of its own
				tt.spoil(s, e)
				s.sleep(5 * time.Minute)
				s.net.Restore(host)
				s.net.Thaw(host)
				e.set("/health", status(200))
				e.set("/v1/models", list("m"))
				s.sleep(30 * time.Second)
				s.wantState(w, "draining")
				if w.Departed() || len(s.takeRenewed()) != 0 {
					t.Error("a flap made another lifetime of the worker")
				}
			})
		})
	}
}

// TestModelsChange is about models that come and go while a worker runs.
func TestModelsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		e.set("/v1/models", list("base", "lora"))
		w := s.ready()
		e.set("/v1/models", list("base", "next"))
		s.until(29 * time.Second)
		wantModels(t, w, "base lora")
		if s.checker.Recently("lora") || s.checker.Recently("next") {
			t.Error("remembered before it went")
		}
		s.until(30 * time.Second)
		wantModels(t, w, "base next")
		s.wantTimes("the list was read", e.takeSeen("/v1/models"), 0, 30)

		s.until(330 * time.Second)
		if !s.checker.Recently("lora") {
			t.Error("forgotten within five minutes")
		}
		if s.checker.Recently("base") || s.checker.Recently("next") || s.checker.Recently("other") {
			t.Error("what is still served, or never was, counts as gone")
		}
		s.sleep(time.Second)
		if s.checker.Recently("lora") {
			t.Error("remembered after five minutes")
		}

		e.set("/v1/models", list("next")) // base goes once more after it came back
		s.sleep(30 * time.Second)
		e.set("/v1/models", list("base"))
		s.sleep(4 * time.Minute)
		e.set("/v1/models", list("next"))
		s.sleep(4 * time.Minute)
		if !s.checker.Recently("base") {
			t.Error("the last time a model went does not count")
		}
	})
}

func wantModels(t *testing.T, w *worker.Worker, want string) {
	t.Helper()
	if got := strings.Join(w.Models().Names(), " "); got != want {
		t.Errorf("models %q, want %q", got, want)
	}
}

func TestRecentlyAfterRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host)
		s.remove(s.ready())
		s.sleep(5 * time.Minute)
		if !s.checker.Recently("m") {
			t.Error("the model of a worker that left is forgotten within five minutes")
		}
		s.sleep(time.Millisecond)
		if s.checker.Recently("m") {
			t.Error("the model of a worker that left is remembered after five minutes")
		}
	})
}

// TestModelMemoryIsBounded: engines that list more and more names cannot fill it,
// and what is too old makes room.
func TestModelMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		var many []string
		for i := range 10_000 {
			many = append(many, strconv.Itoa(i))
		}
		e.set("/v1/models", list(many...))
		s.remove(s.ready())
		e.set("/v1/models", list("late"))
		s.remove(s.ready())
		if !s.checker.Recently("0") || !s.checker.Recently("9999") || s.checker.Recently("late") {
			t.Error("the memory is not bounded as it should be")
		}
		s.sleep(5*time.Minute + time.Second)
		s.remove(s.ready())
		if !s.checker.Recently("late") || s.checker.Recently("0") {
			t.Error("old names made no room")
		}
	})
}

// TestListThatMayBeReadLater: a worker taken to serve any model is asked again.
func TestListThatMayBeReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		e.set("/v1/models", status(404))
		w := s.ready()
		if w.Models() != nil {
			t.Errorf("models %q, want any", w.Models().Names())
		}
		e.set("/v1/models", list("m"))
		s.until(30 * time.Second)
		wantModels(t, w, "m")
	})
}

// TestKeys is about engines that were started with --api-key.
func TestKeys(t *testing.T) {
	const key = "sk-do-not-tell"
	for _, tt := range []struct {
		name, key string
		known     bool
	}{
		{"key", key, true},
		{"no key", "", false},
		{"wrong key", "sk-wrong-but-secret", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t, func(c *health.Config) { c.APIKey = tt.key })
				engine, err := enginesim.New(enginesim.Config{APIKey: key, Models: []string{"m"}})
				if err != nil {
					t.Fatal(err)
				}
				listener, err := s.net.Listen(host)
				if err != nil {
					t.Fatal(err)
				}
				s.serveHTTP(listener, engine.NewServer())
				t.Cleanup(engine.Close)
				w := s.ready()
				if known := w.Models() != nil; known != tt.known {
					t.Errorf("models known: %t, want %t", known, tt.known)
				}
				remove := engine.Fault(enginesim.Fault{Path: "/health", Action: "status", Status: 500})
				s.sleep(time.Minute)
				remove()
				s.sleep(time.Minute)
				s.net.Kill(host)
				s.sleep(time.Minute)
				s.net.Restore(host)
				s.sleep(time.Minute)
				s.wantState(s.worker(worker.Regular, host, 0), "ready")
				for _, secret := range []string{"sk-", "Bearer"} {
					if strings.Contains(s.log.String()+s.checker.LastError(w), secret) {
						t.Errorf("%q was logged", secret)
					}
				}
			})
		})
	}
}

func TestAuthorizationOfEveryProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(c *health.Config) { c.APIKey = "k" })
		e := s.serve(host)
		s.ready()
		s.sleep(time.Minute)
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, p := range e.seen {
			if p.auth != "Bearer k" {
				t.Errorf("%s at %v with Authorization %q", p.path, p.at, p.auth)
			}
		}
	})
}

// TestRedirectIsNotFollowed: a key goes to the worker and to nobody else.
func TestRedirectIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(c *health.Config) { c.APIKey = "k" })
		s.serve(host).set("/health", http.RedirectHandler("http://elsewhere:80/", http.StatusTemporaryRedirect).ServeHTTP)
		elsewhere := s.serve("elsewhere:80")
		w := s.add(worker.Regular, host, 0)
		s.sleep(time.Minute)
		s.wantState(w, "pending")
		if got := elsewhere.takeSeen("/"); len(got) != 0 {
			t.Errorf("asked elsewhere at %v", got)
		}
	})
}

// TestUnreachableIsSaid is case 2.14: a wrong port is named at once and now and
// then, with the error and the time of the next attempt.
func TestUnreachableIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.add(worker.Regular, "wrong:8000", 0)
		s.add(worker.Decode, "wrong:8000", 0)
		s.until(10 * time.Minute)
		got := s.log.with(t, "http://wrong:8000")
		if n := len(got); n < 18 || n > 20 {
			t.Errorf("%d lines in ten minutes, want one in each 30 s", n)
		}
		for i, l := range got {
			if l.Level != "WARN" || !strings.Contains(l.Err, "connection refused") {
				t.Errorf("line %d: %s", i, l.text)
			}
			if i == 0 {
				if l.Time.Sub(s.start) != 0 || l.Next != 250*time.Millisecond {
					t.Errorf("the first line comes at %v and says %v", l.Time.Sub(s.start), l.Next)
				}
				continue
			}
			if gap := l.Time.Sub(got[i-1].Time); gap < 30*time.Second || gap > 32*time.Second {
				t.Errorf("line %d comes %v after the one before", i, gap)
			}
			if l.Next != 2*time.Second {
				t.Errorf("line %d names %v, want 2s", i, l.Next)
			}
		}
	})
}

func TestTroubleOfReadyWorkerIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		s.ready()
		e.set("/health", status(503))
		s.until(6 * time.Second)
		got := s.log.with(t, `"probe failed"`)
		if len(got) != 1 || got[0].Next != 5*time.Second || !strings.Contains(got[0].Err, "503") {
			t.Errorf("got %+v", got)
		}
		e.set("/health", status(200))
		s.until(11 * time.Second)
		e.set("/health", status(503))
		s.until(16 * time.Second)
		if got := s.log.with(t, `"probe failed"`); len(got) != 2 {
			t.Errorf("%d lines, want one for each time it went wrong", len(got))
		}
	})
}

// TestGoroutinesEnd is case 2.24: churn leaves nothing behind.
func TestGoroutinesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve("good:8000")
		s.serve("hung:8000").set("/health", hang)
		for range 3 {
			var workers []*worker.Worker
			for i := range 50 {
				workers = append(workers,
					s.add(worker.Regular, fmt.Sprintf("good:8000/%d", i), 0),
					s.add(worker.Prefill, fmt.Sprintf("hung:8000/%d", i), 0),
					s.add(worker.Decode, fmt.Sprintf("nobody-%d:8000", i), 0))
			}
			s.add(worker.Decode, "good:8000/0", 0)
			s.sleep(time.Second)
			if n := checkers(); n != len(workers) {
				t.Errorf("%d goroutines probe %d servers", n, len(workers))
			}
			for _, w := range workers {
				s.remove(w)
			}
			s.sleep(5 * time.Second) // hung probes run into their time-out
			s.takeDials("")
			s.sleep(time.Minute)
			s.mu.Lock()
			for _, d := range s.dials {
				if d.addr != "good:8000" {
					t.Errorf("%s is still probed", d.addr)
				}
			}
			s.mu.Unlock()
			s.remove(s.worker(worker.Decode, "good:8000/0", 0))
			synctest.Wait()
			if n := checkers(); n != 0 {
				t.Errorf("%d goroutines still probe", n)
			}
		}
	})
}

// checkers returns how many goroutines probe a server.
func checkers() int {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	return strings.Count(string(buf), "(*Checker).runBase(")
}

// TestRemovedWhileProbed: nobody hears of the trouble of a worker that has left.
func TestRemovedWhileProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host).set("/health", hang)
		w := s.add(worker.Regular, host, 0)
		s.sleep(time.Second)
		s.remove(w)
		s.sleep(time.Minute)
		if got := s.log.String(); got != "" {
			t.Errorf("logged %s", got)
		}
		if got := len(s.takeDials(host)); got != 1 {
			t.Errorf("probed %d times", got)
		}
	})
}

// TestRunEndsDuringProbe: Run does not wait for a time-out, and a probe that was
// cut off says nothing of its worker.
func TestRunEndsDuringProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(c *health.Config) { c.DownAfter = 1 })
		e := s.serve(host)
		w := s.ready()
		e.set("/health", hang)
		s.until(6 * time.Second)
		s.cancel()
		synctest.Wait()
		if n := s.net.Open(); n != 0 {
			t.Errorf("%d connections are open", n)
		}
		s.wantState(w, "ready")
		if got := s.log.with(t, `"probe failed"`); len(got) != 0 {
			t.Errorf("logged %v", got)
		}
	})
}

// TestAddedBeforeRun: workers may come before the checker runs.
func TestAddedBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host)
		w := s.add(worker.Regular, host, 0) // nothing else has run in this bubble
		if w.Blocked() == 0 {
			t.Error("ready before it was probed")
		}
		synctest.Wait()
		s.wantState(w, "ready")
	})
}
