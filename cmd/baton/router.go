package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/baton-llm/baton/internal/admin"
	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/discovery/api"
	"github.com/baton-llm/baton/internal/discovery/static"
	"github.com/baton-llm/baton/internal/discovery/zmq"
	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/server"
	"github.com/baton-llm/baton/internal/worker"
)

// config is everything a router is made of.
type config struct {
	public, admin, metrics string // host:port of the listeners; "" for none
	adminOnPublic          bool

	workers   static.Config
	discovery zmq.Config // without an address there is none
	breaker   breaker.Config
	policies  map[worker.Role]string
	choosing  policy.Config // of each of them, but for its role
	validity  time.Duration // of a NIXL hand-off

	server   server.Config
	dispatch dispatch.Config
	health   health.Config
	carrier  nethttp.Config

	drainDelay, drainTimeout time.Duration
}

func defaultConfig() config {
	return config{
		breaker:  breaker.Default(),
		policies: map[worker.Role]string{worker.Regular: policy.Default, worker.Prefill: policy.Default, worker.Decode: policy.Default},
		choosing: policy.DefaultConfig(),
		validity: pd.NIXLValidity,
		server:   server.Default(),
		dispatch: dispatch.Default(),
		health:   health.Default(),
	}
}

// router is a router with its listeners open and nothing running yet.
type router struct {
	cfg        config
	log        *slog.Logger
	registry   *registry.Registry
	pools      map[worker.Role]*worker.Pool
	policies   map[worker.Role]policy.Policy
	health     *health.Checker
	breaker    *breaker.Breaker
	discovery  *zmq.Listener // nil: none
	membership *membershipLog
	dispatcher *dispatch.Dispatcher
	server     *server.Server
	status     *server.Status
	public     *http.Server
	listener   net.Listener
	others     []listening // admin and metrics
}

type listening struct {
	name     string
	server   *http.Server
	listener net.Listener
}

// newRouter wires a router and opens its listeners. On error nothing stays open.
func newRouter(ctx context.Context, cfg config, log *slog.Logger) (*router, error) {
	r := &router{cfg: cfg, log: log, registry: registry.New(), pools: make(map[worker.Role]*worker.Pool), policies: make(map[worker.Role]policy.Policy)}
	if err := static.Register(cfg.workers, r.registry); err != nil {
		return nil, usageError{err}
	}
	for role, name := range cfg.policies {
		cfg.choosing.Role = role
		p, err := policy.New(name, cfg.choosing)
		if err != nil {
			return nil, usageError{err}
		}
		r.policies[role] = p
	}
	dialects := pd.Set{pd.NewNIXL(cfg.validity), pd.P2P{}, pd.NewMoRIIO("READ"), pd.NewMoRIIO("WRITE")}
	r.breaker = breaker.New(cfg.breaker, log)
	r.health = health.New(cfg.health, health.Deps{Renewer: r.registry, Dial: cfg.carrier.Dial, Logger: log})
	r.dispatcher = dispatch.New(cfg.dispatch, dispatch.Deps{
		Pools: r.pools, Policies: r.policies, Dialects: dialects, Health: r.health, Breaker: r.breaker, Logger: log,
		NewCarrier: func(base string) (exchange.Carrier, error) { return nethttp.New(base, cfg.carrier) },
	})
	r.membership = newMembershipLog(log)
	observers := append([]worker.Observer{r.membership, r.dispatcher, r.breaker, r.health}, dialects.Observers()...)
	for _, role := range worker.Roles() {
		r.pools[role] = worker.NewPool(worker.PoolConfig{
			Role: role, Lister: r.registry, Observers: withPolicy(observers, r.policies[role]), Initial: worker.Pending, Dialects: dialects.Bits,
		})
	}
	metrics := prometheus.NewRegistry()
	r.status = &server.Status{Pools: r.pools, Health: r.health}
	r.server = server.New(cfg.server, server.Deps{Dispatcher: r.dispatcher, Status: r.status, Logger: log, Registerer: metrics})
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		admin.Collector{Pools: r.pools, Dispatcher: r.dispatcher},
		admin.Policies{ByRole: r.policies, Pools: r.pools},
		admin.VLLMRouter{Pools: r.pools, Policies: r.policies, Dispatcher: r.dispatcher, Breaker: r.breaker},
	} {
		if err := metrics.Register(c); err != nil {
			return nil, err
		}
	}
	if err := r.listen(ctx, metrics); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// withPolicy returns the observers of a pool, its policy included if it keeps
// something for each worker.
func withPolicy(observers []worker.Observer, p policy.Policy) []worker.Observer {
	if o, ok := p.(worker.Observer); ok {
		return append(slices.Clip(observers), o)
	}
	return observers
}

// listen opens the listeners.
func (r *router) listen(ctx context.Context, metrics *prometheus.Registry) error {
	adminMux := http.NewServeMux()
	for _, mux := range []*http.ServeMux{adminMux, r.server.Mux()} {
		admin.Policies{ByRole: r.policies, Pools: r.pools}.Mount(guarded{mux}) // clients end their sessions
		if mux == adminMux || r.cfg.adminOnPublic {
			(&admin.Admin{Pools: r.pools, Registry: r.registry, Health: r.health, Breaker: r.breaker}).Mount(guarded{mux})
			(&api.API{Registry: r.registry, Pools: r.pools, Dialect: r.cfg.workers.Dialect, Ranks: r.cfg.workers.Ranks}).Mount(guarded{mux})
		}
	}
	metricsHandler := promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})
	adminMux.Handle("GET /metrics", metricsHandler)
	metricsMux := http.NewServeMux()
	metricsMux.Handle("GET /metrics", metricsHandler)

	var err error
	if r.cfg.discovery.Address != "" {
		r.discovery, err = zmq.Listen(ctx, r.cfg.discovery, zmq.Deps{Registry: r.registry, Registerer: metrics, Logger: r.log})
		if err != nil {
			return fmt.Errorf("--vllm-discovery-address: %w", err)
		}
	}
	if r.listener, err = open(ctx, "--host, --port", r.cfg.public); err != nil {
		return err
	}
	r.public = httpServer(keepSlashes(r.server), r.log)
	for _, l := range []struct {
		flag, addr string
		handler    http.Handler
	}{
		{"--admin-host, --admin-port", r.cfg.admin, keepSlashes(adminMux)},
		{"--prometheus-host, --prometheus-port", r.cfg.metrics, metricsMux},
	} {
		if l.addr == "" {
			continue
		}
		listener, err := open(ctx, l.flag, l.addr)
		if err != nil {
			return err
		}
		server := httpServer(l.handler, r.log)
		server.ReadTimeout = 30 * time.Second // small requests only
		r.others = append(r.others, listening{l.flag, server, listener})
	}
	return nil
}

// keepSlashes spares a worker's URL in a path the mux's redirect to one with
// single slashes, which many clients do not follow for POST and DELETE.
func keepSlashes(h http.Handler) http.Handler {
	const prefix = "/workers/"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ok := strings.CutPrefix(r.URL.EscapedPath(), prefix); ok {
			r.URL.RawPath = prefix + strings.ReplaceAll(rest, "//", "%2F%2F")
		}
		h.ServeHTTP(w, r)
	})
}

// guarded adds routes that no page of another origin may use through a browser.
type guarded struct{ mux *http.ServeMux }

// HandleFunc implements [api.Mux].
func (g guarded) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	g.mux.Handle(pattern, http.NewCrossOriginProtection().Handler(http.HandlerFunc(handler)))
}

func open(ctx context.Context, flag, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return l, nil
}

func httpServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(log.With("component", "http").Handler(), slog.LevelDebug),
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
}

func (r *router) close() {
	if r.discovery != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.discovery.Run(ctx) // closes its listener and returns
	}
	if r.listener != nil {
		_ = r.listener.Close() // nothing was served
	}
	for _, o := range r.others {
		_ = o.listener.Close() // nothing was served
	}
}

// addr is the address clients use.
func (r *router) addr() string { return r.listener.Addr().String() }

// errDrainTimeout is the end of a drain that did not finish in time.
var errDrainTimeout = errors.New("requests were cut off by --drain-timeout")

// run serves until ctx is done, then drains: it says that it is not ready,
// waits for load balancers to see that, stops listening, and waits for the
// requests to finish. Actors end in the order in which they are added.
func (r *router) run(ctx context.Context, drainDelay func() time.Duration) error {
	var group run.Group
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	// The public server ends first and takes its time; only then the rest.
	serveEnd := make(chan error, 1)
	group.Add(func() error {
		go func() { serveEnd <- r.public.Serve(r.listener) }()
		select {
		case err := <-serveEnd:
			return err
		case <-ctx.Done():
			return r.drain(stop, drainDelay())
		case <-stop.Done():
			return nil
		}
	}, func(error) { cancel(); _ = r.public.Close() })
	for _, o := range r.others {
		group.Add(func() error { return o.server.Serve(o.listener) }, func(error) { _ = o.server.Close() })
	}
	if r.discovery != nil {
		r.add(&group, r.discovery.Run)
	}
	r.add(&group, r.health.Run)
	r.add(&group, r.membership.Run)
	r.add(&group, func(ctx context.Context) error { r.registry.Watch(ctx, r.reconcile); return nil })
	err := group.Run()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// add adds an actor that runs until its context is done.
func (r *router) add(group *run.Group, actor func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	group.Add(func() error { return actor(ctx) }, func(error) { cancel() })
}

func (r *router) reconcile() {
	for _, role := range worker.Roles() {
		r.pools[role].Reconcile()
	}
}

// drain ends early, with an error, if stop is done: something else has failed.
func (r *router) drain(stop context.Context, delay time.Duration) error {
	r.status.Drain()
	r.log.Info("draining", "delay", delay, "timeout", r.cfg.drainTimeout, "active", r.server.Active())
	wait := time.NewTimer(delay)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-stop.Done():
	}
	ctx := stop
	if r.cfg.drainTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(stop, r.cfg.drainTimeout)
		defer cancel()
	}
	err := r.public.Shutdown(ctx)
	if err == nil {
		err = r.dispatcher.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %d active", errDrainTimeout, r.server.Active())
	}
	r.log.Info("drained")
	return nil
}
