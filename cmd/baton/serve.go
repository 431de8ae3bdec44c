package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/baton-llm/baton/internal/discovery/zmq"
	"github.com/baton-llm/baton/internal/worker"
)

// resolve turns the flags into a configuration. Its errors name the flag.
func (f *serveFlags) resolve(prefills []prefill) (config, error) {
	cfg := f.config
	cfg.public = net.JoinHostPort(f.host, strconv.Itoa(int(f.port)))
	if f.adminPort != 0 {
		cfg.admin = net.JoinHostPort(f.adminHost, strconv.Itoa(int(f.adminPort)))
	}
	if f.metricsPort != 0 {
		cfg.metrics = net.JoinHostPort(f.metricsHost, strconv.Itoa(int(f.metricsPort)))
	}
	for _, p := range prefills {
		cfg.workers.Prefill = append(cfg.workers.Prefill, p.url)
	}
	if !slices.Contains(connectors, f.connector) {
		return cfg, fmt.Errorf("--kv-connector %q is not supported: %s are", f.connector, strings.Join(connectors, ", "))
	}
	if f.connector != "nixl" && cfg.discovery.Address == "" {
		return cfg, fmt.Errorf("--kv-connector %s needs --vllm-discovery-address: workers are paired by the ZMQ addresses they register", f.connector)
	}
	cfg.workers.Dialect, cfg.discovery.Dialect = f.connector, f.connector
	var err error
	if cfg.discovery.Allowed, err = zmq.ParseAllowed(f.registrationAllow); err != nil {
		return cfg, fmt.Errorf("--registration-allow: %w", err)
	}
	if cfg.discovery.Address != "" {
		// Engines that are up register within a TTL of the router's start.
		cfg.dispatch.StartupTime = cfg.discovery.TTL
	}
	for _, p := range []struct {
		role       worker.Role
		flag, name string
	}{
		{worker.Regular, "--policy", f.policy},
		{worker.Prefill, "--prefill-policy", cmp.Or(f.prefillPolicy, f.policy)},
		{worker.Decode, "--decode-policy", cmp.Or(f.decodePolicy, f.policy)},
	} {
		if cfg.policies[p.role], err = policyNamed(p.flag, p.name); err != nil {
			return cfg, err
		}
	}
	if len(f.requestIDHeaders) > 0 {
		cfg.server.RequestIDHeaders = nil
	}
	for _, name := range f.requestIDHeaders {
		cfg.server.RequestIDHeaders = append(cfg.server.RequestIDHeaders, http.CanonicalHeaderKey(name))
	}
	for _, t := range []struct {
		flag string
		secs uint64
		to   *time.Duration
	}{
		{"--request-timeout-secs", f.requestTimeoutSecs, &cfg.dispatch.FirstByteTimeout},
		{"--health-check-timeout-secs", f.healthTimeoutSecs, &cfg.health.Timeout},
		{"--health-check-interval-secs", f.healthIntervalSecs, &cfg.health.Interval},
		{"--cb-timeout-duration-secs", f.cbTimeoutSecs, &cfg.breaker.Timeout},
	} {
		const most = uint64(math.MaxInt64 / time.Second)
		if t.secs > most {
			return cfg, fmt.Errorf("%s must be at most %d", t.flag, most)
		}
		*t.to = time.Duration(t.secs) * time.Second
	}
	return cfg, check(cfg, f)
}

func check(cfg config, f *serveFlags) error {
	for _, c := range []struct {
		bad  bool
		text string
	}{
		{cfg.workers.Ranks < 1 || cfg.workers.Ranks > worker.MaxRank+1, fmt.Sprintf("--intra-node-data-parallel-size must be between 1 and %d", worker.MaxRank+1)},
		{cfg.server.MaxPayload <= 0, "--max-payload-size must be above 0"},
		{cfg.health.Timeout <= 0, "--health-check-timeout-secs must be above 0"},
		{cfg.health.Interval <= 0, "--health-check-interval-secs must be above 0"},
		{cfg.health.DownAfter < 1, "--health-failure-threshold must be 1 or more"},
		{cfg.health.UpAfter < 1, "--health-success-threshold must be 1 or more"},
		{!strings.HasPrefix(cfg.health.Path, "/"), "--health-check-endpoint must begin with a slash"},
		{cfg.carrier.ConnectTimeout <= 0, "--connect-timeout must be above 0"},
		{cfg.health.EngineInterval < 0 || cfg.health.EngineInterval > 0 && cfg.health.EngineInterval < 100*time.Millisecond, "--engine-metrics-interval must be 0, or 100ms or more"},
		{cfg.discovery.TTL <= 0, "--discovery-ttl must be above 0"},
		{cfg.breaker.Failures < 1, "--cb-failure-threshold must be 1 or more"},
		{cfg.breaker.Successes < 1, "--cb-success-threshold must be 1 or more"},
		{cfg.validity <= 0, "--handoff-max-age must be above 0"},
		{cfg.dispatch.DecodeWait < 0, "--decode-wait must not be negative"},
		{cfg.dispatch.IdleTimeout < 0, "--stream-idle-timeout must not be negative"},
		{cfg.server.BodyTimeout < 0, "--client-body-timeout must not be negative"},
		{cfg.server.WriteTimeout < 0, "--client-write-timeout must not be negative"},
		{cfg.drainDelay < 0 || cfg.drainTimeout < 0, "--drain-delay and --drain-timeout must not be negative"},
		{f.logFormat != "text" && f.logFormat != "json", "--log-format must be text or json"},
	} {
		if c.bad {
			return fmt.Errorf("%s", c.text)
		}
	}
	if err := cfg.choosing.Validate(); err != nil {
		return err
	}
	for _, path := range cfg.server.AllowPaths {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("--allow-path %q must begin with a slash", path)
		}
	}
	return nil
}

func runServe(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return serve(ctx, "serve", args, stdout, stderr)
}

// serve runs the router under the name of a command.
func serve(ctx context.Context, name string, args []string, stdout, stderr io.Writer) error {
	rest, prefills, err := cutPrefill(args)
	if err != nil {
		return err
	}
	f := newServeFlags(name)
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.register(flags)
	registerInert(flags)
	rest, err = expandLists(rest, lists())
	if err != nil {
		return err
	}
	if err := parse(flags, rest, stdout); err != nil {
		return err
	}
	cfg, err := f.resolve(prefills)
	if err == nil {
		err = checkEnvironment()
	}
	if err != nil {
		return usageError{err}
	}
	log, err := newLogger(stderr, f.logFormat, f.logLevel)
	if err != nil {
		return usageError{err}
	}
	if slices.ContainsFunc(prefills, prefill.hasPort) {
		log.Warn("the bootstrap ports after --prefill have no effect with this KV connector", "kv_connector", f.connector)
	}
	if unused := without(flags); name == vllmRouter || len(unused) > 0 {
		log.Warn("not all is as with vllm-router: see docs/migrating.md", "policy", f.policy, "without_effect", unused)
	}
	r, err := newRouter(ctx, cfg, log)
	if err != nil {
		return err
	}
	log.Info("serving", "address", r.addr(), "admin", cfg.admin, "metrics", cfg.metrics, "version", version)
	return runUntilSignal(ctx, r)
}

// runUntilSignal runs the router until SIGTERM or SIGINT, then drains it; at a
// terminal (SIGINT) no load balancer is waited for. A second signal ends the
// process at once.
func runUntilSignal(ctx context.Context, r *router) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	delay := make(chan time.Duration, 1)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case s := <-signals:
			if s == syscall.SIGINT {
				delay <- 0
			} else {
				delay <- r.cfg.drainDelay
			}
			cancel()
		case <-ctx.Done():
			delay <- 0
			return
		}
		select {
		case <-signals:
			r.log.Warn("second signal: ending at once")
			os.Exit(1)
		case <-over:
		}
	}()
	return r.run(ctx, func() time.Duration { return <-delay })
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if level == "warning" {
		level = "warn"
	}
	if level == "critical" {
		level = "error"
	}
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q must be debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}
