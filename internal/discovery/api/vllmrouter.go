package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/baton-llm/baton/internal/discovery"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// mountVLLMRouter adds the older routes of vllm-router, which take the worker's
// URL in the query and answer with text, for scripts that use them.
func (a *API) mountVLLMRouter(mux Mux) {
	mux.HandleFunc("POST /add_worker", a.addURL)
	mux.HandleFunc("POST /remove_worker", a.removeURL)
}

// addURL adds the regular worker ?url=. It answers 200, or 400 if the URL is
// wrong or known already. It does not wait for the worker to be well: until then
// it gets no work.
func (a *API) addURL(w http.ResponseWriter, r *http.Request) {
	reg, err := a.registration(&addRequest{URL: r.URL.Query().Get("url")})
	if err != nil {
		text(w, http.StatusBadRequest, err.Error())
		return
	}
	label := reg.ID.Label()
	added := false
	for _, rank := range discovery.Ranks(reg.ID.Rank, a.Ranks) {
		reg.ID.Rank = rank
		if len(a.Registry.Sources(worker.Regular, reg.ID.URL, rank)) > 0 {
			continue
		}
		if _, _, err := a.Registry.Register(Source, reg, 0); err != nil {
			text(w, http.StatusConflict, err.Error())
			return
		}
		added = true
	}
	if !added {
		text(w, http.StatusBadRequest, fmt.Sprintf("Worker %s already exists", label))
		return
	}
	text(w, http.StatusOK, "Successfully added worker: "+label)
}

// removeURL removes the worker ?url= from every role, without a rank all of its
// ranks. It answers 200 also if there is none, and 409 if another source, such as
// a flag, would bring one back: then that one stays.
func (a *API) removeURL(w http.ResponseWriter, r *http.Request) {
	base, rank, err := discovery.ParseURL(r.URL.Query().Get("url"))
	if err != nil {
		text(w, http.StatusBadRequest, err.Error())
		return
	}
	for _, wk := range a.workers(base, rank, worker.Roles()) {
		id := wk.ID()
		err := a.Registry.Remove(Source, id.Role, id.URL, id.Rank)
		if claimed, ok := errors.AsType[*registry.ClaimedError](err); ok {
			text(w, http.StatusConflict, claimedMessage(id, claimed))
			return
		}
	}
	text(w, http.StatusOK, "Successfully removed worker: "+worker.ID{URL: base, Rank: rank}.Label())
}

func text(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprint(w, s) // the client may be gone
}
