package health_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

const detectionOff = "restart detection is off"

// wantRenewed checks whose renewal was asked for since the last call.
func (s *stage) wantRenewed(when string, want ...*worker.Worker) {
	s.t.Helper()
	got := s.takeRenewed()
	for _, w := range want {
		i := slices.Index(got, w.ID())
		if i < 0 {
			s.t.Errorf("%s: %v was not renewed", when, w.ID())
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	if len(got) > 0 {
		s.t.Errorf("%s: renewed %v too", when, got)
	}
}

// present returns the worker that is now where w was.
func (s *stage) present(w *worker.Worker) *worker.Worker {
	s.t.Helper()
	id := w.ID()
	return s.worker(id.Role, strings.TrimPrefix(id.URL, "http://"), id.Rank)
}

// awaitDate waits until the last read of the worker's figures is so old that its
// Date tells it from a process that starts at this moment.
func (s *stage) awaitDate(w *worker.Worker) {
	for time.Since(w.Engine().At) < time.Second {
		s.sleep(100 * time.Millisecond)
	}
}

// TestSignsOfRestart: another process is known by its start or by its counters,
// and by nothing else.
func TestSignsOfRestart(t *testing.T) {
	unknown := func(p *process) { p.start = time.Time{} }
	for _, tt := range []struct {
		name    string
		before  func(*process) // edits a busy process of two ranks
		after   func(*process)
		restart bool
	}{
		{"start time", func(p *process) { p.ranks = []shown{{}, {}} }, func(p *process) { p.start = time.Now() }, true},
		{"start time, and it has worked", nil, func(p *process) {
			p.start = time.Now()
			p.ranks[0].prompt *= 2
		}, true},
		{"earlier start time", nil, func(p *process) { p.start = p.start.Add(-time.Hour) }, false},
		{"no start time any more", nil, unknown, false},
		{"start time at last", unknown, func(p *process) { p.start = time.Now().Add(-time.Minute) }, false},
		{"all counters", unknown, func(p *process) { p.ranks = []shown{{}, {}} }, true},
		{"prompt tokens", unknown, func(p *process) { p.ranks[0].prompt-- }, true},
		{"generation tokens", unknown, func(p *process) { p.ranks[0].generation-- }, true},
		{"requests", unknown, func(p *process) { p.ranks[0].done-- }, true},
		{"of one rank", unknown, func(p *process) { p.ranks[1].done-- }, true},
		{"one lower, another higher", unknown, func(p *process) {
			p.ranks[0].prompt += 5000
			p.ranks[0].done--
		}, true},
		{"more of all", unknown, func(p *process) { p.ranks[0] = shown{prompt: 1001, generation: 101, done: 11} }, false},
		{"the same", nil, func(*process) {}, false},
		{"less load", func(p *process) { p.ranks[0].running, p.ranks[0].usage = 9, 0.9 }, func(p *process) { p.ranks[0].running, p.ranks[0].usage = 0, 0 }, false},
		{"a smaller cache", nil, func(p *process) { p.ranks[0].tokens = 16 }, false},
		{"a rank has gone", nil, func(p *process) { p.ranks = p.ranks[:1] }, false},
		{"a rank has come", nil, func(p *process) { p.ranks = append(p.ranks, busy) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(0, busy, busy)
				if tt.before != nil {
					tt.before(p)
				}
				s.serveProcess(host, p)
				w := s.ready()
				s.sleep(time.Minute)
				s.wantRenewed("before")
				s.awaitDate(w)
				p.mu.Lock()
				tt.after(p)
				p.mu.Unlock()
				s.sleep(longRound)
				if tt.restart {
					s.wantRenewed("after", w)
					if now := s.present(w); now == w || now.ID().Generation <= w.ID().Generation {
						t.Errorf("%v is followed by %v", w.ID(), now.ID())
					}
				}
				s.sleep(10 * time.Minute)
				s.wantRenewed("later")
				s.wantState(s.present(w), "ready")
				s.wantWarnings("", 0)
			})
		})
	}
}

// TestRestartRenewsAll: one sign is that of all workers of the server that have
// been ready, and of no other server's.
func TestRestartRenewsAll(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, busy)
		e := s.serveProcess(host, p)
		s.serveProcess("other:1", newProcess(0, busy))
		other := s.add(worker.Regular, "other:1", 0)
		var workers []*worker.Worker
		for _, role := range worker.Roles() {
			for _, rank := range []worker.Rank{0, worker.AtRank(0), worker.AtRank(1)} {
				workers = append(workers, s.add(role, host, rank))
			}
		}
		s.sleep(longRound)
		held := s.lease(workers[0], 2)
		e.set("/v1/models", status(500))
		p.set(func(r *shown) { r.running, r.usage, r.asleep = 5, 0.97, true })
		never := s.add(worker.Regular, host, worker.AtRank(2))
		s.sleep(longRound)
		s.wantState(never, "pending,asleep,full")
		p.restart()
		e.set("/metrics", func(w http.ResponseWriter, r *http.Request) {
			p.ServeHTTP(w, r)
			e.set("/metrics", hang) // the new lifetimes learn nothing more
		})
		s.sleep(longRound)
		s.wantRenewed("all that had been ready", workers...)
		s.wantState(never, "pending")
		s.wantForeign(never, 0)
		if never.Departed() || other.Departed() {
			s.t.Error("others were renewed too")
		}
		if got := workers[0].Load(); got != 2 {
			s.t.Errorf("%d of 2 leases are left on the old lifetime", got)
		}
		if now := s.present(workers[0]); now.Load() != 0 {
			s.t.Errorf("the new lifetime has %d leases", now.Load())
		}
		release(held)
		if n := len(s.log.with(s.t, `"worker restarted"`)); n != len(workers) {
			s.t.Errorf("%d lines say so, want one for each of %d", n, len(workers))
		}
	})
}

// TestTwoSigns: two signs within a minute, with no failed connect between, mean
// that the signs are wrong, for that URL and for good.
func TestTwoSigns(t *testing.T) {
	inBubble(t, func(s *stage) {
		p, other := newProcess(0, busy), newProcess(0, busy)
		s.serveProcess(host, p)
		s.serveProcess("other:1", other)
		first := s.ready()
		bystander := s.add(worker.Regular, "other:1", 0)
		s.sleep(time.Minute)
		p.restart()
		s.sleep(longRound)
		s.wantRenewed("the first", first)
		p.set(func(r *shown) { *r = busy })
		s.sleep(30 * time.Second)
		p.restart()
		s.sleep(longRound)
		s.wantRenewed("the second")
		s.wantWarnings(detectionOff, 1)
		second := s.present(first)
		for range 5 {
			p.set(func(r *shown) { *r = busy })
			s.sleep(5 * time.Minute)
			p.restart()
		}
		s.checker.ConnectFailed(second, refused())
		p.restart()
		s.sleep(time.Minute)
		s.wantRenewed("when it is off")

		s.remove(second) // other lifetimes at that URL
		s.sleep(time.Minute)
		third := s.admit()
		s.sleep(time.Minute)
		p.restart()
		s.sleep(time.Minute)
		s.wantRenewed("when it is off, for a later lifetime")
		s.wantWarnings(detectionOff, 1)
		s.wantState(third, "ready")
		p.set(func(r *shown) { r.running = 3 })
		s.sleep(longRound)
		s.wantForeign(third, 3) // the figures count all the same

		other.restart() // it was busy
		s.sleep(longRound)
		s.wantRenewed("at another URL", bystander)
	})
}

// TestSignsFarApart: a process that restarts again after more than a minute has
// restarted again.
func TestSignsFarApart(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, busy)
		s.serveProcess(host, p)
		w := s.ready()
		for range 10 {
			p.set(func(r *shown) { *r = busy })
			s.sleep(time.Minute + longRound)
			p.restart()
			s.sleep(longRound)
			s.wantRenewed("one of many", w)
			w = s.present(w)
		}
		s.wantWarnings("", 0)
	})
}

// TestFailedConnectBetween: a second restart that was seen to be one counts.
func TestFailedConnectBetween(t *testing.T) {
	for _, tt := range []struct {
		name    string
		between func(*stage, *worker.Worker)
		counts  bool
	}{
		{"leg", func(s *stage, w *worker.Worker) { s.checker.ConnectFailed(w, refused()) }, true},
		{"probe or figures", func(s *stage, _ *worker.Worker) {
			s.net.Refuse(host)
			s.sleep(5 * time.Second)
			s.net.Restore(host)
		}, true},
		{"leg that timed out", func(s *stage, w *worker.Worker) {
			s.checker.ConnectFailed(w, fmt.Errorf("connect: %w", http.ErrHandlerTimeout))
		}, false},
		{"nothing", func(*stage, *worker.Worker) {}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(0, busy)
				s.serveProcess(host, p)
				w := s.ready()
				s.sleep(time.Minute)
				p.restart()
				s.sleep(longRound)
				s.wantRenewed("the first", w)
				w = s.present(w)
				p.set(func(r *shown) { *r = busy })
				s.sleep(longRound)
				p.restart()
				tt.between(s, w)
				s.sleep(2 * longRound)
				if tt.counts {
					s.wantRenewed("the second", w)
					s.wantWarnings(detectionOff, 0)
				} else {
					s.wantRenewed("the second")
					s.wantWarnings(detectionOff, 1)
				}
				s.wantState(s.present(w), "ready")
			})
		})
	}
}

// TestRefusedProbeBetween and no figures are read meanwhile.
func TestRefusedProbeBetween(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, busy)
		s.serveProcess(host, p)
		w := s.ready()
		s.sleep(time.Minute)
		for range 3 {
			p.set(func(r *shown) { *r = busy })
			p.restart()
			s.net.Refuse(host)
			s.takeDials(host)
			for s.takeDials(host) == nil {
				s.sleep(10 * time.Millisecond)
			}
			s.net.Restore(host)
			s.sleep(time.Second)
			s.wantRenewed("after a refused probe", w)
			w = s.present(w)
			s.wantState(w, "ready")
		}
	}, func(c *health.Config) { c.EngineInterval = time.Hour })
}

// TestSeveralProcesses behind one address: at most one lifetime is lost to them.
func TestSeveralProcesses(t *testing.T) {
	pick := map[string]func(n, of int) int{
		"in turn":    func(n, of int) int { return n % of },
		"at random":  func(_, of int) int { return rand.IntN(of) },
		"in batches": func(n, of int) int { return n / 3 % of },
	}
	for name, next := range pick {
		for _, exported := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, start time %t", name, exported), func(t *testing.T) {
				inBubble(t, func(s *stage) {
					var processes []*process
					for i := range 4 {
						p := newProcess(0, shown{prompt: 1000 * i, generation: 500 * i, done: 10 * i, running: 1})
						p.start = p.start.Add(time.Duration(i) * time.Second)
						if !exported {
							p.start = time.Time{}
						}
						processes = append(processes, p)
					}
					n := 0
					s.serve(host).set("/metrics", func(w http.ResponseWriter, r *http.Request) {
						p := processes[next(n, len(processes))]
						n++
						p.set(func(r *shown) { r.prompt++ })
						p.ServeHTTP(w, r)
					})
					w := s.admit()
					s.sleep(20 * time.Minute)
					if got := s.takeRenewed(); len(got) > 1 {
						t.Errorf("renewed %v", got)
					}
					s.wantWarnings(detectionOff, 1)
					s.wantState(s.present(w), "ready")
					s.wantForeign(s.present(w), 1)
				})
			})
		}
	}
}

// TestStartInTheSameSecond: a Date is that of a whole second, so a process that
// started within it may be the one that gave it.
func TestStartInTheSameSecond(t *testing.T) {
	for _, tt := range []struct {
		after   time.Duration // from the last Date to the start
		restart bool
	}{{0, false}, {time.Millisecond, false}, {999 * time.Millisecond, false}, {time.Second, true}, {1001 * time.Millisecond, true}} {
		t.Run(tt.after.String(), func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(300*time.Millisecond, shown{})
				s.serveProcess(host, p)
				w := s.ready()
				s.sleep(time.Minute)
				date := w.Engine().At.Add(p.skew).Truncate(time.Second)
				p.mu.Lock()
				p.start = date.Add(tt.after)
				p.mu.Unlock()
				s.sleep(longRound)
				if tt.restart {
					s.wantRenewed("after", w)
				} else {
					s.wantRenewed("after")
				}
			})
		})
	}
}

// TestClocks: whatever the engine's clock shows, it is compared with itself
// alone.
func TestClocks(t *testing.T) {
	for _, skew := range []time.Duration{-20 * 365 * 24 * time.Hour, -time.Hour, -time.Second, 0, time.Second, time.Hour, 20 * 365 * 24 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(skew, shown{})
				s.serveProcess(host, p)
				w := s.ready()
				s.sleep(10 * time.Minute)
				s.wantRenewed("idle")
				s.awaitDate(w)
				p.restart()
				s.sleep(longRound)
				s.wantRenewed("restarted", w)
				s.wantWarnings("", 0)
			})
		})
	}
}

// TestDateOfAProxy: a Date that is not the engine's own makes no restart of a
// process that is known by its start.
func TestDateOfAProxy(t *testing.T) {
	for _, off := range []time.Duration{-24 * time.Hour, -time.Minute, time.Hour} {
		inBubble(t, func(s *stage) {
			p := newProcess(0, busy)
			p.start = p.start.Add(-off) // while skew, 0, is that of the proxy
			s.serveProcess(host, p)
			s.ready()
			s.sleep(20 * time.Minute)
			s.wantRenewed("behind a proxy")
			s.wantWarnings("", 0)
		})
	}
}

// TestNoDate: without a Date the start says nothing, and the counters do.
func TestNoDate(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{})
		s.serve(host).set("/metrics", func(w http.ResponseWriter, r *http.Request) {
			p.mu.Lock()
			defer p.mu.Unlock()
			w.Header()["Date"] = nil
			fmt.Fprint(w, p.text())
		})
		w := s.ready()
		s.sleep(time.Minute)
		p.restart()
		s.sleep(time.Minute)
		s.wantRenewed("by its start")
		p.set(func(r *shown) { *r = busy })
		s.sleep(time.Minute)
		p.restart()
		s.sleep(longRound)
		s.wantRenewed("by its counters", w)
	})
}

// TestNeverRestarted is a property: an hour of reads makes no restart of an
// engine, idle or busy, with whatever clock, that does not restart.
func TestNeverRestarted(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	inBubble(t, func(s *stage) {
		s.sleep(time.Duration(random.Int64N(int64(time.Second))))
		for i := range 6 {
			p := newProcess(time.Duration(random.Int64N(int64(48*time.Hour)))-24*time.Hour, shown{}, shown{})
			p.start = p.start.Add(-time.Duration(random.Int64N(int64(time.Minute))))
			if i%3 == 2 {
				p.start = time.Time{}
			}
			if i%2 == 1 {
				random := rand.New(rand.NewPCG(seed, uint64(i))) // guarded by the process
				p.during(nil, func() {
					p.set(func(r *shown) {
						r.prompt += random.IntN(1000)
						r.generation += random.IntN(3)
						r.done += random.IntN(2)
						r.running, r.usage = random.IntN(10), random.Float64()
					})
				})
			}
			addr := fmt.Sprintf("engine-%d:8000", i)
			s.serveProcess(addr, p)
			s.add(worker.Regular, addr, 0)
		}
		s.sleep(time.Hour)
		s.wantRenewed(fmt.Sprintf("seed %d", seed))
		s.wantWarnings("", 0)
	})
}

// TestFoundBeforeTraffic: who was pending after a refused connect is not ready
// again as the lifetime it was if another process has taken its place.
func TestFoundBeforeTraffic(t *testing.T) {
	for _, sign := range []string{"start time", "counters"} {
		t.Run(sign, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(0, busy)
				if sign == "counters" {
					p.start = time.Time{}
				}
				e := s.serve(host)
				e.set("/metrics", slow(700*time.Millisecond, p.ServeHTTP))
				w := s.admit()
				s.sleep(time.Minute)
				s.wantState(w, "ready")
				for range 3 { // a failed connect makes each of them count
					p.restart()
					s.checker.ConnectFailed(w, refused())
					for !w.Departed() {
						if w.Blocked()&worker.Pending == 0 {
							t.Fatalf("at %v traffic has returned to the old lifetime", s.since())
						}
						s.sleep(10 * time.Millisecond)
					}
					s.wantRenewed("found", w)
					w = s.present(w)
					s.wantState(w, "pending")
					s.sleep(1500 * time.Millisecond) // a probe may have been under way
					s.wantState(w, "ready")
					if w.Engine() == nil {
						t.Error("no figures of the new lifetime")
					}
					p.set(func(r *shown) { *r = busy })
					s.sleep(2 * longRound)
				}
				s.wantRenewed("later")
			})
		})
	}
}

// TestFoundAfterTraffic: figures that hang hold nobody up; then the restart is
// found later.
func TestFoundAfterTraffic(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, busy)
		e := s.serveProcess(host, p)
		w := s.ready()
		s.sleep(time.Minute)
		p.restart()
		e.set("/metrics", hang)
		s.checker.ConnectFailed(w, refused())
		s.sleep(time.Second)
		s.wantState(w, "ready")
		e.set("/metrics", p.ServeHTTP)
		s.sleep(s.longest() + longRound)
		s.wantRenewed("found", w)
	})
}

// TestOtherLifetimeIsNoSign: what another registration replaced is not seen to
// have restarted, and the next restart counts.
func TestOtherLifetimeIsNoSign(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, busy)
		s.serveProcess(host, p)
		s.ready()
		s.sleep(time.Minute)
		p.restart()
		if !s.reg.Renew(s.present(s.worker(worker.Regular, host, 0)).ID()) {
			s.t.Fatal("not renewed")
		}
		s.sleep(30 * time.Second)
		s.wantRenewed("by figures")
		w := s.worker(worker.Regular, host, 0)
		s.wantState(w, "ready")
		s.awaitDate(w)
		p.restart()
		s.sleep(longRound)
		s.wantRenewed("the first that was seen", w)
		s.wantWarnings("", 0)
	})
}

// TestNewcomerIsNotRenewed: a worker of which no figures had been read is not
// the one that restarted.
func TestNewcomerIsNotRenewed(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, busy)
		e := s.serveProcess(host, p)
		old := s.ready()
		s.sleep(time.Minute)
		p.restart()
		e.set("/metrics", hang)
		newcomer := s.add(worker.Decode, host, 0)
		s.sleep(time.Second)
		s.wantState(newcomer, "ready")
		e.set("/metrics", p.ServeHTTP)
		s.sleep(s.longest() + longRound)
		s.wantRenewed("found", old)
	})
}

// TestRefusedForLong: nobody had listened for as long as it takes to call a
// worker down. What the process told that is gone says nothing of the one that
// follows, nor of a worker that came meanwhile.
func TestRefusedForLong(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{prompt: 1000, usage: 0.97, running: 4, asleep: true})
		s.serveProcess(host, p)
		w := s.admit()
		s.sleep(time.Minute)
		s.wantState(w, "asleep,full")
		s.net.Kill(host)
		s.sleep(time.Minute)
		meanwhile := s.add(worker.Decode, host, 0)
		s.wantState(meanwhile, "pending,asleep")
		p.restart()
		s.net.Restore(host)
		for len(s.log.with(s.t, `"worker restarted"`)) == 0 {
			s.sleep(10 * time.Millisecond)
		}
		s.wantRenewed("as nobody had listened", w)
		s.wantState(meanwhile, "ready")
		w = s.present(w)
		s.wantState(w, "ready")
		s.sleep(10 * time.Second)
		p.restart()
		s.add(worker.Prefill, host, 0) // for it the figures are read anew
		s.sleep(time.Second)
		s.wantRenewed("the first sign in a minute", w, meanwhile)
	}, func(c *health.Config) { c.EngineInterval = time.Hour })
}

// TestSignsAreBounded: what cannot be remembered is not believed; what is old
// makes room.
func TestSignsAreBounded(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, busy)
		s.serveProcess(host, p)
		w := s.ready()
		s.sleep(time.Minute)
		health.FillSigns(s.checker)
		p.restart()
		s.sleep(longRound)
		s.wantRenewed("without room")
		s.sleep(time.Minute)
		s.awaitDate(w)
		p.restart()
		s.sleep(longRound)
		s.wantRenewed("with room", w)
		synctest.Wait()
		s.wantState(s.present(w), "ready")
	})
}
