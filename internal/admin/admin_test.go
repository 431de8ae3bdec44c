package admin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/baton-llm/baton/internal/admin"
	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// fleet is a registry with pools, and the admin side of them.
type fleet struct {
	t       *testing.T
	reg     *registry.Registry
	pools   map[worker.Role]*worker.Pool
	checker *health.Checker
	breaker *breaker.Breaker
	mux     *http.ServeMux
	metrics http.Handler
	// vllmRouter are the metrics under vllm-router's names.
	vllmRouter http.Handler
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, reg: registry.New(), pools: make(map[worker.Role]*worker.Pool), mux: http.NewServeMux()}
	f.checker = health.New(health.Default(), health.Deps{Renewer: f.reg})
	dispatcher := dispatch.New(dispatch.Default(), dispatch.Deps{
		Pools: f.pools, Health: f.checker,
		NewCarrier: func(string) (exchange.Carrier, error) { return nil, errors.New("not in this test") },
	})
	f.breaker = breaker.New(breaker.Config{Failures: 2, Successes: 1, Timeout: time.Hour}, nil)
	policies := map[worker.Role]policy.Policy{
		worker.Regular: policy.LeastLoad{}, worker.Prefill: policy.RoundRobin{}, worker.Decode: policy.LeastLoad{},
	}
	for _, role := range worker.Roles() {
		f.pools[role] = worker.NewPool(worker.PoolConfig{
			Role: role, Lister: f.reg, Observers: []worker.Observer{f.checker, dispatcher, f.breaker}, Initial: worker.Pending,
		})
	}
	(&admin.Admin{Pools: f.pools, Registry: f.reg, Health: f.checker, Breaker: f.breaker}).Mount(f.mux)
	f.metrics = expose(t, admin.Collector{Pools: f.pools, Dispatcher: dispatcher})
	f.vllmRouter = expose(t, admin.VLLMRouter{Pools: f.pools, Policies: policies, Dispatcher: dispatcher, Breaker: f.breaker})
	return f
}

// expose returns what shows the collector's metrics. It refuses what breaks the
// rules of metrics, such as one series twice.
func expose(t *testing.T, c prometheus.Collector) http.Handler {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// add registers a worker, for one more source, and makes it ready.
func (f *fleet) add(source string, reg worker.Registration) *worker.Worker {
	f.t.Helper()
	id, _, err := f.reg.Register(source, reg, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	pool := f.pools[id.Role]
	pool.Reconcile()
	for _, w := range pool.Snapshot().Workers {
		if w.ID() == id {
			w.Unblock(worker.Pending)
			return w
		}
	}
	f.t.Fatalf("%v is not in its pool", id)
	return nil
}

func (f *fleet) remove(w *worker.Worker) {
	f.t.Helper()
	id := w.ID()
	if err := f.reg.Remove("test", id.Role, id.URL, id.Rank); err != nil {
		f.t.Fatal(err)
	}
	f.pools[id.Role].Reconcile()
}

// pick takes a lease or a hold on the least loaded worker of a role.
func (f *fleet) pick(role worker.Role, take worker.Take, work worker.Work) worker.Grant {
	f.t.Helper()
	pool := f.pools[role]
	choice := policy.LeastLoad{}.Prepare(&policy.Request{Work: work}, pool.Snapshot())
	grants, err := worker.Pick(worker.Need{Pool: pool, Take: take, Chooser: choice})
	if err != nil {
		f.t.Fatal(err)
	}
	return grants[0]
}

func (f *fleet) get(target string) (int, string) {
	f.t.Helper()
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, httptest.NewRequest("GET", target, http.NoBody))
	var indented bytes.Buffer
	if err := json.Indent(&indented, w.Body.Bytes(), "", "  "); err != nil {
		return w.Code, w.Body.String()
	}
	return w.Code, indented.String()
}

// want compares a whole answer.
func (f *fleet) want(target string, status int, body string) {
	f.t.Helper()
	gotStatus, got := f.get(target)
	if diff := cmp.Diff(strings.TrimSpace(body), strings.TrimSpace(got)); gotStatus != status || diff != "" {
		f.t.Errorf("GET %s answered %d, want %d; -want +got:\n%s", target, gotStatus, status, diff)
	}
}

// wantFigures compares what the list says of workers that were ever picked.
func (f *fleet) wantFigures(want ...string) {
	f.t.Helper()
	_, body := f.get("/workers")
	var list struct {
		Workers []struct {
			URL     string `json:"url"`
			Load    int    `json:"load"`
			Holds   int    `json:"holds"`
			Picked  int    `json:"picked"`
			Waiting int    `json:"waiting_tokens"`
			Held    int    `json:"held_tokens"`
		} `json:"workers"`
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		f.t.Fatal(err)
	}
	var got []string
	for _, w := range list.Workers {
		if w.Picked > 0 {
			got = append(got, fmt.Sprintf("%s load=%d holds=%d picked=%d waiting=%d held=%d", w.URL, w.Load, w.Holds, w.Picked, w.Waiting, w.Held))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("-want +got:\n%s", diff)
	}
}

func at(role worker.Role, at string) worker.Registration {
	return worker.Registration{ID: worker.ID{Role: role, URL: at}}
}

// TestWorkers compares the whole list while leases and holds are out.
func TestWorkers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.want("/workers", 200, `{
  "stats": {
    "decode_count": 0,
    "prefill_count": 0,
    "regular_count": 0
  },
  "total": 0,
  "workers": []
}`)

	f.add("static", at(worker.Prefill, "http://p:8000"))
	prefill := worker.Registration{
		ID:       worker.ID{Role: worker.Prefill, URL: "http://p:8000"},
		Endpoint: worker.Endpoint{ZMQ: "tcp://p:14579", Dialect: "nixl"}, Labels: map[string]string{"group": "g"},
	}
	f.add("api", prefill).SetModels(worker.NewModels("base", "lora"))
	rank := at(worker.Regular, "http://r:8000")
	rank.ID.Rank = worker.AtRank(3)
	f.add("test", rank).Block(worker.Full) // the last resort, which is used all the same
	down := f.add("test", at(worker.Decode, "http://d:8000"))
	down.Block(worker.Down | worker.Draining)
	f.checker.ConnectFailed(down, errors.New("connect: no route to host"))

	first := f.pick(worker.Prefill, worker.Acquire, worker.Work{Waiting: 100, Held: 150}).Lease
	second := f.pick(worker.Prefill, worker.Acquire, worker.Work{Waiting: 7, Held: 9}).Lease
	hold := f.pick(worker.Regular, worker.AcquireHold, worker.Work{Waiting: 1000, Held: 1000}).Hold
	first.Computed()

	f.want("/workers", 200, `{
  "stats": {
    "decode_count": 1,
    "prefill_count": 1,
    "regular_count": 1
  },
  "total": 3,
  "workers": [
    {
      "url": "http://r:8000@3",
      "model_id": "unknown",
      "worker_type": "regular",
      "is_healthy": true,
      "load": 0,
      "connection_mode": "Http",
      "generation": 1,
      "state": "full",
      "holds": 1,
      "picked": 0,
      "waiting_tokens": 0,
      "held_tokens": 0,
      "models": null,
      "sources": [
        "test"
      ],
      "breaker": "closed",
      "foreign_load": 0
    },
    {
      "url": "http://p:8000",
      "model_id": "base",
      "worker_type": "prefill",
      "is_healthy": true,
      "load": 2,
      "connection_mode": "Http",
      "generation": 1,
      "state": "ready",
      "holds": 0,
      "picked": 2,
      "waiting_tokens": 7,
      "held_tokens": 159,
      "models": [
        "base",
        "lora"
      ],
      "kv_connector": "nixl",
      "zmq_address": "tcp://p:14579",
      "labels": {
        "group": "g"
      },
      "sources": [
        "api",
        "static"
      ],
      "breaker": "closed",
      "foreign_load": 0
    },
    {
      "url": "http://d:8000",
      "model_id": "unknown",
      "worker_type": "decode",
      "is_healthy": false,
      "load": 0,
      "connection_mode": "Http",
      "generation": 1,
      "state": "down,draining",
      "holds": 0,
      "picked": 0,
      "waiting_tokens": 0,
      "held_tokens": 0,
      "models": null,
      "sources": [
        "test"
      ],
      "last_error": "connect: no route to host",
      "drained": true,
      "breaker": "closed",
      "foreign_load": 0
    }
  ]
}`)

	first.Release()
	lease, err := hold.Start()
	if err != nil {
		t.Fatal(err)
	}
	f.wantFigures("http://r:8000@3 load=1 holds=0 picked=1 waiting=1000 held=1000", "http://p:8000 load=1 holds=0 picked=2 waiting=7 held=9")
	lease.Release()
	second.Release()
	f.wantFigures("http://r:8000@3 load=0 holds=0 picked=1 waiting=0 held=0", "http://p:8000 load=0 holds=0 picked=2 waiting=0 held=0")

	f.want("/list_workers", 200, `{
  "urls": [
    "http://r:8000@3",
    "http://p:8000",
    "http://d:8000"
  ]
}`)
	third := f.pick(worker.Prefill, worker.Acquire, worker.Work{}).Lease
	defer third.Release()
	third.Worker().SetForeign(2)
	f.want("/get_loads", 200, `{
  "workers": [
    {
      "worker": "http://r:8000@3",
      "load": 0
    },
    {
      "worker": "http://p:8000",
      "load": 3
    },
    {
      "worker": "http://d:8000",
      "load": 0
    }
  ]
}`)
}

// TestOneWorker: a URL names its workers in all roles and at all ranks.
func TestOneWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	rank := at(worker.Decode, "http://a:8000")
	rank.ID.Rank = worker.AtRank(1)
	f.add("test", rank)
	f.add("test", at(worker.Decode, "http://a:8000"))
	f.add("test", at(worker.Prefill, "http://a:8000"))
	f.add("test", at(worker.Regular, "http://b:8000"))

	path := func(s string) string { return "/workers/" + url.PathEscape(s) }
	tests := []struct {
		target string
		want   []string // role and label
	}{
		{path("http://b:8000"), []string{"regular http://b:8000"}},
		{path("HTTP://B:8000/"), []string{"regular http://b:8000"}},
		{"/workers/http:/b:8000", []string{"regular http://b:8000"}}, // what the mux makes of http://b:8000
		{path("http://a:8000"), []string{"prefill http://a:8000", "decode http://a:8000", "decode http://a:8000@1"}},
		{path("http://a:8000@1"), []string{"decode http://a:8000@1"}},
	}
	type view struct {
		URL  string `json:"url"`
		Role string `json:"worker_type"`
	}
	for _, tt := range tests {
		status, body := f.get(tt.target)
		var got struct {
			view
			Workers []view `json:"workers"`
			Total   int    `json:"total"`
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 {
			t.Errorf("GET %s answered %d %s", tt.target, status, body)
			continue
		}
		if got.Workers == nil {
			got.Workers, got.Total = []view{got.view}, 1
		}
		var labels []string
		for _, v := range got.Workers {
			labels = append(labels, v.Role+" "+v.URL)
		}
		if diff := cmp.Diff(tt.want, labels); diff != "" || got.Total != len(labels) {
			t.Errorf("GET %s: total %d, -want +got:\n%s", tt.target, got.Total, diff)
		}
	}
	f.want(path("http://a:8000@2"), 404, `{
  "code": "WORKER_NOT_FOUND",
  "error": "worker http://a:8000@2 not found"
}`)
	f.want(path("http://c"), 404, `{
  "code": "WORKER_NOT_FOUND",
  "error": "worker http://c not found"
}`)
	f.want("/workers/c", 400, `{
  "code": "INVALID_URL",
  "error": "worker URL \"c\": it must start with http:// or https://"
}`)
}

func (f *fleet) scrape(metrics http.Handler) string {
	f.t.Helper()
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", http.NoBody))
	if w.Code != 200 {
		f.t.Fatalf("scrape answered %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// TestMetrics compares all that the collector shows, and that a worker's series
// leave with it.
func TestMetrics(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	prefill := f.add("test", at(worker.Prefill, "http://p:8000"))
	rank := at(worker.Decode, "http://d:8000")
	rank.ID.Rank = worker.AtRank(1)
	decode := f.add("test", rank)
	pending := f.add("test", at(worker.Decode, "http://e:8000"))
	pending.Block(worker.Pending | worker.Ejected)
	lease := f.pick(worker.Prefill, worker.Acquire, worker.Work{Waiting: 100, Held: 150}).Lease
	f.pick(worker.Prefill, worker.Acquire, worker.Work{Waiting: 1, Held: 2}).Lease.Release()
	hold := f.pick(worker.Decode, worker.AcquireHold, worker.Work{Waiting: 5, Held: 6}).Hold

	const want = `# HELP baton_handoffs_total Hand-offs of the prefill worker: produced; delivered to a decode worker; discarded, given back early; abandoned, left to their validity.
# TYPE baton_handoffs_total counter
baton_handoffs_total{outcome="abandoned",worker="http://p:8000"} 0
baton_handoffs_total{outcome="delivered",worker="http://p:8000"} 0
baton_handoffs_total{outcome="discarded",worker="http://p:8000"} 0
baton_handoffs_total{outcome="produced",worker="http://p:8000"} 0
# HELP baton_recomputed_prompts_total Decode legs that computed the prompt because prefill handed nothing over (--pd-allow-recompute).
# TYPE baton_recomputed_prompts_total counter
baton_recomputed_prompts_total 0
# HELP baton_retries_total Legs tried again on another worker, by role.
# TYPE baton_retries_total counter
baton_retries_total{role="decode"} 0
baton_retries_total{role="prefill"} 0
baton_retries_total{role="regular"} 0
# HELP baton_worker_foreign_load Requests on the engine that are not this router's, as of its last fresh metrics.
# TYPE baton_worker_foreign_load gauge
baton_worker_foreign_load{role="decode",worker="http://d:8000@1"} 0
baton_worker_foreign_load{role="decode",worker="http://e:8000"} 0
baton_worker_foreign_load{role="prefill",worker="http://p:8000"} 0
# HELP baton_worker_generation Generation of the worker's lifetime; it rises when another process takes the address.
# TYPE baton_worker_generation gauge
baton_worker_generation{role="decode",worker="http://d:8000@1"} 1
baton_worker_generation{role="decode",worker="http://e:8000"} 2
baton_worker_generation{role="prefill",worker="http://p:8000"} 1
# HELP baton_worker_held_tokens Prompt and expected output tokens of the leases, estimated.
# TYPE baton_worker_held_tokens gauge
baton_worker_held_tokens{role="decode",worker="http://d:8000@1"} 0
baton_worker_held_tokens{role="decode",worker="http://e:8000"} 0
baton_worker_held_tokens{role="prefill",worker="http://p:8000"} 150
# HELP baton_worker_holds Workers chosen but not loaded yet.
# TYPE baton_worker_holds gauge
baton_worker_holds{role="decode",worker="http://d:8000@1"} 1
baton_worker_holds{role="decode",worker="http://e:8000"} 0
baton_worker_holds{role="prefill",worker="http://p:8000"} 0
# HELP baton_worker_legs_total Legs of this lifetime of the worker by how they ended: ok; refused, 4xx; failed, 5xx or no answer; broken off after the first byte; cut_off from outside.
# TYPE baton_worker_legs_total counter
baton_worker_legs_total{outcome="broken",role="decode",worker="http://d:8000@1"} 0
baton_worker_legs_total{outcome="broken",role="decode",worker="http://e:8000"} 0
baton_worker_legs_total{outcome="broken",role="prefill",worker="http://p:8000"} 0
baton_worker_legs_total{outcome="cut_off",role="decode",worker="http://d:8000@1"} 0
baton_worker_legs_total{outcome="cut_off",role="decode",worker="http://e:8000"} 0
baton_worker_legs_total{outcome="cut_off",role="prefill",worker="http://p:8000"} 0
baton_worker_legs_total{outcome="failed",role="decode",worker="http://d:8000@1"} 0
baton_worker_legs_total{outcome="failed",role="decode",worker="http://e:8000"} 0
baton_worker_legs_total{outcome="failed",role="prefill",worker="http://p:8000"} 0
baton_worker_legs_total{outcome="ok",role="decode",worker="http://d:8000@1"} 0
baton_worker_legs_total{outcome="ok",role="decode",worker="http://e:8000"} 0
baton_worker_legs_total{outcome="ok",role="prefill",worker="http://p:8000"} 0
baton_worker_legs_total{outcome="refused",role="decode",worker="http://d:8000@1"} 0
baton_worker_legs_total{outcome="refused",role="decode",worker="http://e:8000"} 0
baton_worker_legs_total{outcome="refused",role="prefill",worker="http://p:8000"} 0
# HELP baton_worker_load Leases on the worker now.
# TYPE baton_worker_load gauge
baton_worker_load{role="decode",worker="http://d:8000@1"} 0
baton_worker_load{role="decode",worker="http://e:8000"} 0
baton_worker_load{role="prefill",worker="http://p:8000"} 1
# HELP baton_worker_picked_total Leases ever taken on this lifetime of the worker.
# TYPE baton_worker_picked_total counter
baton_worker_picked_total{role="decode",worker="http://d:8000@1"} 0
baton_worker_picked_total{role="decode",worker="http://e:8000"} 0
baton_worker_picked_total{role="prefill",worker="http://p:8000"} 2
# HELP baton_worker_waiting_tokens Uncached prompt tokens that the leases still wait for, estimated.
# TYPE baton_worker_waiting_tokens gauge
baton_worker_waiting_tokens{role="decode",worker="http://d:8000@1"} 0
baton_worker_waiting_tokens{role="decode",worker="http://e:8000"} 0
baton_worker_waiting_tokens{role="prefill",worker="http://p:8000"} 100
# HELP baton_workers Workers by role and state: ready, or the reasons why they get no new work.
# TYPE baton_workers gauge
baton_workers{role="decode",state="pending,ejected"} 1
baton_workers{role="decode",state="ready"} 1
baton_workers{role="prefill",state="ready"} 1
baton_workers{role="regular",state="ready"} 0
`
	if diff := cmp.Diff(want, f.scrape(f.metrics)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// Leases of workers that have left change nothing that is shown.
	f.remove(prefill)
	f.remove(decode)
	f.remove(pending)
	again := f.add("test", at(worker.Prefill, "http://q:8000"))
	lease.Release()
	hold.Drop()
	got := f.scrape(f.metrics)
	for _, gone := range []string{"http://p:8000", "http://d:8000", "http://e:8000"} {
		if strings.Contains(got, gone) {
			t.Errorf("series of %s are left:\n%s", gone, got)
		}
	}
	if !strings.Contains(got, `baton_worker_load{role="prefill",worker="`+again.Label()+`"} 0`) {
		t.Errorf("no series of %s:\n%s", again.Label(), got)
	}
	if want := "baton_workers{role=\"decode\",state=\"ready\"} 0\n"; !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
}
