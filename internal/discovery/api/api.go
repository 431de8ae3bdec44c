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
	Dialect  string // of prefill and decode workers that name none
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

// Mount adds the routes to an admin mux.
func (a *API) Mount(mux *http.ServeMux) {
	mux.HandleFunc("POST /workers", a.add)
	mux.HandleFunc("DELETE /workers/{worker...}", a.remove)
}

// add answers 200 with the worker's id, 400 for a bad request and 409 if the
// registry is full. Adding a worker again renews its TTL.
func (a *API) add(w http.ResponseWriter, r *http.Request) {
	var req addRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := dec.Decode(&req); err != nil {
		Fail(w, http.StatusBadRequest, "INVALID_BODY", "body must be a JSON object with url and worker_type: "+err.Error())
		return
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		Fail(w, http.StatusBadRequest, "INVALID_BODY", "body must be one JSON object")
		return
	}
	reg, err := a.registration(&req)
	if err != nil {
		Fail(w, http.StatusBadRequest, "ADD_WORKER_FAILED", err.Error())
		return
	}
	id, change, err := a.Registry.Register(Source, reg, time.Duration(req.TTLSecs*float64(time.Second)))
	if err != nil {
		Fail(w, http.StatusConflict, "ADD_WORKER_FAILED", err.Error())
		return
	}
	Reply(w, http.StatusOK, map[string]any{
		"success": true,
		"message": fmt.Sprintf("worker %s %s", id.Label(), change),
		"worker":  map[string]any{"url": id.Label(), "worker_type": id.Role.String(), "generation": id.Generation},
	})
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
	const maxTTL = 365 * 24 * 3600
	if req.TTLSecs < 0 || req.TTLSecs > maxTTL {
		return worker.Registration{}, errors.New("ttl_secs must be between 0 (for good) and a year")
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

// remove takes a worker out, from every role unless ?worker_type= names one. It
// answers 404 if it is not registered, and 409 if another source, such as
// a flag, would bring it back.
func (a *API) remove(w http.ResponseWriter, r *http.Request) {
	raw := r.PathValue("worker")
	if unescaped, err := url.PathUnescape(raw); err == nil {
		raw = unescaped
	}
	// A path that is not escaped loses one of the two slashes behind the scheme.
	for _, scheme := range []string{"http:/", "https:/"} {
		if strings.HasPrefix(raw, scheme) && !strings.HasPrefix(raw, scheme+"/") {
			raw = scheme + "/" + strings.TrimPrefix(raw, scheme)
		}
	}
	base, rank, err := discovery.ParseURL(raw)
	if err != nil {
		Fail(w, http.StatusBadRequest, "INVALID_URL", err.Error())
		return
	}
	roles := worker.Roles()
	if s := r.URL.Query().Get("worker_type"); s != "" {
		role, err := parseRole(s)
		if err != nil {
			Fail(w, http.StatusBadRequest, "INVALID_ROLE", err.Error())
			return
		}
		roles = []worker.Role{role}
	}
	removed := 0
	for _, role := range roles {
		err := a.Registry.Remove(Source, role, base, rank)
		if claimed, ok := errors.AsType[*registry.ClaimedError](err); ok {
			Fail(w, http.StatusConflict, "WORKER_CLAIMED", fmt.Sprintf("%v worker %s is %v and would come back", role, raw, claimed))
			return
		}
		if err == nil {
			removed++
		}
	}
	if removed == 0 {
		Fail(w, http.StatusNotFound, "WORKER_NOT_FOUND", "worker "+raw+" is not registered")
		return
	}
	Reply(w, http.StatusOK, map[string]any{"success": true, "message": "worker " + raw + " removed"})
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
