package server

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"sync/atomic"

	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

// Status answers whether the router can serve, and what.
type Status struct {
	Pools    map[worker.Role]*worker.Pool
	Health   *health.Checker
	draining atomic.Bool
}

// Drain makes the router say that it is not ready any more.
func (s *Status) Drain() { s.draining.Store(true) }

func (s *Status) mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /liveness", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "OK\n") })
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /readiness", s.readiness)
	mux.HandleFunc("GET /v1/models", s.models)
}

func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // the client may be gone
}

// Unready returns why no request could be served, "" if one could.
func (s *Status) Unready() string {
	if s.draining.Load() {
		return "draining"
	}
	if _, err := worker.Pick(s.check(worker.Regular)); err == nil {
		return ""
	}
	_, err := worker.Pick(s.check(worker.Prefill), s.check(worker.Decode))
	if err == nil {
		return ""
	}
	none, _ := errors.AsType[*worker.NoneError](err)
	reason := "no regular worker is ready"
	if c := s.counts(); c[worker.Prefill].total+c[worker.Decode].total > 0 {
		reason += ", and there is " + none.Error()
	}
	return reason
}

func (s *Status) check(role worker.Role) worker.Need {
	need := worker.Need{Pool: s.Pools[role], Take: worker.Check}
	if role != worker.Regular {
		need.Want.Dialects = math.MaxUint64 // any that is built
	}
	return need
}

type roleCount struct{ ready, total int }

func (s *Status) counts() map[worker.Role]roleCount {
	counts := make(map[worker.Role]roleCount)
	for _, role := range worker.Roles() {
		var c roleCount
		for _, w := range s.Pools[role].Snapshot().Workers {
			c.total++
			if w.Blocked() == 0 {
				c.ready++
			}
		}
		counts[role] = c
	}
	return counts
}

func (s *Status) health(w http.ResponseWriter, _ *http.Request) {
	if reason := s.Unready(); reason != "" {
		text(w, http.StatusServiceUnavailable, reason+"\n")
		return
	}
	text(w, http.StatusOK, "OK\n")
}

func (s *Status) readiness(w http.ResponseWriter, _ *http.Request) {
	type count struct {
		Healthy int `json:"healthy"`
		Total   int `json:"total"`
	}
	body := struct {
		Status         string           `json:"status"`
		Reason         string           `json:"reason,omitempty"`
		HealthyWorkers int              `json:"healthy_workers"`
		TotalWorkers   int              `json:"total_workers"`
		Roles          map[string]count `json:"roles"`
	}{Status: "ready", Roles: map[string]count{}}
	for role, c := range s.counts() {
		body.HealthyWorkers += c.ready
		body.TotalWorkers += c.total
		body.Roles[role.String()] = count{c.ready, c.total}
	}
	status := http.StatusOK
	if body.Reason = s.Unready(); body.Reason != "" {
		status, body.Status = http.StatusServiceUnavailable, "not_ready"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

// models answers the union of the ready workers' model lists, each entry as its
// worker sent it. Of entries with one id the first worker's is taken, by role,
// URL and rank. Without a ready worker the list is empty.
func (s *Status) models(w http.ResponseWriter, _ *http.Request) {
	seen := make(map[string]bool)
	body := []byte(`{"object":"list","data":[`)
	for _, role := range worker.Roles() {
		for _, wk := range s.Pools[role].Snapshot().Workers {
			if wk.Blocked() != 0 {
				continue
			}
			for _, card := range s.Health.Cards(wk) {
				if seen[card.ID] {
					continue
				}
				if len(seen) > 0 {
					body = append(body, ',')
				}
				seen[card.ID] = true
				body = append(body, card.Raw...)
			}
		}
	}
	body = append(body, "]}"...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client may be gone
}
