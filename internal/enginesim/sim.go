package enginesim

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// serveSim answers what is no part of vLLM: the script (see the package comment)
// and, under /sim/kv/, other engines.
func (e *Engine) serveSim(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
	if err != nil {
		return
	}
	select {
	case <-e.done:
		panic(http.ErrAbortHandler)
	default:
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/sim/"), "/")
	what := r.Method + " " + parts[0]
	switch {
	case what == "GET stats" && len(parts) == 1:
		reply(w, http.StatusOK, e.Stats())
	case what == "GET requests" && len(parts) == 1:
		reply(w, http.StatusOK, e.Requests())
	case what == "POST faults" && len(parts) == 1:
		e.postFault(w, body)
	case what == "DELETE faults" && len(parts) == 2:
		id, err := strconv.Atoi(parts[1])
		if err != nil || !e.removeFault(id) {
			reply(w, http.StatusNotFound, simError{"no such fault"})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	case what == "POST gates" && len(parts) == 3 && parts[2] == "open":
		e.Open(parts[1])
		w.WriteHeader(http.StatusNoContent)
	case what == "POST gates" && len(parts) == 3 && parts[2] == "close":
		e.Gate(parts[1])
		w.WriteHeader(http.StatusNoContent)
	case what == "POST pings" && len(parts) == 1:
		var v struct{ Paused bool }
		if set(w, body, &v) {
			e.PausePings(v.Paused)
		}
	case what == "POST scaling" && len(parts) == 1:
		var v struct{ Scaling bool }
		if set(w, body, &v) {
			e.SetScaling(v.Scaling)
		}
	case what == "POST revive" && len(parts) == 1:
		e.revive(connOf(r.Context()))
		w.WriteHeader(http.StatusNoContent)
	case what == "POST kv" && len(parts) == 2:
		e.servePeer(w, r, parts[1], body)
	default:
		reply(w, http.StatusNotFound, simError{"no such path or method"})
	}
}

// set reads what is to be set, and answers.
func set(w http.ResponseWriter, body []byte, v any) bool {
	if err := json.Unmarshal(body, v); err != nil {
		reply(w, http.StatusBadRequest, simError{err.Error()})
		return false
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

// servePeer answers a call of another engine. Faults set for its path act at accept.
func (e *Engine) servePeer(w http.ResponseWriter, r *http.Request, what string, body []byte) {
	life, ok := e.alive()
	if !ok {
		panic(http.ErrAbortHandler)
	}
	c := &call{e: e, w: w, r: r, rec: &Record{}, closed: true, life: life}
	e.bindFaults(c, false)
	if c.point(pointAccept, nil) != nil {
		return
	}
	v, err := e.conn.serve(c, what, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	reply(w, http.StatusOK, v)
}

type simError struct {
	Error string `json:"error"`
}

func (e *Engine) postFault(w http.ResponseWriter, body []byte) {
	var f Fault
	err := json.Unmarshal(body, &f)
	id := 0
	if err == nil {
		id, err = e.addFault(f)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, simError{err.Error()})
		return
	}
	reply(w, http.StatusOK, struct {
		ID int `json:"id"`
	}{id})
}

func reply(w http.ResponseWriter, status int, v any) {
	b := encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
}
