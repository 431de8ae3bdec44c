package health_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

// TestDownAndUp is case 2.8: one failed probe ejects nobody, three do, and two
// good ones bring the worker back.
func TestDownAndUp(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		took   time.Duration // of one failed probe
		err    string
	}{
		{"error", status(503), 0, "GET /health: status 503"},
		{"time-out", hang, 5 * time.Second, "context deadline exceeded"},
		{"closed", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, "EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				e := s.serve(host)
				w := s.ready()

				e.set("/health", tt.answer)
				s.sleep(5*time.Second + tt.took)
				s.wantState(w, "ready")
				if got := s.checker.LastError(w); !strings.Contains(got, tt.err) {
					t.Errorf("last error %q, want %q in it", got, tt.err)
				}
				e.set("/health", status(200))
				s.sleep(5 * time.Second)
				s.wantState(w, "ready")
				if got := s.checker.LastError(w); got != "" {
					t.Errorf("last error %q after a success", got)
				}

				e.set("/health", tt.answer)
				s.sleep(2 * (5*time.Second + tt.took))
				s.wantState(w, "ready")
				s.sleep(5*time.Second + tt.took)
				s.wantState(w, "down")
				if got := len(s.log.with(t, `"worker down"`)); got != 1 {
					t.Errorf("%d lines say that the worker is down", got)
				}
				s.sleep(5 * (5*time.Second + tt.took))
				s.wantState(w, "down")

				e.set("/health", status(200))
				s.sleep(5 * time.Second)
				s.wantState(w, "down")
				s.sleep(5 * time.Second)
				s.wantState(w, "ready")
				if got := len(s.log.with(t, `"worker up"`)); got != 1 {
					t.Errorf("%d lines say that the worker is up", got)
				}
			})
		})
	}
}

// TestUpNeedsSuccessesInARow: a failure in between starts the count anew.
func TestUpNeedsSuccessesInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(c *health.Config) { c.DownAfter, c.UpAfter = 1, 3 })
		e := s.serve(host)
		w := s.ready()
		for i, code := range []int{503, 200, 200, 503, 200, 200} {
			e.set("/health", status(code))
			s.sleep(5 * time.Second)
			if w.Blocked() != worker.Down {
				t.Errorf("after probe %d the worker is %v", i, w.Blocked())
			}
		}
		s.sleep(5 * time.Second)
		s.wantState(w, "ready")
	})
}

// TestModelListOfReadyWorkerFails: a list that is due and cannot be had is a
// failed probe.
func TestModelListOfReadyWorkerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		w := s.ready()
		e.set("/v1/models", status(500))
		s.until(29 * time.Second)
		s.wantState(w, "ready")
		s.until(41 * time.Second)
		s.wantState(w, "down")
		if w.Models() == nil || len(w.Models().Names()) != 1 {
			t.Error("the models known are lost")
		}
	})
}

// TestRefusedProbe: a port that nobody listens on makes a worker pending at
// once, and one success readmits it.
func TestRefusedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host)
		w := s.ready()
		s.takeDials(host)
		s.net.Kill(host)
		s.until(5200 * time.Millisecond)
		s.wantState(w, "pending")
		s.net.Restore(host)
		s.until(6 * time.Second)
		s.wantState(w, "ready")
		s.wantTimes("connected", s.takeDials(host), 5, 5.25, 5.25) // at last for the models too
		if w.Departed() || len(s.takeRenewed()) != 0 {
			t.Error("one refused connect made another lifetime of it")
		}
	})
}

func TestResetProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		w := s.ready()
		e.set("/health", reset)
		s.until(5100 * time.Millisecond)
		s.wantState(w, "pending")
		e.set("/health", status(200))
		s.until(5300 * time.Millisecond)
		s.wantState(w, "ready")
	})
}

// refused is what dispatch passes on of a connect to a port nobody listens on.
func refused() error {
	return fmt.Errorf("connect: %w", &net.OpError{
		Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED),
	})
}

// TestConnectFailed: a leg whose connect was refused or reset makes its worker
// pending at once, and a probe decides at once.
func TestConnectFailed(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET} {
		t.Run(errno.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				e := s.serve(host)
				w := s.ready()
				other := s.add(worker.Decode, host, 0)
				synctest.Wait()
				s.sleep(time.Second)
				e.takeSeen("/health")
				e.set("/health", slow(10*time.Millisecond, status(200)))

				s.checker.ConnectFailed(w, fmt.Errorf("connect: %w", errno))
				s.wantState(w, "pending") // before anything else has run
				s.wantState(other, "ready")
				if got := s.checker.LastError(w); !strings.Contains(got, errno.Error()) {
					t.Errorf("last error %q", got)
				}
				s.sleep(10 * time.Millisecond)
				s.wantState(w, "ready")
				s.wantTimes("probed", e.takeSeen("/health"), 1)
			})
		})
	}
}

// TestConnectFailedWhileDead: the first failed leg asks for a probe, the others
// do not hurry it on.
func TestConnectFailedWhileDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host)
		w := s.ready()
		s.sleep(time.Second)
		s.takeDials(host)
		s.net.Kill(host)
		for range 100 {
			s.checker.ConnectFailed(w, refused())
			s.sleep(10 * time.Millisecond)
		}
		s.until(2900 * time.Millisecond)
		s.wantState(w, "pending")
		s.wantTimes("probed", s.takeDials(host), 1, 1.25, 1.75, 2.75)
	})
}

// TestConnectFailedDuringProbe: a good probe that began before a leg found the
// port closed does not readmit the worker.
func TestConnectFailedDuringProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		w := s.ready()
		e.takeSeen("/health")
		e.set("/health", slow(time.Second, status(200)))
		s.until(5500 * time.Millisecond)
		s.checker.ConnectFailed(w, refused())
		s.until(6500 * time.Millisecond)
		s.wantState(w, "pending")
		s.until(7100 * time.Millisecond)
		s.wantState(w, "ready")
		s.wantTimes("probed", e.takeSeen("/health"), 5, 6)
	})
}

// TestConnectTimeOutOnlyCounts: a connect that times out, or fails in another
// way, counts like a failed probe.
func TestConnectTimeOutOnlyCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		w := s.ready()
		s.sleep(time.Second)
		e.takeSeen("/health")
		timeout := fmt.Errorf("connect: %w", context.DeadlineExceeded)
		s.checker.ConnectFailed(w, timeout)
		s.checker.ConnectFailed(w, errors.New("no route to host"))
		synctest.Wait()
		s.wantState(w, "ready")
		s.until(6 * time.Second) // the probe at 5 s goes well
		s.checker.ConnectFailed(w, timeout)
		s.checker.ConnectFailed(w, timeout)
		s.wantState(w, "ready")
		s.checker.ConnectFailed(w, timeout)
		s.wantState(w, "down")
		s.until(16 * time.Second)
		s.wantState(w, "ready")
		s.wantTimes("probed", e.takeSeen("/health"), 5, 10, 15)
	})
}

// TestBlackholedWorker: a worker whose host drops packets is down after three
// probes and not before.
func TestBlackholedWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host)
		w := s.ready()
		s.net.Blackhole(host)
		s.until(29 * time.Second)
		s.wantState(w, "ready")
		s.until(31 * time.Second)
		s.wantState(w, "down")
		s.net.Restore(host)
		s.until(42 * time.Second)
		s.wantState(w, "ready")
	})
}

// TestConnectFailedOfStranger: legs outlive workers.
func TestConnectFailedOfStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.serve(host)
		gone := s.ready()
		s.remove(gone)
		s.checker.ConnectFailed(gone, refused()) // its server may still have a checker
		synctest.Wait()
		s.checker.ConnectFailed(gone, refused())
		s.wantState(gone, "ready")
		again := s.add(worker.Regular, host, 0)
		synctest.Wait()
		s.checker.ConnectFailed(gone, refused())
		s.wantState(again, "ready")
		if s.checker.LastError(gone) != "" || s.checker.Cards(gone) != nil {
			t.Error("the checker remembers a worker that has left")
		}
	})
}

// TestOthersBlockReasonsStay: each bit has one owner.
func TestOthersBlockReasonsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		w := s.ready()
		w.Block(worker.Ejected | worker.Draining)
		e.set("/health", status(503))
		s.until(16 * time.Second)
		s.wantState(w, "down,ejected,draining")
		e.set("/health", status(200))
		s.until(26 * time.Second)
		s.wantState(w, "ejected,draining")
	})
}

// TestHungProbeBlocksNobody: no lock is held while a probe waits. The clock
// stands still while the checker is called.
func TestHungProbeBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		w := s.ready()
		e.set("/health", hang)
		s.until(6 * time.Second)
		before := s.since()
		other := s.add(worker.Prefill, host, 0)
		third := s.add(worker.Decode, host, 0)
		s.remove(third)
		s.checker.ConnectFailed(w, refused())
		s.checker.ConnectFailed(other, context.DeadlineExceeded)
		_ = s.checker.LastError(w)
		_ = s.checker.Recently("m")
		s.wantState(w, "pending")
		if now := s.since(); now != before {
			t.Errorf("the calls took %v", now-before)
		}
		s.serve("next:8000")
		next := s.add(worker.Regular, "next:8000", 0)
		synctest.Wait()
		s.wantState(next, "ready")
		if now := s.since(); now != before {
			t.Errorf("another server waited %v for the hung one", now-before)
		}
	})
}

// TestSlowBodyCounts: the time-out is that of the whole probe.
func TestSlowBodyCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, func(c *health.Config) { c.Timeout = 2 * time.Second })
		e := s.serve(host)
		e.set("/health", slow(1500*time.Millisecond, status(200)))
		e.set("/v1/models", slow(time.Second, list("m")))
		w := s.add(worker.Regular, host, 0)
		s.until(3 * time.Second)
		s.wantState(w, "pending")
		if got := s.checker.LastError(w); !strings.Contains(got, "deadline exceeded") {
			t.Errorf("last error %q", got)
		}
	})
}
