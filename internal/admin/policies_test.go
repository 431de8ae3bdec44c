package admin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/baton-llm/baton/internal/admin"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// turn is a request of a session.
type turn string

func (turn) KeyRoot() []string         { return []string{"m"} }
func (turn) WriteKey(openai.KeyWriter) {}
func (t turn) Session() openai.Session { return openai.Session{ID: string(t)} }
func (turn) Placement() string         { return "" }

// TestFinishSession ends sessions by name, and looks at what the policies'
// series say before and after.
func TestFinishSession(t *testing.T) {
	t.Parallel()
	cfg := policy.DefaultConfig()
	cfg.Role = worker.Prefill
	cfg.IndexMemory = 1 << 20
	sticky, index := policy.NewSticky(cfg), policy.NewCacheAware(cfg)
	policies := admin.Policies{
		ByRole: map[worker.Role]policy.Policy{worker.Regular: sticky, worker.Prefill: index, worker.Decode: policy.LeastLoad{}},
		Pools:  make(map[worker.Role]*worker.Pool),
	}
	reg := registry.New()
	for role, p := range policies.ByRole {
		var observers []worker.Observer
		if o, ok := p.(worker.Observer); ok {
			observers = append(observers, o)
		}
		policies.Pools[role] = worker.NewPool(worker.PoolConfig{Role: role, Lister: reg, Observers: observers})
	}
	register := func(role worker.Role, url string) {
		if _, _, err := reg.Register("test", worker.Registration{ID: worker.ID{Role: role, URL: url}}, 0); err != nil {
			t.Fatal(err)
		}
		policies.Pools[role].Reconcile()
	}
	mux := http.NewServeMux()
	policies.Mount(mux)
	metrics := prometheus.NewPedanticRegistry()
	if err := metrics.Register(policies); err != nil {
		t.Fatal(err)
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	ask := func(method, target string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, target, http.NoBody))
		return w.Code, w.Body.String()
	}
	wantSeries := func(want string) {
		t.Helper()
		_, got := ask("GET", "/metrics")
		var lines []string
		for line := range strings.Lines(got) {
			if !strings.HasPrefix(line, "#") && strings.Contains(line, "sessions") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		if diff := cmp.Diff(want, strings.Join(lines, "\n")); diff != "" {
			t.Errorf("series, -want +got:\n%s", diff)
		}
	}
	wantSeries(`baton_sessions{role="regular"} 0`)
	if _, got := ask("GET", "/metrics"); strings.Contains(got, "baton_prefix_index") {
		t.Error("an index without workers has series")
	}

	register(worker.Regular, "http://a:1")
	register(worker.Regular, "http://b:1")
	register(worker.Prefill, "http://p:1")
	for _, model := range []string{"m", "n"} { // the session has a home for each model
		request := &policy.Request{Model: model, Source: turn("s&1")}
		pool := policies.Pools[worker.Regular]
		grants, err := worker.Pick(worker.Need{Pool: pool, Take: worker.Acquire, Chooser: sticky.Prepare(request, pool.Snapshot())})
		if err != nil {
			t.Fatal(err)
		}
		grants[0].Lease.Release()
	}
	wantSeries(`baton_sessions{role="regular"} 2
baton_worker_sessions{role="regular",worker="http://a:1"} 1
baton_worker_sessions{role="regular",worker="http://b:1"} 1`)
	if _, got := ask("GET", "/metrics"); !strings.Contains(got, "baton_prefix_index_bytes{role=\"prefill\"}") {
		t.Errorf("the index has no series:\n%s", got)
	}

	for _, c := range []struct {
		target string
		status int
		body   string
	}{
		{"/finish_session", 400, `{"code":"SESSION_ID_MISSING","error":"the query needs session_id, the name of the session to forget"}`},
		{"/finish_session?session_id=other", 200, `{"session_id":"other","status":"ok"}`},
	} {
		if status, body := ask("POST", c.target); status != c.status || strings.TrimSpace(body) != c.body {
			t.Errorf("POST %s answered %d %s, want %d %s", c.target, status, body, c.status, c.body)
		}
	}
	if n := sticky.Sessions(); n != 2 {
		t.Errorf("%d sessions are remembered, want 2: another one was finished", n)
	}
	if status, body := ask("POST", "/finish_session?session_id=s%261"); status != 200 || strings.TrimSpace(body) != `{"session_id":"s&1","status":"ok"}` {
		t.Errorf("the session's end was answered with %d %s", status, body)
	}
	wantSeries(`baton_sessions{role="regular"} 0
baton_worker_sessions{role="regular",worker="http://a:1"} 0
baton_worker_sessions{role="regular",worker="http://b:1"} 0`)
}
