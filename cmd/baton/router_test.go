package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/testlog"
	"github.com/baton-llm/baton/internal/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// eventually waits until ok says yes.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dead is a worker that refuses connections: nobody listens on so low a port.
const dead = "http://127.0.0.1:1"

// startEngine runs an engine until the test ends and returns its URL.
func startEngine(t *testing.T, role string) (string, *enginesim.Engine) {
	t.Helper()
	l := listen(t)
	engine, err := enginesim.New(enginesim.Config{
		Role: role, Models: []string{"m"}, Connector: "nixl", Advertise: l.Addr().String(), DefaultTokens: 8,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error)
	go func() { over <- serveEngine(ctx, engine, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), engine
}

// running is a router that runs until it is drained or the test ends.
type running struct {
	*router
	t      *testing.T
	client *http.Client
	stop   context.CancelFunc
	delay  time.Duration // of the drain
	err    error         // of run, valid once over is closed
	over   chan struct{}
}

// startRouter runs a router with free ports.
func startRouter(t *testing.T, edit func(*config)) *running {
	t.Helper()
	cfg := defaultConfig()
	cfg.public, cfg.admin, cfg.metrics = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	cfg.workers.Dialect = "nixl"
	cfg.drainTimeout = patience
	edit(&cfg)
	r, err := newRouter(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &running{
		router: r, t: t, stop: cancel, over: make(chan struct{}),
		client: &http.Client{
			Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	go func() {
		defer close(run.over)
		run.err = r.run(ctx, func() time.Duration { return run.delay })
	}()
	t.Cleanup(func() {
		cancel()
		<-run.over
	})
	return run
}

func (r *running) adminAddr() string   { return r.others[0].listener.Addr().String() }
func (r *running) metricsAddr() string { return r.others[1].listener.Addr().String() }

// answer is what came back, whole.
type answer struct {
	status int
	header http.Header
	body   string
}

func (r *running) do(method, url, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func (r *running) get(path string) answer {
	r.t.Helper()
	return r.do("GET", "http://"+r.addr()+path, "")
}

func (r *running) chat() answer {
	r.t.Helper()
	const body = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	return r.do("POST", "http://"+r.addr()+"/v1/chat/completions", body, "Content-Type", "application/json")
}

// counts returns how many workers are ready and how many there are.
func (r *running) counts() (ready, all int) {
	for _, role := range worker.Roles() {
		for _, w := range r.pools[role].Snapshot().Workers {
			all++
			if w.Blocked() == 0 {
				ready++
			}
		}
	}
	return ready, all
}

// TestStart is case 2.13: a router starts with all, some or none of its workers
// up, is alive at once and ready when a request can be served, and says what is
// missing.
func TestStart(t *testing.T) {
	t.Parallel()
	regular, _ := startEngine(t, enginesim.RoleRegular)
	prefill, _ := startEngine(t, enginesim.RolePrefill)
	decode, _ := startEngine(t, enginesim.RoleDecode)
	tests := []struct {
		name   string
		edit   func(*config)
		up     int    // workers that will be ready
		reason string // why it is not ready, "" if it is
		says   []string
	}{
		{"none configured", func(*config) {}, 0, "no regular worker is ready", []string{"0 regular, 0 prefill, 0 decode"}},
		{"all up", func(c *config) { c.workers.Regular = []string{regular} }, 1, "", nil},
		{"some up", func(c *config) { c.workers.Regular = []string{dead, regular} }, 1, "", nil},
		{
			"none up", func(c *config) { c.workers.Regular = []string{dead} }, 0, "no regular worker is ready",
			[]string{"1 regular (1 pending)", dead, "connection refused"},
		},
		{"a pair up", func(c *config) { c.workers.Prefill, c.workers.Decode = []string{prefill}, []string{decode} }, 2, "", nil},
		{
			"prefill up", func(c *config) { c.workers.Prefill, c.workers.Decode = []string{prefill}, []string{dead} }, 1,
			"no regular worker is ready, and there is no decode candidate",
			[]string{"1 prefill (1 ready)", "1 decode (1 pending)", "connection refused"},
		},
		{
			"decode up", func(c *config) { c.workers.Prefill, c.workers.Decode = []string{dead}, []string{decode} }, 1,
			"no regular worker is ready, and there is no prefill candidate",
			[]string{"1 prefill (1 pending)", "1 decode (1 ready)"},
		},
		{
			"regular beside half a pair", func(c *config) {
				c.workers.Regular, c.workers.Prefill, c.workers.Decode = []string{regular}, []string{dead}, []string{decode}
			}, 2, "", nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := startRouter(t, tt.edit)
			if got := r.get("/liveness"); got.status != 200 {
				t.Errorf("/liveness answered %d", got.status)
			}
			r.reconcile() // so that all workers are counted
			eventually(t, "every worker was probed", func() bool {
				ready, all := r.counts()
				probed := ready
				for _, role := range worker.Roles() {
					for _, w := range r.pools[role].Snapshot().Workers {
						if r.health.LastError(w) != "" {
							probed++
						}
					}
				}
				return ready == tt.up && probed == all
			})

			var ready struct {
				Status string `json:"status"`
				Reason string `json:"reason"`
			}
			readiness := r.get("/readiness")
			if err := json.Unmarshal([]byte(readiness.body), &ready); err != nil || ready.Reason != tt.reason {
				t.Errorf("/readiness answered %s, want the reason %q", readiness.body, tt.reason)
			}
			health, chat := r.get("/health"), r.chat()
			if tt.reason == "" {
				if readiness.status != 200 || health.status != 200 || chat.status != 200 {
					t.Errorf("/readiness %d, /health %d, chat %d %s", readiness.status, health.status, chat.status, chat.body)
				}
				return
			}
			if readiness.status != 503 || health.status != 503 || health.body != tt.reason+"\n" {
				t.Errorf("/readiness %d, /health %d %s", readiness.status, health.status, health.body)
			}
			var refusal struct {
				Error struct {
					Message string `json:"message"`
					Type    string `json:"type"`
					Code    string `json:"code"`
				} `json:"error"`
			}
			if err := json.Unmarshal([]byte(chat.body), &refusal); err != nil || chat.status != 503 || refusal.Error.Code == "" {
				t.Fatalf("chat answered %d %s", chat.status, chat.body)
			}
			if chat.header.Get("Retry-After") == "" || chat.header.Get("X-Request-Id") == "" {
				t.Errorf("headers %v", chat.header)
			}
			for _, part := range tt.says {
				if !strings.Contains(refusal.Error.Message, part) {
					t.Errorf("the 503 says %q, want %q in it", refusal.Error.Message, part)
				}
			}
			if got := r.get("/liveness"); got.status != 200 {
				t.Errorf("/liveness answered %d", got.status)
			}
		})
	}
}

// TestWorkerComesUp: a worker that listens only later is found by its probes.
func TestWorkerComesUp(t *testing.T) {
	t.Parallel()
	at, engine := startEngine(t, enginesim.RoleRegular)
	heal := engine.Fault(enginesim.Fault{Path: "/health", Action: "status", Status: 503})
	r := startRouter(t, func(c *config) { c.workers.Regular = []string{at} })
	eventually(t, "the worker was probed", func() bool { return len(engine.Requests()) > 0 })
	if got := r.get("/readiness"); got.status != 503 {
		t.Errorf("/readiness answered %d", got.status)
	}
	heal()
	eventually(t, "ready", func() bool { return r.get("/readiness").status == 200 })
}

// stream is a chat stream that an engine holds back in the middle.
type stream struct {
	body   *http.Response
	gate   func() // lets it go on
	events bytes.Buffer
}

func (r *running) startStream(engine *enginesim.Engine) *stream {
	r.t.Helper()
	engine.Fault(enginesim.Fault{Point: "chunk:2", Action: "gate", Gate: "middle"})
	var once sync.Once
	s := &stream{gate: func() { once.Do(func() { engine.Open("middle") }) }}
	r.t.Cleanup(s.gate)
	const body = `{"model":"m","stream":true,"max_tokens":8,"messages":[{"role":"user","content":"hi"}]}`
	req, err := http.NewRequestWithContext(r.t.Context(), "POST", "http://"+r.addr()+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.body, err = r.client.Do(req); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.body.Body.Close() })
	for strings.Count(s.events.String(), "\n\n") < 2 {
		if _, err := io.CopyN(&s.events, s.body.Body, 1); err != nil {
			r.t.Fatalf("the stream has %q: %v", s.events.String(), err)
		}
	}
	return s
}

// rest reads the stream to its end.
func (s *stream) rest() error {
	_, err := io.Copy(&s.events, s.body.Body)
	return err
}

// TestDrain is case 6.3: a stream outlives the drain, which meanwhile fails
// /readiness, goes on serving for its delay and then stops listening.
func TestDrain(t *testing.T) {
	t.Parallel()
	at, engine := startEngine(t, enginesim.RoleRegular)
	r := startRouter(t, func(c *config) { c.workers.Regular = []string{at} })
	r.delay = 1500 * time.Millisecond
	eventually(t, "ready", func() bool { return r.get("/readiness").status == 200 })
	s := r.startStream(engine)
	regular := r.pools[worker.Regular].Snapshot().Workers[0]
	if regular.Load() != 1 {
		t.Errorf("load %d while the stream runs", regular.Load())
	}

	r.stop()
	eventually(t, "draining is said", func() bool { return r.get("/readiness").status == 503 })
	if got := r.get("/health"); got.status != 503 || got.body != "draining\n" {
		t.Errorf("/health answered %d %s", got.status, got.body)
	}
	if got := r.get("/liveness"); got.status != 200 {
		t.Errorf("/liveness answered %d", got.status)
	}
	if got := r.get("/v1/models"); got.status != 200 {
		t.Errorf("a request during the delay got %d", got.status)
	}
	eventually(t, "the listener is closed", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.addr())
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	select {
	case <-r.over:
		t.Fatal("the router ended before its stream")
	default:
	}
	if got := r.do("GET", "http://"+r.metricsAddr()+"/metrics", ""); !strings.Contains(got.body, `baton_worker_load{role="regular",worker="`+at+`"} 1`) {
		t.Errorf("the metrics do not show the stream: %s", got.body)
	}

	s.gate()
	if err := s.rest(); err != nil || !strings.HasSuffix(s.events.String(), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v and\n%s", err, s.events.String())
	}
	<-r.over
	if r.err != nil {
		t.Errorf("run: %v", r.err)
	}
	if regular.Load() != 0 {
		t.Errorf("load %d at the end", regular.Load())
	}
}

// TestDrainTimeout: what does not finish in time is cut off, visibly.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	at, engine := startEngine(t, enginesim.RoleRegular)
	r := startRouter(t, func(c *config) {
		c.workers.Regular = []string{at}
		c.drainTimeout = 100 * time.Millisecond
	})
	eventually(t, "ready", func() bool { return r.get("/readiness").status == 200 })
	s := r.startStream(engine)
	r.stop()
	if err := s.rest(); err == nil || strings.Contains(s.events.String(), "[DONE]") {
		t.Errorf("the stream ended with %v and\n%s", err, s.events.String())
	}
	<-r.over
	if !errors.Is(r.err, errDrainTimeout) || !strings.Contains(r.err.Error(), "--drain-timeout") {
		t.Errorf("run: %v, want %v", r.err, errDrainTimeout)
	}
	eventually(t, "the load is gone", func() bool { return r.pools[worker.Regular].Snapshot().Workers[0].Load() == 0 })
}

func TestDrainIdle(t *testing.T) {
	t.Parallel()
	r := startRouter(t, func(c *config) { c.drainTimeout = 0 })
	if got := r.get("/liveness"); got.status != 200 {
		t.Errorf("/liveness answered %d", got.status)
	}
	r.stop()
	<-r.over
	if r.err != nil {
		t.Errorf("run: %v", r.err)
	}
}

// TestAdmin: the admin API adds a worker that is then probed and used, on its
// own listener and, if asked for, on the public one; no foreign page may use it.
func TestAdmin(t *testing.T) {
	t.Parallel()
	for _, public := range []bool{false, true} {
		at, _ := startEngine(t, enginesim.RoleRegular)
		r := startRouter(t, func(c *config) { c.adminOnPublic = public })
		base := "http://" + r.adminAddr()
		if public {
			base = "http://" + r.addr()
		} else if got := r.get("/workers"); got.status != 404 || !strings.Contains(got.body, "path_not_served") {
			t.Errorf("the public listener answered %d %s", got.status, got.body)
		}

		add := `{"url":"` + at + `"}`
		if got := r.do("POST", base+"/workers", add, "Sec-Fetch-Site", "cross-site"); got.status != 403 {
			t.Errorf("public %t: a page of another site got %d %s", public, got.status, got.body)
		}
		if got := r.do("POST", base+"/workers", add, "Origin", "http://evil.example"); got.status != 403 {
			t.Errorf("public %t: a page of another origin got %d %s", public, got.status, got.body)
		}
		if got := r.do("GET", base+"/workers", ""); got.status != 200 || !strings.Contains(got.body, `"total":0`) {
			t.Errorf("public %t: %d %s", public, got.status, got.body)
		}
		if got := r.do("POST", base+"/workers", add); got.status != 200 {
			t.Errorf("public %t: add answered %d %s", public, got.status, got.body)
		}
		eventually(t, "the added worker serves", func() bool { return r.chat().status == 200 })
		if got := r.do("GET", base+"/workers/"+at, ""); got.status != 200 || !strings.Contains(got.body, `"is_healthy":true`) {
			t.Errorf("public %t: %d %s", public, got.status, got.body)
		}
		for _, target := range []string{at, url.PathEscape(at)} { // answered at once, without a redirect
			for _, verb := range []string{"/drain", "/undrain"} {
				if got := r.do("POST", base+"/workers/"+target+verb, ""); got.status != 200 || got.body == "" {
					t.Errorf("public %t: %s%s answered %d %s", public, target, verb, got.status, got.body)
				}
			}
		}
		if got := r.do("DELETE", base+"/workers/"+at, ""); got.status != 200 {
			t.Errorf("public %t: remove answered %d %s", public, got.status, got.body)
		}
		eventually(t, "the worker is gone", func() bool { _, all := r.counts(); return all == 0 })
	}
}

// TestFinishSession: clients end a session on the listener that they use, and
// the operator on the other; in every role, and no foreign page may.
func TestFinishSession(t *testing.T) {
	t.Parallel()
	at, _ := startEngine(t, enginesim.RoleRegular)
	r := startRouter(t, func(c *config) {
		c.workers.Regular = []string{at}
		for role := range c.policies {
			c.policies[role] = "sticky"
		}
	})
	eventually(t, "the worker serves", func() bool { return r.chat().status == 200 })
	sessions := func() string {
		for line := range strings.Lines(r.do("GET", "http://"+r.metricsAddr()+"/metrics", "").body) {
			if n, ok := strings.CutPrefix(line, `baton_sessions{role="regular"} `); ok {
				return strings.TrimSpace(n)
			}
		}
		return "no series"
	}
	for _, addr := range []string{r.addr(), r.adminAddr()} {
		body := `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
		if got := r.do("POST", "http://"+r.addr()+"/v1/chat/completions", body, "Content-Type", "application/json", "X-Session-Id", "s1"); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if n := sessions(); n != "1" {
			t.Errorf("%s sessions, want 1", n)
		}
		at := "http://" + addr + "/finish_session?session_id=s1"
		if got := r.do("POST", at, "", "Origin", "http://evil.example"); got.status != 403 {
			t.Errorf("a page of another origin got %d %s", got.status, got.body)
		}
		if got := r.do("POST", at, ""); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
		if n := sessions(); n != "0" {
			t.Errorf("%s sessions after the end, want 0", n)
		}
	}
}

// TestMetricsListeners: both show the same registry.
func TestMetricsListeners(t *testing.T) {
	t.Parallel()
	r := startRouter(t, func(c *config) { c.workers.Decode = []string{dead} })
	series := `baton_worker_load{role="decode",worker="` + dead + `"} 0`
	for _, addr := range []string{r.adminAddr(), r.metricsAddr()} {
		eventually(t, "the worker has series", func() bool {
			got := r.do("GET", "http://"+addr+"/metrics", "")
			return got.status == 200 && strings.Contains(got.body, series) && strings.Contains(got.body, "go_goroutines")
		})
	}
	if got := r.get("/metrics"); got.status != 404 {
		t.Errorf("clients get %d for /metrics", got.status)
	}
}

// TestBindFailure: a port in use ends the start with exit code 1, names the flags
// and leaves no other listener open.
func TestBindFailure(t *testing.T) {
	t.Parallel()
	taken := listen(t)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--port", "--admin-port", "--prometheus-port"} {
		args := []string{"serve"}
		for _, other := range []string{"--port", "--admin-port", "--prometheus-port"} {
			if other != flag {
				args = append(args, other, "0")
			}
		}
		var stdout, stderr bytes.Buffer
		code := baton(append(args, flag, port), &stdout, &stderr)
		if code != 1 || !strings.Contains(stderr.String(), flag+":") || !strings.Contains(stderr.String(), "address already in use") {
			t.Errorf("%s: exit code %d and %q", flag, code, stderr.String())
		}
	}

	cfg := defaultConfig()
	free := listen(t)
	cfg.public, cfg.metrics = free.Addr().String(), taken.Addr().String()
	free.Close()
	if _, err := newRouter(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("a router with a port in use was made")
	}
	again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", cfg.public)
	if err != nil {
		t.Fatalf("the public listener stays open: %v", err)
	}
	again.Close()
}

// serving returns what the start line says of a key.
func serving(log, key string) string {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "msg=serving") {
			continue
		}
		_, rest, _ := strings.Cut(line, " "+key+"=")
		value, _, _ := strings.Cut(rest, " ")
		return strings.TrimSpace(value)
	}
	return ""
}

// TestServeUntilSignal runs the command itself. It is not parallel: the signal
// goes to the whole process.
func TestServeUntilSignal(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		var stdout bytes.Buffer
		var stderr testlog.Buffer
		var code atomic.Int64
		over := make(chan struct{})
		go func() {
			defer close(over)
			code.Store(int64(baton([]string{
				"serve", "--port", "0", "--admin-port", "0", "--prometheus-port", "0", "--drain-delay", "50ms",
				"--prefill", dead, "8998", "--decode", dead, "--api-key", "sk-secret",
			}, &stdout, &stderr)))
		}()
		eventually(t, "the start line", func() bool { return serving(stderr.String(), "address") != "" })
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		// Who answers has set up its signals.
		eventually(t, "alive", func() bool {
			resp, err := client.Get("http://" + serving(stderr.String(), "address") + "/liveness")
			if err != nil {
				return false
			}
			resp.Body.Close()
			return resp.StatusCode == 200
		})
		eventually(t, "the dead server is named", func() bool { return strings.Contains(stderr.String(), "probe failed") })
		if err := self.Signal(sig); err != nil {
			t.Fatal(err)
		}
		<-over
		if code.Load() != 0 {
			t.Errorf("%v: exit code %d", sig, code.Load())
		}
		log := stderr.String()
		delay := map[syscall.Signal]string{syscall.SIGTERM: "delay=50ms", syscall.SIGINT: "delay=0s"}[sig]
		for _, part := range []string{"bootstrap ports", "msg=draining", delay, "msg=drained"} {
			if !strings.Contains(log, part) {
				t.Errorf("%v: no %q in\n%s", sig, part, log)
			}
		}
		if strings.Contains(log+stdout.String(), "sk-secret") {
			t.Errorf("%v: the key was logged", sig)
		}
	}
}

// TestVLLMRouterRoutes walks through vllm-router's routes: each is answered where
// docs/migrating.md says, or is not served.
func TestVLLMRouterRoutes(t *testing.T) {
	t.Parallel()
	engine, _ := startEngine(t, enginesim.RoleRegular)
	r := startRouter(t, func(c *config) { c.workers.Regular = []string{engine} })
	eventually(t, "the worker is ready", func() bool { ready, _ := r.counts(); return ready == 1 })
	const (
		chat  = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
		comp  = `{"model":"m","prompt":"hi"}`
		input = `{"model":"m","input":"hi"}`
	)
	escaped := url.PathEscape(engine)
	for _, tt := range []struct {
		method, path, body string
		public, admin      int
	}{
		{"POST", "/generate", comp, 404, 404},
		{"POST", "/inference/v1/generate", `{"model":"m","token_ids":[1,2],"sampling_params":{}}`, 200, 404},
		{"POST", "/v1/chat/completions", chat, 200, 404},
		{"POST", "/v1/completions", comp, 200, 404},
		{"POST", "/rerank", `{"model":"m","query":"q","documents":["d"]}`, 200, 404},
		{"POST", "/v1/rerank", `{"model":"m","query":"q","documents":["d"]}`, 200, 404},
		{"POST", "/v1/responses", input, 200, 404},
		{"POST", "/v1/embeddings", input, 200, 404},
		{"GET", "/v1/responses/resp_1", "", 404, 404},         // the worker's own 404
		{"POST", "/v1/responses/resp_1/cancel", "", 404, 404}, // likewise
		{"DELETE", "/v1/responses/resp_1", "", 405, 404},      // vLLM has no such route
		{"GET", "/liveness", "", 200, 404},
		{"GET", "/readiness", "", 200, 404},
		{"GET", "/health", "", 200, 404},
		{"GET", "/health_generate", "", 404, 404},
		{"GET", "/v1/models", "", 200, 404},
		{"GET", "/get_model_info", "", 404, 404},
		{"GET", "/get_server_info", "", 404, 404},
		{"POST", "/add_worker?url=" + dead, "", 404, 200},
		{"POST", "/remove_worker?url=" + dead, "", 404, 200},
		{"GET", "/list_workers", "", 404, 200},
		{"POST", "/flush_cache", "", 404, 404},
		{"GET", "/get_loads", "", 404, 200},
		{"GET", "/scheduling/diagnostics", "", 404, 404},
		{"POST", "/finish_session?session_id=s", "", 200, 200},
		{"POST", "/workers", `{"url":"` + dead + `"}`, 404, 200},
		{"GET", "/workers", "", 404, 200},
		{"GET", "/workers/" + escaped, "", 404, 200},
		{"DELETE", "/workers/" + url.PathEscape(dead), "", 404, 200},
		{"GET", "/metrics", "", 404, 200},
	} {
		for addr, want := range map[string]int{r.addr(): tt.public, r.adminAddr(): tt.admin} {
			var header []string
			if tt.body != "" {
				header = []string{"Content-Type", "application/json"}
			}
			if got := r.do(tt.method, "http://"+addr+tt.path, tt.body, header...); got.status != want {
				where := "public"
				if addr == r.adminAddr() {
					where = "admin"
				}
				t.Errorf("%s %s on the %s listener: %d %s, want %d", tt.method, tt.path, where, got.status, got.body, want)
			}
		}
	}
}
