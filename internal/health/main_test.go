package health_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/memnet"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/testlog"
	"github.com/baton-llm/baton/internal/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is where most tests have their one server.
const host = "engine:8000"

// stage is a running checker with a registry and pools that follow it, on a
// network in memory. It lives in a bubble; its clock starts at 0.
type stage struct {
	t       *testing.T
	net     memnet.Network
	start   time.Time
	checker *health.Checker
	reg     *registry.Registry
	pools   []*worker.Pool
	log     *lines
	cancel  context.CancelFunc

	mu      sync.Mutex
	dials   []dialed
	renewed []worker.ID
}

// dialed is one connect of a probe.
type dialed struct {
	at   time.Duration
	addr string
}

// newStage starts a checker whose configuration is the default one after edits.
func newStage(t *testing.T, edits ...func(*health.Config)) *stage {
	t.Helper()
	s := &stage{t: t, start: time.Now(), reg: registry.New(), log: &lines{}}
	cfg := health.Default()
	cfg.EngineInterval = 0 // scripts that read figures set it
	for _, edit := range edits {
		edit(&cfg)
	}
	s.checker = health.New(cfg, health.Deps{
		Renewer: s, Dial: s.dial,
		Logger: slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	for _, role := range worker.Roles() {
		s.pools = append(s.pools, worker.NewPool(worker.PoolConfig{
			Role: role, Lister: s.reg, Observers: []worker.Observer{s.checker}, Initial: worker.Pending,
		}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	var running sync.WaitGroup
	running.Go(func() { s.reg.Watch(ctx, s.reconcile) })
	running.Go(func() {
		if err := s.checker.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		synctest.Wait()
		if n := s.net.Open(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
	return s
}

func (s *stage) reconcile() {
	for _, p := range s.pools {
		p.Reconcile()
	}
}

func (s *stage) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, dialed{s.since(), addr})
	s.mu.Unlock()
	return s.net.DialContext(ctx, network, addr)
}

// Renew implements health.Renewer.
func (s *stage) Renew(id worker.ID) bool {
	s.mu.Lock()
	s.renewed = append(s.renewed, id)
	s.mu.Unlock()
	return s.reg.Renew(id)
}

func (s *stage) since() time.Duration { return time.Since(s.start) }

// until lets the clock run until d after the start.
func (s *stage) until(d time.Duration) {
	time.Sleep(d - s.since())
	synctest.Wait()
}

// sleep lets the clock run.
func (s *stage) sleep(d time.Duration) { s.until(s.since() + d) }

// takeDials returns when probes have connected to the address since the last
// call.
func (s *stage) takeDials(addr string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var at []time.Duration
	for _, d := range s.dials {
		if d.addr == addr {
			at = append(at, d.at)
		}
	}
	s.dials = nil
	return at
}

// takeRenewed returns the lifetimes that the checker has asked to renew.
func (s *stage) takeRenewed() []worker.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.renewed
	s.renewed = nil
	return ids
}

// add registers a worker and returns it once the pool has it.
func (s *stage) add(role worker.Role, host string, rank worker.Rank) *worker.Worker {
	s.t.Helper()
	s.register(role, host, rank)
	return s.worker(role, host, rank)
}

func (s *stage) register(role worker.Role, host string, rank worker.Rank) {
	s.t.Helper()
	reg := worker.Registration{ID: worker.ID{Role: role, URL: "http://" + host, Rank: rank}}
	if _, _, err := s.reg.Register("test", reg, 0); err != nil {
		s.t.Fatal(err)
	}
	s.reconcile()
}

// worker returns the present worker at a place.
func (s *stage) worker(role worker.Role, host string, rank worker.Rank) *worker.Worker {
	s.t.Helper()
	for _, w := range s.pools[role-1].Snapshot().Workers {
		if id := w.ID(); id.URL == "http://"+host && id.Rank == rank {
			return w
		}
	}
	s.t.Fatalf("no %v worker at %s", role, host)
	return nil
}

func (s *stage) remove(w *worker.Worker) {
	s.t.Helper()
	id := w.ID()
	if err := s.reg.Remove("test", id.Role, id.URL, id.Rank); err != nil {
		s.t.Fatal(err)
	}
	s.reconcile()
}

// ready adds a regular worker at host and waits until it is admitted.
func (s *stage) ready() *worker.Worker {
	s.t.Helper()
	w := s.add(worker.Regular, host, 0)
	synctest.Wait()
	s.wantState(w, "ready")
	return w
}

func (s *stage) wantState(w *worker.Worker, want string) {
	s.t.Helper()
	if got := w.Blocked().String(); got != want {
		s.t.Errorf("at %v, %v is %s, want %s", s.since(), w.ID(), got, want)
	}
}

// serve runs a server at the address until the test ends.
func (s *stage) serve(addr string) *engine {
	s.t.Helper()
	listener, err := s.net.Listen(addr)
	if err != nil {
		s.t.Fatal(err)
	}
	e := &engine{start: s.start, answers: map[string]http.HandlerFunc{
		"/health": status(http.StatusOK), "/v1/models": list("m"),
	}}
	s.serveHTTP(listener, &http.Server{Handler: e})
	return e
}

func (s *stage) serveHTTP(listener net.Listener, server *http.Server) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(listener)
	}()
	s.t.Cleanup(func() {
		server.Close()
		<-stopped
	})
}

// engine is a worker's server whose answers a test sets.
type engine struct {
	start time.Time

	mu      sync.Mutex
	answers map[string]http.HandlerFunc
	seen    []probe
}

// probe is a request that an engine has seen.
type probe struct {
	at   time.Duration
	path string
	auth string
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.seen = append(e.seen, probe{time.Since(e.start), r.URL.Path, r.Header.Get("Authorization")})
	answer := e.answers[r.URL.Path]
	e.mu.Unlock()
	if answer == nil {
		answer = status(http.StatusNotFound)
	}
	answer(w, r)
}

// set changes the answer to a path.
func (e *engine) set(path string, answer http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers[path] = answer
}

// takeSeen returns when the path was asked for since the last call.
func (e *engine) takeSeen(path string) []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	var at []time.Duration
	for _, p := range e.seen {
		if p.path == path {
			at = append(at, p.at)
		}
	}
	e.seen = nil
	return at
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func body(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
}

// list answers with a model list.
func list(models ...string) http.HandlerFunc {
	cards := make([]string, len(models))
	for i, m := range models {
		cards[i] = fmt.Sprintf(`{"id":%q,"object":"model"}`, m)
	}
	return body(`{"object":"list","data":[` + strings.Join(cards, ",") + `]}`)
}

// hang keeps the client waiting until it leaves.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// slow answers after a time, if the client waits for it.
func slow(d time.Duration, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			answer(w, r)
		case <-r.Context().Done():
		}
	}
}

// reset breaks the connection with a TCP reset.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	conn.(*memnet.Conn).Reset()
}

// lines keeps what was logged.
type lines struct{ testlog.Buffer }

// line is one log line.
type line struct {
	Time  time.Time     `json:"time"`
	Level string        `json:"level"`
	Msg   string        `json:"msg"`
	Err   string        `json:"err"`
	Next  time.Duration `json:"next_within"`
	text  string
}

// with returns the lines that have the text in them.
func (l *lines) with(t *testing.T, text string) []line {
	t.Helper()
	var found []line
	for raw := range strings.Lines(l.String()) {
		if !strings.Contains(raw, text) {
			continue
		}
		got := line{text: raw}
		if err := json.Unmarshal([]byte(raw), &got); err != nil {
			t.Fatal(err)
		}
		found = append(found, got)
	}
	return found
}

// seconds makes times comparable and readable: 250 ms is 0.25.
func seconds(at []time.Duration) []float64 {
	var out []float64
	for _, d := range at {
		out = append(out, d.Seconds())
	}
	return out
}

func (s *stage) wantTimes(what string, got []time.Duration, want ...float64) {
	s.t.Helper()
	if !slices.Equal(seconds(got), want) {
		s.t.Errorf("%s at %v, want %v", what, seconds(got), want)
	}
}
