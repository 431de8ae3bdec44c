package health_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

const scaling = `{"error":"The model is currently scaling. Please try again later."}`

// answer is an answer with a body.
func answer(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprint(w, text)
	}
}

// sources are the ways in which a server says that it takes no work.
var sources = []struct {
	name string
	say  func(*engine, *process, bool)
	took time.Duration // until it is seen, at the most
}{
	{"sleep state", func(_ *engine, p *process, asleep bool) { p.set(func(r *shown) { r.asleep = asleep }) }, longRound},
	{"is_sleeping", func(e *engine, _ *process, asleep bool) {
		e.set("/is_sleeping", body(fmt.Sprintf(`{"is_sleeping":%t}`, asleep)))
	}, longRound},
	{"is_paused", func(e *engine, _ *process, asleep bool) {
		e.set("/is_paused", body(fmt.Sprintf(`{"is_paused":%t}`, asleep)))
	}, longRound},
	{"scaling", func(e *engine, _ *process, asleep bool) {
		if asleep {
			e.set("/health", answer(503, scaling))
		} else {
			e.set("/health", status(200))
		}
	}, 5 * time.Second},
}

// TestAsleep is case 2.31: a server that takes no work gets none, at once and
// for as long as it says so; what runs there goes on.
func TestAsleep(t *testing.T) {
	for _, tt := range sources {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(0, shown{})
				e := s.serveProcess(host, p)
				tt.say(e, p, false)
				workers := []*worker.Worker{s.add(worker.Regular, host, 0), s.add(worker.Decode, host, worker.AtRank(1))}
				synctest.Wait()
				held := s.lease(workers[0], 3)
				emptied := uint32(0)
				for range 3 {
					tt.say(e, p, true)
					s.sleep(tt.took)
					if tt.name == "sleep state" || tt.name == "is_sleeping" {
						emptied++ // the others keep their cache
					}
					for _, w := range workers {
						s.wantState(w, "asleep")
						if got := w.Emptied(); got != emptied {
							t.Errorf("%v was emptied %d times, want %d", w.ID(), got, emptied)
						}
					}
					s.sleep(5 * time.Minute)
					joined := s.add(worker.Prefill, host, 0)
					if joined.Blocked()&worker.Asleep == 0 {
						t.Errorf("who joins a sleeping server is %v", joined.Blocked())
					}
					synctest.Wait()
					for _, w := range append(workers, joined) {
						if w.Blocked()&worker.Asleep == 0 || w.Blocked()&worker.Down != 0 {
							t.Errorf("after minutes %v is %v", w.ID(), w.Blocked())
						}
					}
					if got := workers[0].Load(); got != 3 {
						t.Errorf("%d of 3 leases are left", got)
					}
					tt.say(e, p, false)
					s.sleep(tt.took)
					for _, w := range append(workers, joined) {
						s.wantState(w, "ready")
					}
					s.remove(joined)
				}
				release(held)
				if n := len(s.log.with(t, `"worker asleep"`)); n != 3 {
					t.Errorf("%d lines say that it is asleep", n)
				}
				if n := len(s.log.with(t, `"worker awake"`)); n != 3 {
					t.Errorf("%d lines say that it is awake", n)
				}
				if got := s.takeRenewed(); got != nil {
					t.Errorf("renewed %v", got)
				}
			})
		})
	}
}

// TestAsleepFromTheStart: whoever asks for no work before it is admitted gets
// none.
func TestAsleepFromTheStart(t *testing.T) {
	for _, tt := range sources {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(0, shown{})
				e := s.serveProcess(host, p)
				tt.say(e, p, true)
				for _, path := range []string{"/is_paused", "/is_sleeping", "/metrics"} {
					e.set(path, slow(500*time.Millisecond, e.answer(path)))
				}
				w := s.add(worker.Regular, host, 0)
				for w.Blocked() != 0 && s.since() < time.Minute {
					s.sleep(100 * time.Millisecond)
				}
				if w.Blocked() == 0 {
					t.Errorf("ready at %v", s.since())
				}
				tt.say(e, p, false)
				s.sleep(2 * longRound)
				s.wantState(w, "ready")
			})
		})
	}
}

// answer returns the answer set for a path.
func (e *engine) answer(path string) http.HandlerFunc {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.answers[path]; a != nil {
		return a
	}
	return status(http.StatusNotFound)
}

// TestSeveralSources: a server takes work again when none says otherwise.
func TestSeveralSources(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{})
		e := s.serveProcess(host, p)
		w := s.ready()
		for _, source := range sources {
			source.say(e, p, true)
			s.sleep(longRound)
			s.wantState(w, "asleep")
		}
		for i, source := range sources {
			s.wantState(w, "asleep")
			source.say(e, p, false)
			s.sleep(longRound)
			if last := i == len(sources)-1; !last {
				s.wantState(w, "asleep")
			}
		}
		s.wantState(w, "ready")
		if n := len(s.log.with(s.t, `"worker asleep"`)); n != 1 {
			s.t.Errorf("%d lines say that it is asleep", n)
		}
	})
}

// TestAsleepIsNotDown: neither does it count towards down, nor does it end it.
func TestAsleepIsNotDown(t *testing.T) {
	inBubble(t, func(s *stage) {
		e := s.serveProcess(host, newProcess(0, shown{}))
		w := s.ready()
		e.set("/health", status(503))
		s.until(11 * time.Second) // two failures
		e.set("/health", answer(503, scaling))
		s.until(time.Minute)
		s.wantState(w, "asleep")
		if got := s.checker.LastError(w); got == "" {
			s.t.Error("no last error")
		}
		s.wantWarnings("worker down", 0)
		e.set("/health", status(503))
		s.until(2 * time.Minute)
		s.wantState(w, "down")
		e.set("/health", answer(503, scaling))
		s.until(3 * time.Minute)
		s.wantState(w, "down,asleep")
		e.set("/health", status(200))
		s.sleep(10 * time.Second)
		s.wantState(w, "ready")
	})
}

// TestOther503 are failures as ever.
func TestOther503(t *testing.T) {
	for _, text := range []string{"", "scaling", `{"error":{"message":"scaling"}}`, `{"error":"no"}`, `["scaling"]`, fmt.Sprintf(`{"error":"scaling%2000s"}`, "")} {
		inBubble(t, func(s *stage) {
			e := s.serveProcess(host, newProcess(0, shown{}))
			w := s.ready()
			e.set("/health", answer(503, text))
			s.until(time.Minute)
			s.wantState(w, "down")
		})
	}
	inBubble(t, func(s *stage) { // only a 503 is one
		e := s.serveProcess(host, newProcess(0, shown{}))
		w := s.ready()
		e.set("/health", answer(500, scaling))
		s.until(time.Minute)
		s.wantState(w, "down")
	})
}

// TestScalingHidesFigures: a server that is being scaled answers 503 to
// everything; it comes back with what it had.
func TestScalingHidesFigures(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{running: 2})
		e := s.serveProcess(host, p)
		e.set("/is_paused", body(`{"is_paused":false}`))
		w := s.ready()
		paths := []string{"/health", "/metrics", "/is_paused", "/is_sleeping", "/v1/models"}
		before := make(map[string]http.HandlerFunc)
		for _, path := range paths {
			before[path] = e.answer(path)
			e.set(path, answer(503, scaling))
		}
		s.sleep(longRound)
		s.wantState(w, "asleep")
		s.wantForeign(w, 2)
		for _, path := range paths {
			e.set(path, before[path])
		}
		s.sleep(longRound)
		s.wantState(w, "ready")
		e.set("/is_paused", body(`{"is_paused":true}`))
		s.sleep(longRound)
		s.wantState(w, "asleep")
		s.wantWarnings(noFigures, 0)
	})
}

// TestControlPaths: a path that the server does not have is asked for once, one
// that fails again and again.
func TestControlPaths(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		again  bool
	}{
		{"not found", status(404), false},
		{"unauthorized", status(401), false},
		{"method not allowed", status(405), false},
		{"501", status(501), false},
		{"a page", body("<html>"), false},
		{"false", body(`{"is_paused":false}`), true},
		{"another field", body(`{"paused":true}`), true},
		{"another type", body(`{"is_paused":"true"}`), true},
		{"unavailable", status(503), true},
		{"server error", status(500), true},
		{"bad gateway", status(502), true},
		{"hang", hang, true},
		{"reset", reset, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				e := s.serveProcess(host, newProcess(0, shown{}))
				e.set("/is_paused", tt.answer)
				w := s.add(worker.Regular, host, 0)
				s.sleep(5 * time.Minute)
				s.wantState(w, "ready")
				asked := len(e.takeSeen("/is_paused"))
				if (asked > 50) != tt.again || !tt.again && asked != 1 {
					t.Errorf("asked %d times", asked)
				}
				e.set("/is_paused", body(`{"is_paused":true}`))
				s.sleep(longRound)
				if asleep := w.Blocked()&worker.Asleep != 0; asleep != tt.again {
					t.Errorf("it is %v", w.Blocked())
				}
				s.remove(w) // a newcomer is asked anew
				w = s.add(worker.Regular, host, 0)
				s.sleep(time.Second)
				s.wantState(w, "asleep")
			})
		})
	}
}

// TestPausedWhileItFails: an error says neither this nor that, but a path that
// has gone says nothing more.
func TestPausedWhileItFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		want   string
	}{
		{"unavailable", status(503), "asleep"},
		{"hang", hang, "asleep"},
		{"not found", status(404), "ready"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				e := s.serveProcess(host, newProcess(0, shown{}))
				e.set("/is_paused", body(`{"is_paused":true}`))
				w := s.add(worker.Regular, host, 0)
				s.sleep(time.Second)
				s.wantState(w, "asleep")
				e.set("/is_paused", tt.answer)
				s.sleep(time.Minute)
				s.wantState(w, tt.want)
			})
		})
	}
}

// TestStaleSleepState: figures that are too old do not keep a worker asleep.
func TestStaleSleepState(t *testing.T) {
	inBubble(t, func(s *stage) {
		e := s.serveProcess(host, newProcess(0, shown{asleep: true}))
		w := s.admit()
		s.wantState(w, "asleep")
		e.set("/metrics", hang)
		last := w.Engine().At
		s.until(last.Add(3*interval - time.Millisecond).Sub(s.start))
		s.wantState(w, "asleep")
		s.sleep(time.Millisecond)
		s.wantState(w, "ready")
	})
}

// TestHangingMetricsDelayNoPause: what is known of a pause waits for no figures.
func TestHangingMetricsDelayNoPause(t *testing.T) {
	inBubble(t, func(s *stage) {
		e := s.serveProcess(host, newProcess(0, shown{}))
		e.set("/is_paused", body(`{"is_paused":false}`))
		w := s.ready()
		e.set("/metrics", hang)
		s.sleep(time.Minute)
		e.takeSeen("")
		e.set("/is_paused", body(`{"is_paused":true}`))
		for e.takeSeen("/is_paused") == nil {
			s.sleep(50 * time.Millisecond)
		}
		s.wantState(w, "asleep")
	})
}

// TestSleepersAreKeptApart: each server says it for itself.
func TestSleepersAreKeptApart(t *testing.T) {
	inBubble(t, func(s *stage) {
		s.serveProcess(host, newProcess(0, shown{asleep: true}))
		s.serveProcess("other:1", newProcess(0, shown{}))
		w, other := s.admit(), s.add(worker.Regular, "other:1", 0)
		s.sleep(time.Minute)
		s.wantState(w, "asleep")
		s.wantState(other, "ready")
	}, func(c *health.Config) { c.ModelsEvery = time.Second })
}
