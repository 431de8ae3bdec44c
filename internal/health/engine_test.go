package health_test

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

const noFigures = "no engine figures"

func TestFigures(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{running: 3, waiting: 2, usage: 0.5, tokens: 4096})
		s.serveProcess(host, p)
		w := s.ready()
		e := w.Engine()
		if e == nil {
			s.t.Fatal("no figures after the admission")
		}
		want := worker.Engine{At: s.start, Running: 3, Waiting: 2, KVUsage: 0.5, CacheTokens: 4096}
		if *e != want {
			s.t.Errorf("figures %+v, want %+v", *e, want)
		}
		s.wantForeign(w, 5)

		p.set(func(r *shown) { r.running = 7 })
		s.sleep(longRound)
		if got := w.Engine(); got.Running != 7 || time.Since(got.At) > longRound || !got.At.After(e.At) {
			s.t.Errorf("at %v the figures are %+v", s.since(), *got)
		}
		s.wantForeign(w, 9)
	})
}

// TestFiguresOfSimulatedEngine: the text that the simulated engine writes is
// understood.
func TestFiguresOfSimulatedEngine(t *testing.T) {
	inBubble(t, func(s *stage) {
		engine, err := enginesim.New(enginesim.Config{Models: []string{"m"}, BlockSize: 16, Blocks: 256})
		if err != nil {
			s.t.Fatal(err)
		}
		listener, err := s.net.Listen(host)
		if err != nil {
			s.t.Fatal(err)
		}
		s.serveHTTP(listener, engine.NewServer())
		s.t.Cleanup(engine.Close)
		w := s.ready()
		if e := w.Engine(); e == nil || e.CacheTokens != 4096 {
			s.t.Errorf("figures %+v", e)
		}
		s.sleep(10 * time.Minute)
		s.wantState(w, "ready")
		if got := s.takeRenewed(); got != nil {
			s.t.Errorf("renewed %v", got)
		}
		s.wantWarnings("", 0)
	})
}

// TestForeignLoad: what the engine has beyond our own leases is foreign, and
// never below zero.
func TestForeignLoad(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		running, waiting, own int
		want                  int64
	}{
		{"idle", 0, 0, 0, 0},
		{"all ours", 3, 2, 5, 0},
		{"some ours", 3, 2, 4, 1},
		{"none ours", 3, 2, 0, 5},
		{"ours not there yet", 3, 2, 9, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				p := newProcess(0, shown{})
				s.serveProcess(host, p)
				w := s.ready()
				defer release(s.lease(w, tt.own))
				p.set(func(r *shown) { r.running, r.waiting = tt.running, tt.waiting })
				s.sleep(longRound)
				s.wantForeign(w, tt.want)
				if got := w.Demand(); got != int64(tt.own)+tt.want {
					t.Errorf("demand %d", got)
				}
			})
		})
	}
}

// TestOwnRequestsDuringScrape is case 3.1: a request of ours that comes or goes
// while the engine is read is not foreign, whether the engine has seen it or
// not.
func TestOwnRequestsDuringScrape(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{})
		s.serveProcess(host, p)
		w := s.ready()
		var held []*worker.Lease
		come := func(n int) func() {
			return func() {
				held = append(held, s.lease(w, n)...)
				p.set(func(r *shown) { r.running += n })
			}
		}
		leave := func(n int) func() {
			return func() {
				release(held[:n])
				held = held[n:]
				p.set(func(r *shown) { r.running -= n })
			}
		}
		both := func(fs ...func()) func() {
			return func() {
				for _, f := range fs {
					f()
					time.Sleep(100 * time.Millisecond)
				}
			}
		}
		for _, tt := range []struct {
			name          string
			before, after func()
		}{
			{"come and seen", come(4), nil},
			{"come and not seen", nil, come(4)},
			{"gone and seen", nil, leave(2)},
			{"gone and not seen", leave(2), nil},
			{"seen in between", come(5), leave(5)},
			{"others for others", come(3), leave(4)},
			{"come and gone", both(come(3), leave(3), come(2), leave(2)), both(come(2), leave(2))},
			{"come, gone and seen", both(come(3), leave(3), come(2)), both(come(2), leave(6))},
		} {
			p.during(tt.before, tt.after)
			from := s.since()
			for w.Engine().At.Sub(s.start) <= from {
				s.sleep(50 * time.Millisecond)
			}
			if got := w.Foreign(); got != 0 {
				s.t.Errorf("%s: a foreign load of %d", tt.name, got)
			}
			p.during(nil, nil)
			s.sleep(2 * longRound)
		}
		p.set(func(r *shown) { r.running += 6 }) // those of others are seen all the same
		s.sleep(longRound)
		s.wantForeign(w, 6)
		release(held)
	})
}

// TestFiguresOfRanks: a pinned worker has its own rank's figures, one that is
// not pinned those of the whole server.
func TestFiguresOfRanks(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0,
			shown{running: 5, waiting: 1, usage: 0.97, tokens: 100},
			shown{running: 2, usage: 0.5, tokens: 200},
			shown{running: 9, usage: 0.03, tokens: 300})
		s.serveProcess(host, p)
		all := s.add(worker.Regular, host, 0)
		first := s.add(worker.Prefill, host, worker.AtRank(0))
		second := s.add(worker.Prefill, host, worker.AtRank(1))
		again := s.add(worker.Decode, host, worker.AtRank(1))
		never := s.add(worker.Decode, host, worker.AtRank(7))
		synctest.Wait()
		leases := slices.Concat(s.lease(all, 2), s.lease(first, 3), s.lease(second, 1), s.lease(again, 1))
		defer release(leases)
		s.sleep(longRound)

		for _, tt := range []struct {
			name    string
			w       *worker.Worker
			state   string
			running int64
			usage   float64
			tokens  int64
			foreign int64
		}{
			{"not pinned", all, "ready", 16, 0.5, 600, 17 - 7},
			{"rank 0", first, "full", 5, 0.97, 100, 6 - 3},
			{"rank 1", second, "ready", 2, 0.5, 200, 0},
			{"rank 1 in another role", again, "ready", 2, 0.5, 200, 0},
			{"a rank that is not there", never, "ready", 0, 0, 0, 0},
		} {
			e := tt.w.Engine()
			if e.Running != tt.running || e.KVUsage < tt.usage-1e-9 || e.KVUsage > tt.usage+1e-9 || e.CacheTokens != tt.tokens {
				s.t.Errorf("%s: figures %+v", tt.name, *e)
			}
			s.wantState(tt.w, tt.state)
			s.wantForeign(tt.w, tt.foreign)
		}

		p.mu.Lock()
		p.ranks = p.ranks[1:] // they are numbered anew: 2 is gone
		p.mu.Unlock()
		s.sleep(longRound)
		s.wantForeign(first, 0)
		s.wantState(first, "ready")
	})
}

// TestOneRank: a server of one rank is that rank, whatever it calls it.
func TestOneRank(t *testing.T) {
	inBubble(t, func(s *stage) {
		s.serve(host).set("/metrics", body("vllm:num_requests_running{engine=\"5\"} 3\n"))
		w := s.add(worker.Regular, host, worker.AtRank(0))
		synctest.Wait()
		s.wantForeign(w, 3)
	})
}

// TestUsageOfSomeRanks: the mean is that of the ranks that tell, and older
// engines tell without an engine's name.
func TestUsageOfSomeRanks(t *testing.T) {
	inBubble(t, func(s *stage) {
		s.serve(host).set("/metrics", body(`vllm:gpu_cache_usage_perc{model_name="m"} 0.96
vllm:num_requests_running{model_name="m"} 2
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10"} 1.0
`))
		w := s.admit()
		if e := w.Engine(); e.KVUsage != 0.96 || e.CacheTokens != 160 || e.Running != 2 {
			s.t.Errorf("figures %+v", *e)
		}
		s.wantState(w, "full")
	})
}

// admit adds a regular worker at host, whatever becomes of it.
func (s *stage) admit() *worker.Worker {
	s.t.Helper()
	w := s.add(worker.Regular, host, 0)
	synctest.Wait()
	return w
}

// TestFull is case 3.10: a worker whose KV cache is nearly full is the last
// resort while it is.
func TestFull(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{usage: 0.94})
		s.serveProcess(host, p)
		w := s.ready()
		for _, tt := range []struct {
			usage float64
			want  string
		}{{0.949, "ready"}, {0.95, "full"}, {1, "full"}, {0.949, "ready"}, {0.97, "full"}, {0, "ready"}} {
			p.set(func(r *shown) { r.usage = tt.usage })
			s.sleep(longRound)
			s.wantState(w, tt.want)
			if !w.Blocked().Ready() {
				s.t.Errorf("not ready at a usage of %v", tt.usage)
			}
		}
	})
}

// TestStaleFigures is case 3.19: figures count for three intervals, however the
// reads of them fail.
func TestStaleFigures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		edit   func(*health.Config)
	}{
		{"hang", hang, nil},
		{"hang, patient", hang, func(c *health.Config) { c.Timeout = time.Minute }},
		{"hang, hasty", hang, func(c *health.Config) { c.Timeout = time.Second }},
		{"hang in the body", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 0\n")
			http.NewResponseController(w).Flush()
			hang(w, r)
		}, nil},
		{"error", status(500), nil},
		{"scaling", status(503), nil},
		{"not found", status(404), nil},
		{"reset", reset, nil},
		{"another page", body("<html>"), nil},
		{"cut", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 0\n")
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.edit == nil {
				tt.edit = func(*health.Config) {}
			}
			inBubble(t, func(s *stage) {
				p := newProcess(0, shown{running: 4, waiting: 1, usage: 0.96})
				e := s.serveProcess(host, p)
				w := s.admit()
				s.sleep(time.Minute)
				e.set("/metrics", tt.answer)
				e.takeSeen("/metrics")
				s.wantForeign(w, 5)
				last := w.Engine().At.Sub(s.start)
				s.until(last + 3*interval - time.Millisecond)
				s.wantForeign(w, 5)
				s.wantState(w, "full")
				s.until(last + 3*interval)
				s.wantForeign(w, 0)
				s.wantState(w, "ready")
				if got := w.Engine(); got.At.Sub(s.start) != last {
					t.Errorf("figures %+v, want those of %v", *got, last)
				}
				s.sleep(10 * time.Minute)
				s.wantWarnings(noFigures, 1)
				s.wantForeign(w, 0)
				if asked := len(e.takeSeen("/metrics")); (asked > 1) != (tt.name != "not found") {
					t.Errorf("asked %d times for what is not there", asked)
				}
				if tt.name == "not found" {
					return
				}
				e.set("/metrics", p.ServeHTTP)
				s.sleep(time.Minute + longRound)
				s.wantForeign(w, 5)
				s.wantState(w, "full")
			}, tt.edit)
		})
	}
}

// TestHangingMetricsDelayNobody: not a probe, and an admission by one second.
func TestHangingMetricsDelayNobody(t *testing.T) {
	inBubble(t, func(s *stage) {
		e := s.serve(host)
		for _, path := range []string{"/metrics", "/is_sleeping", "/is_paused"} {
			e.set(path, hang)
		}
		w := s.add(worker.Regular, host, 0)
		s.until(999 * time.Millisecond)
		s.wantState(w, "pending")
		s.until(time.Second)
		s.wantState(w, "ready")
		e.takeSeen("")
		s.until(30 * time.Second)
		s.wantTimes("probed", e.takeSeen("/health"), 6, 11, 16, 21, 26)
		s.wantState(w, "ready")
		s.wantWarnings(noFigures, 1)
		s.wantWarnings("probe failed", 0)
	})
}

// TestNoMetrics is case 3.2: one warning, no foreign load, and no endless
// asking for what is not there.
func TestNoMetrics(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		asked  int // in the minute that follows the admission
	}{
		{"not found", status(404), 0},
		{"unauthorized", status(401), 0},
		{"501", status(501), 0},
		{"server error", status(500), 12},
		{"of another server", body("# TYPE up gauge\nup 1\n"), 12},
		{"nothing", body(""), 12},
		{"redirect", http.RedirectHandler("http://elsewhere/metrics", http.StatusFound).ServeHTTP, 12},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				e := s.serve(host)
				e.set("/metrics", tt.answer)
				w := s.ready()
				e.takeSeen("/metrics")
				s.sleep(time.Minute)
				if asked := len(e.takeSeen("/metrics")); asked < tt.asked-2 || asked > tt.asked+2 {
					t.Errorf("asked %d times in a minute, want %d or so", asked, tt.asked)
				}
				s.sleep(4 * time.Minute)
				s.wantWarnings(noFigures, 1)
				s.wantState(w, "ready")
				s.wantForeign(w, 0)
				if e := w.Engine(); e != nil {
					t.Errorf("figures %+v", *e)
				}

				e.set("/metrics", newProcess(0, shown{running: 2}).ServeHTTP)
				s.checker.ConnectFailed(w, refused()) // whoever comes back is asked again
				synctest.Wait()
				s.wantForeign(w, 2)
				s.sleep(longRound)
				if w.Engine().At.Sub(s.start) <= 5*time.Minute {
					t.Error("not asked again since")
				}
			})
		})
	}
}

// TestEndlessMetrics: what does not end is given up at 16 MiB.
func TestEndlessMetrics(t *testing.T) {
	inBubble(t, func(s *stage) {
		text := strings.Repeat("vllm:num_requests_running{engine=\"0\"} 1\n", 1000)
		var written atomic.Int64
		s.serve(host).set("/metrics", func(w http.ResponseWriter, _ *http.Request) {
			for {
				n, err := io.WriteString(w, text)
				if err != nil {
					return
				}
				written.Add(int64(n))
			}
		})
		w := s.ready()
		if n := written.Load(); n < 15<<20 || n > 17<<20 {
			s.t.Errorf("%d bytes were read", n)
		}
		s.wantForeign(w, 0)
		s.sleep(longRound)
		s.wantWarnings(noFigures, 1)
		s.wantState(w, "ready")
	})
}

// TestHugeFigures: an engine that lies makes no nonsense of our numbers.
func TestHugeFigures(t *testing.T) {
	inBubble(t, func(s *stage) {
		s.serve(host).set("/metrics", body("vllm:num_requests_running 1e308\nvllm:num_requests_waiting 1e308\n"))
		w := s.ready()
		if got := w.Demand(); got <= 0 || got+1 < got {
			s.t.Errorf("demand %d", got)
		}
	})
}

// TestFiguresAreOff: nothing is asked.
func TestFiguresAreOff(t *testing.T) {
	inBubble(t, func(s *stage) {
		e := s.serveProcess(host, newProcess(0, shown{running: 3, asleep: true}))
		w := s.ready()
		s.sleep(time.Minute)
		for _, path := range []string{"/metrics", "/is_sleeping", "/is_paused"} {
			s.wantTimes(path, e.takeSeen(path))
		}
		s.wantForeign(w, 0)
	}, func(c *health.Config) { c.EngineInterval = 0 })
}

// TestLateScrape: a read that was overtaken by a newer one says nothing more,
// and none says anything of workers that came while it ran.
func TestLateScrape(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{running: 1, prompt: 100})
		e := s.serveProcess(host, p)
		w := s.ready()
		s.until(time.Minute)
		held := make(chan struct{})
		t := s.t
		e.takeSeen("")
		e.set("/metrics", func(w http.ResponseWriter, _ *http.Request) {
			<-held
			io.WriteString(w, "vllm:num_requests_running{engine=\"0\"} 50\nvllm:prompt_tokens_total{engine=\"0\"} 900\n")
		})
		for e.takeSeen("/metrics") == nil {
			s.sleep(50 * time.Millisecond)
		}
		e.set("/metrics", p.ServeHTTP)
		other := s.add(worker.Decode, host, 0) // its admission reads the figures
		synctest.Wait()
		s.wantState(other, "ready")
		s.wantForeign(other, 1)
		at := w.Engine().At
		close(held)
		synctest.Wait()
		s.wantForeign(w, 1)
		if !w.Engine().At.Equal(at) {
			t.Error("the late read counts")
		}
		s.sleep(time.Minute) // its counters were no baseline
		if got := s.takeRenewed(); got != nil {
			t.Errorf("renewed %v", got)
		}
	})
}

// TestRefusedScrape: who is not there for the read of figures is not there.
func TestRefusedScrape(t *testing.T) {
	inBubble(t, func(s *stage) {
		s.serveProcess(host, newProcess(0, shown{}))
		w := s.ready()
		s.until(time.Minute + time.Second) // the next probe is four seconds away
		s.net.Kill(host)
		for s.since() < time.Minute+3*time.Second && w.Blocked() == 0 {
			s.sleep(10 * time.Millisecond)
		}
		s.wantState(w, "pending")
	}, func(c *health.Config) { c.EngineInterval = time.Second })
}

// TestIntervals: a read follows another within a tenth of the interval, and
// servers are not all read at once.
func TestIntervals(t *testing.T) {
	inBubble(t, func(s *stage) {
		var firsts []time.Duration
		for _, addr := range []string{"a:1", "b:1", "c:1", "d:1", "e:1"} {
			e := s.serveProcess(addr, newProcess(0, shown{}))
			s.add(worker.Regular, addr, 0)
			synctest.Wait()
			e.takeSeen("/metrics")
			s.sleep(20 * time.Minute)
			at := e.takeSeen("/metrics")
			if n := len(at); n < 220 || n > 260 {
				s.t.Errorf("%s: read %d times in 20 minutes", addr, n)
			}
			firsts = append(firsts, at[0]%(20*time.Minute))
			gaps := make(map[time.Duration]bool)
			for i := range at[1:] {
				gap := at[i+1] - at[i]
				gaps[gap] = true
				if gap < interval*9/10 || gap > longRound {
					s.t.Errorf("%s: read %v after the one before", addr, gap)
				}
			}
			if len(gaps) < 100 {
				s.t.Errorf("%s: only %d different times between reads", addr, len(gaps))
			}
		}
		slices.Sort(firsts)
		if len(slices.Compact(firsts)) < 5 || firsts[4] > interval {
			s.t.Errorf("first reads at %v", firsts)
		}
	})
}

// TestSlowScrapesKeepTheInterval: the time that a read takes is not added.
func TestSlowScrapesKeepTheInterval(t *testing.T) {
	inBubble(t, func(s *stage) {
		p := newProcess(0, shown{})
		e := s.serve(host)
		e.set("/metrics", slow(900*time.Millisecond, p.ServeHTTP))
		w := s.admit()
		s.sleep(10 * time.Minute)
		if n := len(e.takeSeen("/metrics")); n < 110 {
			s.t.Errorf("read %d times in ten minutes", n)
		}
		s.wantState(w, "ready")
	})
}

// TestGaugesEnd: nothing is read of a server that has no workers left, and
// nothing runs for it.
func TestGaugesEnd(t *testing.T) {
	inBubble(t, func(s *stage) {
		for i, answer := range []http.HandlerFunc{newProcess(0, shown{}).ServeHTTP, status(404), hang} {
			addr := fmt.Sprintf("engine-%d:8000", i)
			e := s.serve(addr)
			e.set("/metrics", answer)
			e.set("/is_paused", answer)
			var workers []*worker.Worker
			for _, role := range worker.Roles() {
				workers = append(workers, s.add(role, addr, 0))
			}
			s.sleep(time.Minute)
			if n := gauges(); n != 1 {
				s.t.Errorf("%d goroutines read one server", n)
			}
			for _, w := range workers {
				s.remove(w)
			}
			s.sleep(s.longest())
			if n := gauges() + checkers(); n != 0 {
				s.t.Errorf("%d goroutines are left", n)
			}
			e.takeSeen("")
			s.sleep(time.Minute)
			if n := len(e.takeSeen("/metrics")); n != 0 {
				s.t.Errorf("read %d times more", n)
			}
		}
	})
}

// gauges returns how many goroutines read figures.
func gauges() int {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	return strings.Count(string(buf), "(*Checker).runGauge(")
}

// TestRunEndsDuringScrape: Run does not wait for a time-out, and a read that was
// cut off says nothing.
func TestRunEndsDuringScrape(t *testing.T) {
	inBubble(t, func(s *stage) {
		e := s.serveProcess(host, newProcess(0, shown{running: 2}))
		w := s.ready()
		for _, path := range []string{"/metrics", "/is_sleeping", "/is_paused"} {
			e.set(path, hang)
		}
		e.takeSeen("")
		for e.takeSeen("/metrics") == nil {
			s.sleep(50 * time.Millisecond)
		}
		s.cancel()
		synctest.Wait()
		if n := s.net.Open(); n != 0 {
			s.t.Errorf("%d connections are open", n)
		}
		s.wantForeign(w, 2)
		s.wantWarnings("", 0)
	})
}
