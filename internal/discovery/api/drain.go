package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// maxDrain bounds ?drain= of a removal.
const maxDrain = 24 * time.Hour

// drainView is one worker as the drain routes show it.
type drainView struct {
	URL        string `json:"url"`
	WorkerType string `json:"worker_type"`
	Load       int64  `json:"load"`
	Drained    bool   `json:"drained"` // takes no new work, and has none left
}

// Drained reports whether a worker that is being drained has no work left.
func Drained(w *worker.Worker) bool {
	return w.Blocked()&worker.Draining != 0 && w.Chosen() == 0
}

// drain answers POST /workers/{worker}/drain and /undrain: the worker gets no
// new work, or gets it again; what runs on it is left alone. Draining ends with
// the worker's lifetime. It answers 404 if the worker is not registered.
func (a *API) drain(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("worker")
	target, undrain := strings.CutSuffix(name, "/undrain")
	if !undrain {
		var ok bool
		if target, ok = strings.CutSuffix(name, "/drain"); !ok {
			Fail(w, http.StatusNotFound, "NOT_FOUND", "POST /workers/{url}/drain and /workers/{url}/undrain are served")
			return
		}
	}
	r.SetPathValue("worker", target)
	base, rank, roles, ok := a.target(w, r)
	if !ok {
		return
	}
	workers := a.workers(base, rank, roles)
	if len(workers) == 0 {
		failUnknown(w, base, rank)
		return
	}
	for _, wk := range workers {
		if undrain {
			wk.Unblock(worker.Draining)
		} else {
			wk.Block(worker.Draining)
		}
	}
	Reply(w, http.StatusOK, map[string]any{"success": true, "workers": drainViews(workers)})
}

func drainViews(workers []*worker.Worker) []drainView {
	views := make([]drainView, 0, len(workers))
	for _, wk := range workers {
		views = append(views, drainView{wk.Label(), wk.ID().Role.String(), wk.Load(), Drained(wk)})
	}
	return views
}

// workers returns the workers of a URL; without a rank, of all its ranks.
func (a *API) workers(base string, rank worker.Rank, roles []worker.Role) []*worker.Worker {
	var found []*worker.Worker
	for _, role := range roles {
		a.Pools[role].Reconcile()
		for _, wk := range a.Pools[role].Snapshot().Workers {
			if id := wk.ID(); id.URL == base && (rank == 0 || id.Rank == rank) {
				found = append(found, wk)
			}
		}
	}
	return found
}

// await drains the workers of a removal with ?drain=SECONDS and waits until they
// have no work left, or the seconds are over. It reports whether the request
// goes on: not if it is wrong, or if the client has left; then the workers stay
// drained and registered.
func (a *API) await(w http.ResponseWriter, r *http.Request, workers []*worker.Worker) bool {
	text := r.URL.Query().Get("drain")
	if text == "" {
		return true
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 0 && seconds <= maxDrain.Seconds()) {
		Fail(w, http.StatusBadRequest, "INVALID_DRAIN", "drain must be a number of seconds between 0 and 86400")
		return false
	}
	for _, wk := range workers {
		wk.Block(worker.Draining)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(seconds*float64(time.Second)))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !allDrained(workers) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r.Context().Err() == nil
		}
	}
	return true
}

func allDrained(workers []*worker.Worker) bool {
	for _, wk := range workers {
		if !Drained(wk) {
			return false
		}
	}
	return true
}
