package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/memnet"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/server"
	"github.com/baton-llm/baton/internal/testlog"
	"github.com/baton-llm/baton/internal/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const routerAddr = "router:30000"

// patience is how long a client waits, in a bubble's time.
const patience = time.Hour

// options say what a fleet is made of. The zero value is one regular engine.
type options struct {
	engines []enginesim.Config // a role and whatever matters to the test
	server  func(*server.Config)
	handler func(io.Writer) slog.Handler // nil: JSON
	policy  policy.Policy                // nil: least_load
	choose  string                       // in place of policy, the name of each role's policy
	carrier func(exchange.Carrier) exchange.Carrier
	soiled  bool // violations are part of the test
}

// pdEngines are one prefill and one decode engine.
func pdEngines() []enginesim.Config {
	return []enginesim.Config{
		{Role: enginesim.RolePrefill, Connector: "nixl", Strict: true},
		{Role: enginesim.RoleDecode, Connector: "nixl", Strict: true},
	}
}

// fleet is a router with its engines on a network in memory. It is made and used
// inside a bubble.
type fleet struct {
	t          *testing.T
	net        *memnet.Network
	engines    []*enginesim.Engine
	addrs      []string
	registry   *registry.Registry
	pools      map[worker.Role]*worker.Pool
	status     *server.Status
	dispatcher *dispatch.Dispatcher
	server     *server.Server
	metrics    *prometheus.Registry
	log        testlog.Buffer
	client     *http.Client
	stop       []func() // in the order in which they are called
}

// start starts a fleet that lasts until the test ends. Its workers are ready.
func start(t *testing.T, o options) *fleet {
	t.Helper()
	if o.engines == nil {
		o.engines = []enginesim.Config{{}}
	}
	f := &fleet{
		t: t, net: new(memnet.Network), registry: registry.New(),
		pools: make(map[worker.Role]*worker.Pool), metrics: prometheus.NewRegistry(),
	}
	f.wire(o)
	for i, cfg := range o.engines {
		f.engine(i, cfg)
	}
	t.Cleanup(func() { f.close(o.soiled) })
	f.settle()
	return f
}

// wire puts a router together as cmd/baton does.
func (f *fleet) wire(o options) {
	handler := slog.Handler(slog.NewJSONHandler(&f.log, nil))
	if o.handler != nil {
		handler = o.handler(&f.log)
	}
	log := slog.New(handler)
	pol := o.policy
	if pol == nil {
		pol = policy.LeastLoad{}
	}
	policies := make(map[worker.Role]policy.Policy)
	for _, role := range worker.Roles() {
		policies[role] = pol
		if o.choose != "" {
			cfg := policy.DefaultConfig()
			cfg.Role = role
			var err error
			if policies[role], err = policy.New(o.choose, cfg); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	dialects := pd.Set{pd.NewNIXL(pd.NIXLValidity)}
	breakers := breaker.New(breaker.Default(), log)
	checker := health.New(health.Default(), health.Deps{Renewer: f.registry, Dial: f.net.DialContext, Logger: log})
	f.dispatcher = dispatch.New(dispatch.Default(), dispatch.Deps{
		Pools: f.pools, Policies: policies, Dialects: dialects, Health: checker, Breaker: breakers, Logger: log,
		NewCarrier: func(base string) (exchange.Carrier, error) {
			c, err := nethttp.New(base, nethttp.Config{Dial: f.net.DialContext})
			if err != nil || o.carrier == nil {
				return c, err
			}
			return o.carrier(c), nil
		},
	})
	for _, role := range worker.Roles() {
		observers := []worker.Observer{f.dispatcher, breakers, checker}
		if o, ok := policies[role].(worker.Observer); ok {
			observers = append(observers, o)
		}
		f.pools[role] = worker.NewPool(worker.PoolConfig{
			Role: role, Lister: f.registry, Observers: observers,
			Initial: worker.Pending, Dialects: dialects.Bits,
		})
	}
	f.status = &server.Status{Pools: f.pools, Health: checker}
	cfg := server.Default()
	if o.server != nil {
		o.server(&cfg)
	}
	f.server = server.New(cfg, server.Deps{Dispatcher: f.dispatcher, Status: f.status, Logger: log, Registerer: f.metrics})
	f.serve(routerAddr, &http.Server{
		Handler: f.server, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 120 * time.Second, MaxHeaderBytes: 1 << 20,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { checker.Run(ctx) })
	wg.Go(func() { f.registry.Watch(ctx, f.reconcile) })
	f.stop = append(f.stop, func() { cancel(); wg.Wait() })
	f.client = &http.Client{
		Timeout:       patience,
		Transport:     &http.Transport{DialContext: f.net.DialContext, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	f.stop = append(f.stop, f.client.CloseIdleConnections)
}

// serve runs srv at addr until the fleet is closed.
func (f *fleet) serve(addr string, srv *http.Server) {
	f.t.Helper()
	ln, err := f.net.Listen(addr)
	if err != nil {
		f.t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		srv.Serve(ln)
	}()
	f.stop = append(f.stop, func() { srv.Close(); <-over })
}

// engine runs and registers the i-th engine, at its role's name and number.
func (f *fleet) engine(i int, cfg enginesim.Config) {
	f.t.Helper()
	role, name := worker.Regular, enginesim.RoleRegular
	switch cfg.Role {
	case enginesim.RolePrefill:
		role, name = worker.Prefill, cfg.Role
	case enginesim.RoleDecode:
		role, name = worker.Decode, cfg.Role
	}
	cfg.Advertise = fmt.Sprintf("%s-%d:8000", name, i)
	cfg.Dial = f.net.DialContext
	e, err := enginesim.New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.serve(cfg.Advertise, e.NewServer())
	f.stop = append(f.stop, e.Close)
	f.engines = append(f.engines, e)
	f.addrs = append(f.addrs, cfg.Advertise)
	f.register(role, "http://"+cfg.Advertise)
}

func (f *fleet) register(role worker.Role, url string) {
	f.t.Helper()
	dialect := "nixl"
	if role == worker.Regular {
		dialect = ""
	}
	f.registerAs(role, url, dialect)
}

func (f *fleet) registerAs(role worker.Role, url, dialect string) {
	f.t.Helper()
	r := worker.Registration{ID: worker.ID{Role: role, URL: url}, Endpoint: worker.Endpoint{Dialect: dialect}}
	if _, _, err := f.registry.Register("test", r, 0); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) reconcile() {
	for _, role := range worker.Roles() {
		f.pools[role].Reconcile()
	}
}

// settle lets everything that is due happen.
func (f *fleet) settle() {
	synctest.Wait()
	time.Sleep(300 * time.Millisecond) // a probe's first retry, or a poll
	synctest.Wait()
}

// close ends the fleet. Then nothing may be left: no load, no hand-off, and no
// violation unless the test is about them.
func (f *fleet) close(soiled bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := f.dispatcher.Wait(ctx); err != nil {
		f.t.Error("legs or discards go on")
	}
	synctest.Wait()
	if n := f.server.Active(); n != 0 {
		f.t.Errorf("%d requests are active", n)
	}
	for _, role := range worker.Roles() {
		for _, w := range f.pools[role].Snapshot().Workers {
			if w.Load() != 0 || w.Holds() != 0 || w.Work() != (worker.Work{}) {
				f.t.Errorf("%v has load %d, holds %d, work %v", w.ID(), w.Load(), w.Holds(), w.Work())
			}
		}
	}
	for i, e := range f.engines {
		stats := e.Stats()
		for _, v := range stats.Violations {
			if !soiled {
				f.t.Errorf("%s: violation: %s", f.addrs[i], v)
			}
		}
		if stats.PinnedHandoffs != 0 {
			f.t.Errorf("%s: %d hand-offs are pinned", f.addrs[i], stats.PinnedHandoffs)
		}
	}
	for _, stop := range f.stop {
		stop()
	}
	time.Sleep(10 * time.Second) // idle connections, and servers that linger
}

// arrived returns the requests that reached engines, probes left out.
func (f *fleet) arrived() []enginesim.Record {
	var all []enginesim.Record
	for _, e := range f.engines {
		for _, r := range e.Requests() {
			if r.Header.Get("X-Forwarded-For") != "" {
				all = append(all, r)
			}
		}
	}
	return all
}

// answer is what came back to a client.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

// request makes a request to the router.
func (f *fleet) request(method, path, body string, header ...string) *http.Request {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, "http://"+routerAddr+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func (f *fleet) do(r *http.Request) answer {
	resp, err := f.client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

func (f *fleet) post(path, body string, header ...string) answer {
	f.t.Helper()
	return f.do(f.request(http.MethodPost, path, body, header...))
}

func (f *fleet) get(path string) answer {
	f.t.Helper()
	return f.do(f.request(http.MethodGet, path, ""))
}

// code returns the code of an error object, "" if the body is none.
func (a answer) code() string {
	var v struct {
		Error struct{ Code string }
	}
	_ = json.Unmarshal([]byte(a.body), &v)
	return v.Error.Code
}

// raw is a connection to the router for what http.Client would not send.
type raw struct {
	t    *testing.T
	conn *memnet.Conn
	br   *bufio.Reader
}

func (f *fleet) dial() *raw {
	f.t.Helper()
	conn, err := f.net.DialContext(f.t.Context(), "tcp", routerAddr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return &raw{f.t, conn.(*memnet.Conn), bufio.NewReader(conn)}
}

func (r *raw) say(s string) {
	r.t.Helper()
	if _, err := io.WriteString(r.conn, s); err != nil {
		r.t.Fatalf("write: %v", err)
	}
}

// answer reads one answer to its end. It does not wait for ever: probes keep the
// clock of the bubble going.
func (r *raw) answer() answer {
	r.conn.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(r.br, nil)
	if err != nil {
		return answer{err: err}
	}
	b, err := io.ReadAll(resp.Body)
	if resp.Close {
		resp.Header.Set("Connection", "close") // net/http takes it out
	}
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// closed reports whether the router has closed the connection, with nothing
// more to read.
func (r *raw) closed() bool {
	r.conn.SetReadDeadline(time.Now().Add(patience))
	_, err := r.br.ReadByte()
	return err == io.EOF
}

// lines returns the log's lines, which must be JSON, with that message.
func (f *fleet) lines(message string) []map[string]any {
	f.t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(f.log.String()) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			f.t.Fatalf("log line %q: %v", line, err)
		}
		if v["msg"] == message {
			lines = append(lines, v)
		}
	}
	return lines
}

// access returns the access line of the only request so far.
func (f *fleet) access() map[string]any {
	f.t.Helper()
	synctest.Wait()
	lines := f.lines("request")
	if len(lines) != 1 {
		f.t.Fatalf("%d access lines, want 1:\n%s", len(lines), f.log.String())
	}
	return lines[0]
}

// counted returns the value of baton_requests_total with these labels.
func (f *fleet) counted(route string, status int) string {
	f.t.Helper()
	name := fmt.Sprintf("baton_requests_total{route=%q,status=\"%d\"} ", route, status)
	for line := range strings.Lines(f.scrape()) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return "0"
}

// scrape returns the metrics as text, once what runs has come to rest: a request
// is counted after its client has its answer.
func (f *fleet) scrape() string {
	synctest.Wait()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(f.metrics, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// chatBody is a chat of that prompt.
func chatBody(prompt string) string {
	b, err := json.Marshal(map[string]any{
		"model": "m", "max_tokens": 8, "messages": []any{map[string]any{"role": "user", "content": prompt}},
	})
	if err != nil {
		panic(err)
	}
	return string(b)
}

const (
	chat = "/v1/chat/completions"
	comp = `{"model":"m","prompt":"hi","max_tokens":4}`
)
