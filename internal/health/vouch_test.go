package health_test

import (
	"net/http"
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
		e.set("/v1/models", list("n"))
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
		synctest.Wait()
		if got := w.Models().Names(); !slices.Equal(got, []string{"n"}) {
			t.Errorf("goes on with models %v", got)
		}

		hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		e.set("/health", hang)
		s.reg.Renew(w.ID())
		s.reconcile()
		s.wantState(s.worker(worker.Regular, host, 0), "pending")
		s.sleep(time.Minute)
	})
}
