//go:build e2e

package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// router is one baton serve.
type router struct {
	*process

	t     testing.TB
	args  []string
	addr  string // of clients
	url   string
	admin string
}

// startRouter starts a router. Probes are quick to see a worker arrive, and then
// far between, so that a test decides what the router learns of a dead one.
func startRouter(t testing.TB, args ...string) *router {
	t.Helper()
	r := &router{t: t}
	var line string
	r.process, line = startListening(t, "router", func(port string) []string {
		// What args say comes later and counts.
		r.args = append([]string{
			"serve", "--port", "0", "--admin-port", port, "--prometheus-port", "0", "--log-format", "json",
			"--health-check-interval-secs", "60", "--drain-delay", "0s", "--drain-timeout", "20s",
		}, args...)
		return r.args
	}, `"msg":"serving"`)
	var said struct{ Address, Admin string }
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatalf("router: %v: %s", err, line)
	}
	r.addr, r.url, r.admin = said.Address, "http://"+said.Address, "http://"+said.Admin
	return r
}

// end stops the router as an operator does, which must go well: nothing is left
// that it would wait for.
func (r *router) end() {
	if !r.running() {
		return
	}
	r.signal(syscall.SIGINT)
	if code, err := r.exitCode(patience); err != nil || code != 0 {
		r.t.Errorf("router: exit code %d, want 0; %v", code, err)
	}
}

// workerView is a worker as the admin API shows it.
type workerView struct {
	URL        string `json:"url"`
	Role       string `json:"worker_type"`
	Ready      bool   `json:"is_healthy"`
	State      string `json:"state"`
	Load       int64  `json:"load"`
	Holds      int64  `json:"holds"`
	Picked     uint64 `json:"picked"`
	Waiting    int64  `json:"waiting_tokens"`
	Held       int64  `json:"held_tokens"`
	Generation uint64 `json:"generation"`
	LastError  string `json:"last_error"`
	ZMQ        string `json:"zmq_address"`
}

func (r *router) workers() ([]workerView, error) {
	var list struct {
		Workers []workerView `json:"workers"`
	}
	err := callJSON("GET", r.admin+"/workers", nil, &list)
	return list.Workers, err
}

// worker returns the present lifetime of an engine.
func (r *router) worker(e *engine) (workerView, error) {
	list, err := r.workers()
	if err != nil {
		return workerView{}, err
	}
	for _, w := range list {
		if w.URL == e.url && w.Role == e.role {
			return w, nil
		}
	}
	return workerView{}, fmt.Errorf("%s is no worker", e)
}

// look is worker for when nothing can go wrong.
func (r *router) look(e *engine) workerView {
	r.t.Helper()
	w, err := r.worker(e)
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

// ready returns an error unless n workers are ready.
func (r *router) ready(n int) error {
	list, err := r.workers()
	if err != nil {
		return err
	}
	got := 0
	for _, w := range list {
		if w.Ready {
			got++
		}
	}
	if got != n {
		return fmt.Errorf("%d workers are ready, want %d: %+v", got, n, list)
	}
	return nil
}

// idle returns why the router is not done with everything, nil if it is.
func (r *router) idle() error {
	list, err := r.workers()
	if err != nil {
		return err
	}
	for _, w := range list {
		if w.Load != 0 || w.Holds != 0 || w.Waiting != 0 || w.Held != 0 {
			return fmt.Errorf("%s worker %s: load %d, holds %d, tokens waiting %d, held %d", w.Role, w.URL, w.Load, w.Holds, w.Waiting, w.Held)
		}
	}
	m, err := r.metrics()
	if err != nil {
		return err
	}
	if n := m.sum("baton_requests_active"); n != 0 {
		return fmt.Errorf("%v requests are active", n)
	}
	return nil
}

// metrics are the samples of /metrics by name with labels.
type metrics map[string]float64

func (r *router) metrics() (metrics, error) {
	resp, err := control.Get(r.admin + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	m := metrics{}
	for line := range strings.Lines(string(text)) {
		i := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || i < 0 {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64)
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
		m[line[:i]] = v
	}
	return m, nil
}

// sum adds up the samples of a metric whose labels have all the parts, such as
// `role="decode"`.
func (m metrics) sum(name string, parts ...string) (total float64) {
	for sample, v := range m {
		if got, _, _ := strings.Cut(sample, "{"); got == name && containsAll(sample, parts) {
			total += v
		}
	}
	return total
}

// metric is sum for when nothing can go wrong.
func (r *router) metric(name string, parts ...string) float64 {
	r.t.Helper()
	m, err := r.metrics()
	if err != nil {
		r.t.Fatal(err)
	}
	return m.sum(name, parts...)
}
