//go:build e2e

package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

const (
	regular = enginesim.RoleRegular
	prefill = enginesim.RolePrefill
	decode  = enginesim.RoleDecode

	model = "m"
)

// control is the client of the /sim/ routes and the admin API. It keeps no
// connections, so that the figures of both stay those of the traffic.
var control = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true},
	Timeout:   30 * time.Second,
}

// engine is one baton sim.
type engine struct {
	*process

	t    testing.TB
	role string
	addr string // host:port
	url  string
	args []string // of the command line, but for the port

	listening time.Time // since when
}

// startEngine starts an engine that reports whatever a router should not send.
func startEngine(t testing.TB, role string, args ...string) *engine {
	t.Helper()
	e := &engine{t: t, role: role, args: append([]string{"--role", role, "--model", model, "--strict"}, args...)}
	var line string
	e.process, line = startListening(t, role+" engine", func(port string) []string {
		return append([]string{"sim", "--port", port}, e.args...)
	}, "listening on http://")
	e.listening = time.Now()
	e.addr = strings.TrimSpace(strings.TrimPrefix(line, "listening on http://"))
	e.url = "http://" + e.addr
	e.name += " " + e.addr
	return e
}

func (e *engine) String() string { return e.name }

// restart starts another process on the port of an engine that was killed.
func (e *engine) restart(args ...string) {
	e.t.Helper()
	_, port, err := net.SplitHostPort(e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.process = start(e.t, e.name, slices.Concat([]string{"sim", "--port", port}, e.args, args)...)
	if _, err := e.awaitLine(patience, "listening on "+e.url); err != nil {
		e.t.Fatal(err)
	}
	e.listening = time.Now()
}

// call makes a request under /sim/ and reads the answer into v unless that is nil.
func (e *engine) call(method, path string, body, v any) error {
	return callJSON(method, e.url+path, body, v)
}

func callJSON(method, url string, body, v any) error {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, url, in)
	if err != nil {
		return err
	}
	resp, err := control.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, out)
	case v == nil:
		return nil
	}
	return json.Unmarshal(out, v)
}

func (e *engine) stats() (s enginesim.Stats, err error) {
	return s, e.call("GET", "/sim/stats", nil, &s)
}

// records returns the log of requests that generate.
func (e *engine) records() []enginesim.Record {
	e.t.Helper()
	var all, out []enginesim.Record
	if err := e.call("GET", "/sim/requests", nil, &all); err != nil {
		e.t.Fatalf("%s: %v", e, err)
	}
	for _, r := range all {
		if r.Leg != "" {
			out = append(out, r)
		}
	}
	return out
}

// record returns the only request with that id, and an error if there is none yet.
func (e *engine) record(id string) (enginesim.Record, error) {
	e.t.Helper()
	var found []enginesim.Record
	for _, r := range e.records() {
		if r.Header.Get("X-Request-Id") == id {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		return enginesim.Record{}, fmt.Errorf("%s: %d requests with id %q", e, len(found), id)
	}
	return found[0], nil
}

// fault sets a fault and returns what removes it.
func (e *engine) fault(f enginesim.Fault) (remove func()) {
	e.t.Helper()
	var set struct {
		ID int `json:"id"`
	}
	if err := e.call("POST", "/sim/faults", f, &set); err != nil {
		e.t.Fatalf("%s: %v", e, err)
	}
	return func() {
		e.t.Helper()
		if err := e.call("DELETE", "/sim/faults/"+strconv.Itoa(set.ID), nil, nil); err != nil {
			e.t.Errorf("%s: %v", e, err)
		}
	}
}

// open opens a gate: what waits there goes on.
func (e *engine) open(gate string) {
	e.t.Helper()
	if err := e.call("POST", "/sim/gates/"+gate+"/open", nil, nil); err != nil {
		e.t.Errorf("%s: %v", e, err)
	}
}

// awaitGate waits until n requests in all are at the gate of that name in any of
// the engines, and returns the first engine that has one.
func awaitGate(t testing.TB, engines []*engine, gate string, n int) *engine {
	t.Helper()
	var first *engine
	await(t, patience, fmt.Sprintf("%d requests at gate %s", n, gate), func() error {
		first = nil
		total := 0
		for _, e := range engines {
			s, err := e.stats()
			if err != nil {
				return err
			}
			if total += s.Gates[gate]; first == nil && s.Gates[gate] > 0 {
				first = e
			}
		}
		if total < n {
			return fmt.Errorf("%d are there", total)
		}
		return nil
	})
	return first
}

// idle returns why the engine is not done with everything, nil if it is.
func (e *engine) idle() error {
	s, err := e.stats()
	switch {
	case err != nil:
		return err
	case s.Running != 0 || s.Waiting != 0:
		return fmt.Errorf("%s: %d running, %d waiting", e, s.Running, s.Waiting)
	}
	arrived, over := 0, 0
	for _, n := range s.Paths {
		arrived += n
	}
	for _, n := range s.Outcomes {
		over += n
	}
	if arrived != over {
		return fmt.Errorf("%s: %d requests have not ended", e, arrived-over)
	}
	return nil
}

// innocent returns what the engine was sent that a router should not send.
func (e *engine) innocent() error {
	s, err := e.stats()
	switch {
	case err != nil:
		return err
	case s.ViolationCount > 0:
		return fmt.Errorf("%s: %d violations, such as\n  %s", e, s.ViolationCount, strings.Join(s.Violations[:min(5, len(s.Violations))], "\n  "))
	case s.IgnoredKV > 0:
		return fmt.Errorf("%s: kv_transfer_params of %d requests had no effect", e, s.IgnoredKV)
	}
	return nil
}
