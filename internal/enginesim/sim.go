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
	case what == "POST kv" && len(parts) == 2:
		if e.faultyPeer(w, r) {
			return
		}
		reply(w, http.StatusOK, e.conn.serve(parts[1], body))
	default:
		reply(w, http.StatusNotFound, simError{"no such path or method"})
	}
}

// faultyPeer lets the faults set for a path under /sim/kv/ act at accept. It
// tells whether they have answered.
func (e *Engine) faultyPeer(w http.ResponseWriter, r *http.Request) bool {
	c := &call{e: e, w: w, r: r, rec: &Record{}, closed: true}
	e.bindFaults(c, false)
	return c.point(pointAccept, nil) != nil
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
