// Package api is the source of workers that an operator adds and removes over
// the admin API. They are not kept over a restart of the router.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/baton-llm/baton/internal/discovery"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// Source is the name under which the API claims workers.
const Source = "api"

// maxBody bounds the body of an API request.
const maxBody = 1 << 20

// API adds and removes workers.
type API struct {
	Registry *registry.Registry
	Pools    map[worker.Role]*worker.Pool
	Dialect  string // of prefill and decode workers that name none
	Ranks    int    // data-parallel ranks of an engine named without one; 0 or 1: none
}

// addRequest is the body of POST /workers. Fields of vllm-router that Baton has
// no use for are accepted and ignored.
type addRequest struct {
	URL         string            `json:"url"`          // as on the command line, @rank included
	WorkerType  string            `json:"worker_type"`  // regular (default), prefill or decode
	TTLSecs     float64           `json:"ttl_secs"`     // 0: until removed
	Labels      map[string]string `json:"labels"`       // group: compatibility group
	KVConnector string            `json:"kv_connector"` // dialect
}

// Mux is where routes are added, such as an [http.ServeMux].
type Mux interface {
	HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request))
}

// Mount adds the routes to an admin mux.
func (a *API) Mount(mux Mux) {
	mux.HandleFunc("POST /workers", a.add)
	mux.HandleFunc("DELETE /workers/{worker...}", a.remove)
	mux.HandleFunc("POST /workers/{worker...}", a.drain)
	a.mountVLLMRouter(mux)
}

// add answers 200 with the worker's id, 400 for a bad request, 413 for one over
// 1 MiB and 409 if the registry is full. Adding a worker again renews its TTL. Of
// an engine whose ranks are workers of their own, the answer has all of them in
// workers.
func (a *API) add(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		Fail(w, http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE", "body must be at most 1 MiB")
		return
	}
	var req addRequest
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil {
		Fail(w, http.StatusBadRequest, "INVALID_BODY", "body must be one JSON object with url and worker_type: "+err.Error())
		return
	}
	reg, err := a.registration(&req)
	if err != nil {
		Fail(w, http.StatusBadRequest, "ADD_WORKER_FAILED", err.Error())
		return
	}
	var message string
	var views []map[string]any
	for _, rank := range discovery.Ranks(reg.ID.Rank, a.Ranks) {
		reg.ID.Rank = rank
		id, change, err := a.Registry.Register(Source, reg, time.Duration(req.TTLSecs*float64(time.Second)))
		if err != nil {
			Fail(w, http.StatusConflict, "ADD_WORKER_FAILED", err.Error())
			return
		}
		message = fmt.Sprintf("worker %s %s", id.Label(), change)
		views = append(views, map[string]any{"url": id.Label(), "worker_type": id.Role.String(), "generation": id.Generation})
	}
	answer := map[string]any{"success": true, "message": message, "worker": views[0]}
	if len(views) > 1 {
		answer["message"], answer["workers"] = fmt.Sprintf("%d ranks of %s registered", len(views), reg.ID.URL), views
	}
	Reply(w, http.StatusOK, answer)
}

func (a *API) registration(req *addRequest) (worker.Registration, error) {
	role, err := parseRole(req.WorkerType)
	if err != nil {
		return worker.Registration{}, err
	}
	if req.URL == "" {
		return worker.Registration{}, errors.New("url is missing")
	}
	base, rank, err := discovery.ParseURL(req.URL)
	if err != nil {
		return worker.Registration{}, err
	}
	const minTTL, maxTTL = 1e-3, 365 * 24 * 3600
	if req.TTLSecs != 0 && (req.TTLSecs < minTTL || req.TTLSecs > maxTTL) {
		return worker.Registration{}, errors.New("ttl_secs must be 0 (for good) or between a millisecond and a year")
	}
	reg := worker.Registration{ID: worker.ID{Role: role, URL: base, Rank: rank}, Labels: req.Labels}
	if role != worker.Regular {
		reg.Endpoint.Dialect = req.KVConnector
		if reg.Endpoint.Dialect == "" {
			reg.Endpoint.Dialect = a.Dialect
		}
	}
	return reg, nil
}

func parseRole(s string) (worker.Role, error) {
	if s == "" {
		return worker.Regular, nil
	}
	for _, role := range worker.Roles() {
		if role.String() == s {
			return role, nil
		}
	}
	return 0, fmt.Errorf("worker_type %q must be regular, prefill or decode", s)
}

// remove takes a worker out, from every role unless ?worker_type= names one;
// without a rank, all ranks of the URL.
// With ?drain=SECONDS it first gets no new work and may finish what it has. It
// answers 404 if it is not registered, and 409 if another source, such as a
// flag, would bring it back in one of the roles: then nothing is removed.
func (a *API) remove(w http.ResponseWriter, r *http.Request) {
	base, rank, roles, ok := a.target(w, r)
	if !ok {
		return
	}
	workers := a.workers(base, rank, roles)
	for _, wk := range workers {
		id := wk.ID()
		others := slices.DeleteFunc(a.Registry.Sources(id.Role, id.URL, id.Rank), func(source string) bool { return source == Source })
		if len(others) > 0 {
			failClaimed(w, id, &registry.ClaimedError{Sources: others})
			return
		}
	}
	if !a.await(w, r, workers) {
		return
	}
	removed := false
	for _, wk := range workers {
		id := wk.ID()
		err := a.Registry.Remove(Source, id.Role, id.URL, id.Rank)
		if claimed, ok := errors.AsType[*registry.ClaimedError](err); ok { // since it was looked at
			failClaimed(w, id, claimed)
			return
		}
		removed = removed || err == nil
	}
	if !removed {
		failUnknown(w, base, rank)
		return
	}
	label := worker.ID{URL: base, Rank: rank}.Label()
	Reply(w, http.StatusOK, map[string]any{"success": true, "message": "worker " + label + " removed"})
}

// target reads which worker a request means, and in which roles: all, unless
// ?worker_type= names one. If it cannot, it has answered.
func (a *API) target(w http.ResponseWriter, r *http.Request) (base string, rank worker.Rank, roles []worker.Role, ok bool) {
	base, rank, err := Target(r)
	if err != nil {
		Fail(w, http.StatusBadRequest, "INVALID_URL", err.Error())
		return "", 0, nil, false
	}
	roles = worker.Roles()
	if s := r.URL.Query().Get("worker_type"); s != "" {
		role, err := parseRole(s)
		if err != nil {
			Fail(w, http.StatusBadRequest, "INVALID_ROLE", err.Error())
			return "", 0, nil, false
		}
		roles = []worker.Role{role}
	}
	return base, rank, roles, true
}

func failUnknown(w http.ResponseWriter, base string, rank worker.Rank) {
	label := worker.ID{URL: base, Rank: rank}.Label()
	Fail(w, http.StatusNotFound, "WORKER_NOT_FOUND", "worker "+label+" is not registered")
}

func failClaimed(w http.ResponseWriter, id worker.ID, claimed *registry.ClaimedError) {
	Fail(w, http.StatusConflict, "WORKER_CLAIMED", claimedMessage(id, claimed))
}

func claimedMessage(id worker.ID, claimed *registry.ClaimedError) string {
	return fmt.Sprintf("%v worker %s is %v and would come back", id.Role, id.Label(), claimed)
}

// Target reads the worker that the path of a request names in its last
// wildcard, {worker...}: its URL with @rank, percent-encoded or as it is.
func Target(r *http.Request) (base string, rank worker.Rank, err error) {
	name := r.PathValue("worker")
	// A path that is not encoded loses one of the two slashes behind the scheme to
	// the mux, which sends the client to the path that is left.
	for _, scheme := range []string{"http:/", "https:/"} {
		if rest, ok := strings.CutPrefix(name, scheme); ok && !strings.HasPrefix(rest, "/") {
			name = scheme + "/" + rest
		}
	}
	base, rank, err = discovery.ParseURL(name)
	if err == nil {
		return base, rank, nil
	}
	// On that way it is encoded once more, as some clients do by themselves.
	if decoded, e := url.PathUnescape(name); e == nil && decoded != name {
		if base, rank, e := discovery.ParseURL(decoded); e == nil {
			return base, rank, nil
		}
	}
	return "", 0, err
}

// Reply writes a JSON answer.
func Reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client may be gone
}

// Fail writes an error of the admin API, in vllm-router's form.
func Fail(w http.ResponseWriter, status int, code, message string) {
	Reply(w, status, map[string]string{"error": message, "code": code})
}
