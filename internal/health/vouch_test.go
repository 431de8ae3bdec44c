package health_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// TestRestartedWhileServing: a process that was found to be another one by what
// it served is ready in its own lifetime at once, whatever its probes say, and
// what it serves is read anew. Any other successor is probed first.
func TestRestartedWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		e := s.serve(host)
		old := s.ready()
		e.set("/v1/models", slow(time.Second, list("n"))) // not before the state is looked at
		s.checker.Restarted(old, "engine id")
		s.reconcile()
		w := s.worker(worker.Regular, host, 0)
		if w == old || w.Load() != 0 {
			t.Errorf("%v after %v", w.ID(), old.ID())
		}
		s.wantState(w, "ready")
		if got := w.Models().Names(); !slices.Equal(got, []string{"m"}) {
			t.Errorf("begins with models %v", got)
		}
		s.sleep(2 * time.Second)
		if got := w.Models().Names(); !slices.Equal(got, []string{"n"}) {
			t.Errorf("goes on with models %v", got)
		}

		e.set("/health", hang)
		s.reg.Renew(w.ID())
		s.reconcile()
		s.wantState(s.worker(worker.Regular, host, 0), "pending")
		s.sleep(time.Minute)
	})
}

// TestRestarted: what dispatch found out renews that worker. Its successor has
// served, so it need not wait for a probe.
func TestRestarted(t *testing.T) {
	inBubble(t, func(s *stage) {
		e := s.serveProcess(host, newProcess(0, busy))
		w := s.ready()
		other := s.add(worker.Decode, host, 0)
		s.sleep(time.Minute)
		e.takeSeen("")
		for _, path := range []string{"/health", "/v1/models", "/metrics"} {
			e.set(path, slow(time.Second, e.answer(path)))
		}
		s.checker.Restarted(w, "engine id")
		s.wantRenewed("as told", w)
		synctest.Wait()
		now := s.present(w)
		if now.ID().Generation != w.ID().Generation+1 || other.Departed() {
			s.t.Errorf("%v is followed by %v", w.ID(), now.ID())
		}
		s.wantState(now, "ready")
		wantModels(s.t, now, "m")
		if cards := s.checker.Cards(now); len(cards) != 1 || cards[0].ID != "m" {
			s.t.Errorf("cards %v", cards)
		}
		e.set("/v1/models", list("n")) // what it serves is read anew
		s.sleep(2 * time.Second)
		wantModels(s.t, now, "n")

		s.checker.Restarted(w, "engine id") // heard late
		s.wantRenewed("heard late", w)
		s.sleep(time.Minute)
		if now.Departed() {
			s.t.Error("a worker that had left long ago renewed its successor")
		}
		if n := len(s.log.with(s.t, `"worker restarted"`)); n != 1 {
			s.t.Errorf("%d lines say so", n)
		}
	})
}

// TestVouchIsForTheNext: one lifetime alone begins ready, at its place and at
// once.
func TestVouchIsForTheNext(t *testing.T) {
	for _, tt := range []struct {
		name string
		next func(*stage, *worker.Worker) *worker.Worker // another lifetime after w has been renewed
	}{
		{"another lifetime", func(s *stage, w *worker.Worker) *worker.Worker {
			s.reg.Renew(s.present(w).ID())
			s.reconcile()
			return s.present(w)
		}},
		{"heard late", func(s *stage, w *worker.Worker) *worker.Worker {
			s.checker.Restarted(w, "engine id")
			s.reg.Renew(s.present(w).ID())
			s.reconcile()
			return s.present(w)
		}},
		{"another role", func(s *stage, _ *worker.Worker) *worker.Worker { return s.add(worker.Decode, host, 0) }},
		{"another rank", func(s *stage, _ *worker.Worker) *worker.Worker {
			return s.add(worker.Regular, host, worker.AtRank(0))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(s *stage) {
				e := s.serveProcess(host, newProcess(0, busy))
				w := s.ready()
				s.sleep(time.Minute)
				e.set("/health", slow(time.Second, status(200)))
				s.checker.Restarted(w, "engine id")
				synctest.Wait()
				s.wantState(s.present(w), "ready")
				s.wantState(tt.next(s, w), "pending")
			})
		})
	}
	inBubble(t, func(s *stage) { // the successor comes too late
		e := s.serveProcess(host, newProcess(0, busy))
		w := s.ready()
		s.checker.Restarted(w, "engine id")
		s.remove(w)
		e.set("/health", slow(time.Second, status(200)))
		s.sleep(2*time.Second + time.Millisecond)
		s.wantState(s.admit(), "pending")
	})
}
