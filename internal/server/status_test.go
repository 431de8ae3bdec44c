package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/worker"
)

// statusOf returns the answers of /liveness, /health and /readiness.
func statusOf(f *fleet) (live, health, ready int, reason string) {
	f.t.Helper()
	var v struct{ Status, Reason string }
	r := f.get("/readiness")
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		f.t.Errorf("%v in %s", err, r.body)
	}
	if want := map[int]string{200: "ready", 503: "not_ready"}[r.status]; v.Status != want {
		f.t.Errorf("status %q with %d", v.Status, r.status)
	}
	h := f.get("/health")
	if want := v.Reason + "\n"; h.status != 200 && h.body != want {
		f.t.Errorf("/health says %q, /readiness %q", h.body, want)
	}
	return f.get("/liveness").status, h.status, r.status, v.Reason
}

// Cases 1.30, 2.13, 2.27.
func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{engines: []enginesim.Config{}})
		want := func(status int, reason string) {
			t.Helper()
			live, health, ready, got := statusOf(f)
			if live != 200 || health != status || ready != status || got != reason {
				t.Errorf("liveness %d, health %d, readiness %d: %q, want %d: %q", live, health, ready, got, status, reason)
			}
		}
		want(503, "no regular worker is ready")

		f.engine(0, pdEngines()[0])
		f.settle()
		want(503, "no regular worker is ready, and there is no decode candidate")

		f.registerAs(worker.Decode, "http://nowhere:1", "nixl")
		f.settle()
		want(503, "no regular worker is ready, and there is no decode candidate")

		// Ready, but nobody speaks its dialect.
		f.serve("stranger:1", &http.Server{Handler: modelsOf(`{"data":[{"id":"m"}]}`)})
		f.registerAs(worker.Prefill, "http://stranger:1", "strange")
		f.registerAs(worker.Decode, "http://stranger:1", "strange")
		f.settle()
		want(503, "no regular worker is ready, and there is no decode candidate")

		f.engine(1, pdEngines()[1])
		f.settle()
		want(200, "")
		var v struct {
			HealthyWorkers int                       `json:"healthy_workers"`
			TotalWorkers   int                       `json:"total_workers"`
			Roles          map[string]map[string]int `json:"roles"`
		}
		if err := json.Unmarshal([]byte(f.get("/readiness").body), &v); err != nil {
			t.Fatal(err)
		}
		roles := map[string]map[string]int{
			"regular": {"healthy": 0, "total": 0}, "prefill": {"healthy": 2, "total": 2}, "decode": {"healthy": 2, "total": 3},
		}
		if diff := cmp.Diff(roles, v.Roles); diff != "" || v.HealthyWorkers != 4 || v.TotalWorkers != 5 {
			t.Errorf("%+v (-want +got)\n%s", v, diff)
		}

		f.status.Drain()
		want(503, "draining")
		if a := f.post(chat, chatBody("hi")); a.status != 200 {
			t.Errorf("while draining: %+v", a)
		}
	})
}

func TestReadinessOfRegular(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		if live, health, ready, reason := statusOf(f); live != 200 || health != 200 || ready != 200 || reason != "" {
			t.Errorf("liveness %d, health %d, readiness %d: %q", live, health, ready, reason)
		}
		f.net.Kill(f.addrs[0])
		time.Sleep(20 * time.Second)
		if live, health, ready, reason := statusOf(f); live != 200 || health != 503 || ready != 503 || reason != "no regular worker is ready" {
			t.Errorf("liveness %d, health %d, readiness %d: %q", live, health, ready, reason)
		}
	})
}

// modelsOf is a worker that is well and has that model list.
func modelsOf(list string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			io.WriteString(w, list)
		}
	}
}

// Cases 2.15 and 5.8: the union of what the ready workers serve, each entry as
// its worker wrote it.
func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{engines: []enginesim.Config{}})
		want := func(entries ...string) {
			t.Helper()
			for range 20 {
				a := f.get("/v1/models")
				body := `{"object":"list","data":[` + strings.Join(entries, ",") + `]}`
				if a.status != 200 || a.body != body || a.header.Get("Content-Type") != "application/json" {
					t.Fatalf("%+v, want %s", a, body)
				}
			}
		}
		want()
		const (
			odd   = `{ "id":"m1","max_model_len": 9007199254740993,"root":"/models/<a>&b", "permission":[ {"x":1.0} ],` + "\n" + `"parent":null,"é":"\u00e9"}`
			lora  = `{"id":"ad1","parent":"m1"}`
			other = `{"id":"m1","max_model_len":1}`
			m2    = `{"id":"m\u0032"}`
			down  = `{"id":"down"}`
		)
		f.serve("a:1", &http.Server{Handler: modelsOf(`{"object":"list","data":[` + odd + ` , ` + lora + `]}`)})
		f.serve("b:1", &http.Server{Handler: modelsOf(`{"data":[` + other + `,` + m2 + `]}`)})
		f.serve("c:1", &http.Server{Handler: modelsOf(`{"data":[` + down + `]}`)})
		f.register(worker.Decode, "http://b:1")
		f.register(worker.Regular, "http://a:1")
		f.register(worker.Prefill, "http://c:1")
		f.register(worker.Regular, "http://0-first-but-dead:1")
		f.settle()
		want(odd, lora, down, m2)

		f.net.Kill("c:1")
		time.Sleep(20 * time.Second)
		want(odd, lora, m2)
	})
}

// Errors from further in have the form that clients of the path know.
func TestDispatchErrors(t *testing.T) {
	for _, tt := range []struct {
		name, path, body string
		engines          []enginesim.Config
		break_           func(f *fleet)
		status           int
		code             string
		retryAfter       string
	}{
		{"no workers", chat, chatBody("hi"), []enginesim.Config{}, nil, 503, "no_workers", "1"},
		{"no workers, on messages", "/v1/messages", `{"model":"m","messages":[],"max_tokens":1}`, []enginesim.Config{}, nil, 503, "no_workers", "1"},
		{"no decode", chat, chatBody("hi"), pdEngines()[:1], nil, 503, "no_decode", "1"},
		{"no prefill", chat, chatBody("hi"), pdEngines()[1:], nil, 503, "no_prefill", "1"},
		// Case 5.5.
		{"unknown model", chat, `{"model":"zzz","messages":[]}`, nil, nil, 404, "model_not_found", ""},
		{"unknown model, on messages", "/v1/messages", `{"model":"zzz","messages":[]}`, nil, nil, 404, "model_not_found", ""},
		// Case 5.4.
		{"no model where there are several", chat, `{"messages":[]}`, []enginesim.Config{{Models: []string{"a"}}, {Models: []string{"b"}}}, nil, 400, "model_required", ""},
		{"not for a pair", "/v1/completions", `{"model":"m","prompt":["a","b"]}`, pdEngines(), nil, 400, "not_in_pd", ""},
		{"refused", chat, chatBody("hi"), nil, func(f *fleet) { f.net.Refuse(f.addrs[0]) }, 502, "connect_failed", ""},
		{"cut off", chat, chatBody("hi"), nil, func(f *fleet) { f.engines[0].Fault(enginesim.Fault{Action: "reset"}) }, 502, "worker_failed", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{engines: tt.engines})
				if tt.break_ != nil {
					tt.break_(f)
				}
				a := f.post(tt.path, tt.body)
				if a.err != nil || a.status != tt.status || a.code() != tt.code || a.header.Get("Retry-After") != tt.retryAfter {
					t.Errorf("%+v, want %d %s", a, tt.status, tt.code)
				}
				wantErrorObject(t, tt.path, a)
				if line := f.access(); line["status"] != float64(tt.status) || line["code"] != tt.code {
					t.Errorf("%v", line)
				}
				if strings.Contains(a.body, ":8000") {
					t.Errorf("an address is in the body: %s", a.body)
				}
			})
		})
	}
}

// Cases 4.22 and 5.18: a worker's own error passes as it is.
func TestWorkerErrorsPass(t *testing.T) {
	for _, fault := range []enginesim.Fault{
		{Action: "status", Status: 503, Body: "loading\n", Header: map[string]string{"Content-Type": "text/plain", "Retry-After": "7"}},
		{Action: "status", Status: 502, Body: "<html>bad</html>", Header: map[string]string{"Content-Type": "text/html"}},
		{Action: "status", Status: 404, Body: `{"detail":"Not Found"}`},
		{Action: "status", Status: 429, Body: `{"error":"x"}`, Header: map[string]string{"Retry-After": "3"}},
	} {
		t.Run(strconv.Itoa(fault.Status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{})
				f.engines[0].Fault(fault)
				a := f.post(chat, chatBody("hi"))
				if a.status != fault.Status || a.body != fault.Body || a.err != nil {
					t.Errorf("%+v", a)
				}
				for name, want := range fault.Header {
					if got := a.header.Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				if len(f.arrived()) != 1 {
					t.Errorf("%d requests arrived, want 1", len(f.arrived()))
				}
			})
		})
	}
}
