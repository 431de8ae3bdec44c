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

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// serveFlags are the flags of baton serve as given.
type serveFlags struct {
	config

	host, adminHost, metricsHost string
	port, adminPort, metricsPort uint16
	policy, prefillPolicy        string
	decodePolicy                 string
	connector                    string
	requestTimeoutSecs           uint64
	healthTimeoutSecs            uint64
	healthIntervalSecs           uint64
	logFormat, logLevel          string
	requestIDHeaders             []string
	pdDisaggregation             bool
}

func (f *serveFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.host, "host", "127.0.0.1", "address to serve clients on")
	flags.Uint16Var(&f.port, "port", 30000, "port to serve clients on")
	flags.StringArrayVar(&f.workers.Regular, "worker-urls", nil, "workers that compute prompt and tokens: URL[@RANK] ...")
	// --prefill is cut out before; it is registered for the help text alone.
	flags.StringArray("prefill", nil, "prefill worker: URL[@RANK] [BOOTSTRAP_PORT|none], repeatable")
	flags.StringArrayVar(&f.workers.Decode, "decode", nil, "decode worker: URL[@RANK], repeatable")
	flags.BoolVar(&f.pdDisaggregation, "vllm-pd-disaggregation", false, "accepted for vllm-router command lines: P/D follows from the workers there are")
	flags.StringVar(&f.connector, "kv-connector", "nixl", "KV connector of prefill and decode workers: nixl")
	names := strings.Join(policy.Names(), ", ")
	flags.StringVar(&f.policy, "policy", "least_load", "how workers are chosen: "+names)
	flags.StringVar(&f.prefillPolicy, "prefill-policy", "", "policy of prefill workers (default --policy)")
	flags.StringVar(&f.decodePolicy, "decode-policy", "", "policy of decode workers (default --policy)")

	flags.Int64Var(&f.server.MaxPayload, "max-payload-size", f.server.MaxPayload, "most bytes of a request body")
	flags.StringArrayVar(&f.server.AllowPaths, "allow-path", nil, "further path to pass on, a prefix if it ends in a slash, repeatable")
	flags.StringArrayVar(&f.requestIDHeaders, "request-id-headers", nil, "headers a request id is taken from (default x-request-id x-correlation-id x-trace-id request-id)")
	flags.Uint64Var(&f.requestTimeoutSecs, "request-timeout-secs", uint64(f.dispatch.FirstByteTimeout/time.Second), "seconds until the first byte of an answer's body; 0: no limit")
	flags.DurationVar(&f.dispatch.IdleTimeout, "stream-idle-timeout", f.dispatch.IdleTimeout, "time between two parts of an answer's body; 0: no limit")
	flags.DurationVar(&f.carrier.ConnectTimeout, "connect-timeout", 5*time.Second, "time to connect to a worker")
	flags.DurationVar(&f.server.BodyTimeout, "client-body-timeout", f.server.BodyTimeout, "time between two parts of a request's body; 0: no limit")
	flags.DurationVar(&f.server.WriteTimeout, "client-write-timeout", f.server.WriteTimeout, "time for a client to take a part of its answer; 0: no limit")

	flags.DurationVar(&f.validity, "handoff-max-age", f.validity, "how long a hand-off may wait for decode; not above the engines' kv_lease_duration")
	flags.DurationVar(&f.dispatch.DecodeWait, "decode-wait", f.dispatch.DecodeWait, "how long a finished prefill waits for a decode worker")
	flags.BoolVar(&f.dispatch.AllowRecompute, "pd-allow-recompute", false, "let decode compute the prompt when prefill handed nothing over")

	flags.StringVar(&f.health.APIKey, "api-key", "", "key for probes of workers that were started with one")
	flags.StringVar(&f.health.Path, "health-check-endpoint", f.health.Path, "path of a worker that answers 2xx when it is well")
	flags.Uint64Var(&f.healthIntervalSecs, "health-check-interval-secs", uint64(f.health.Interval/time.Second), "seconds between probes of a ready worker")
	flags.Uint64Var(&f.healthTimeoutSecs, "health-check-timeout-secs", uint64(f.health.Timeout/time.Second), "seconds for one probe")
	flags.IntVar(&f.health.DownAfter, "health-failure-threshold", f.health.DownAfter, "failed probes in a row until a worker is down")
	flags.IntVar(&f.health.UpAfter, "health-success-threshold", f.health.UpAfter, "good probes in a row until it is up again")

	flags.StringVar(&f.adminHost, "admin-host", "127.0.0.1", "address of the admin API")
	flags.Uint16Var(&f.adminPort, "admin-port", 29001, "port of the admin API; 0: none")
	flags.BoolVar(&f.adminOnPublic, "admin-on-public", false, "serve the admin API to clients too")
	flags.StringVar(&f.metricsHost, "prometheus-host", "127.0.0.1", "address of /metrics")
	flags.Uint16Var(&f.metricsPort, "prometheus-port", 29000, "port of /metrics; 0: none")
	flags.DurationVar(&f.drainDelay, "drain-delay", 5*time.Second, "after SIGTERM, time to fail /readiness before the listener closes")
	flags.DurationVar(&f.drainTimeout, "drain-timeout", 120*time.Second, "time for running requests to finish; 0: no limit")
	flags.StringVar(&f.logFormat, "log-format", "text", "text or json")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

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
	if f.connector != "nixl" {
		return cfg, fmt.Errorf("--kv-connector %q is not supported: nixl", f.connector)
	}
	cfg.workers.Dialect = f.connector
	for _, p := range []struct {
		role       worker.Role
		flag, name string
	}{
		{worker.Regular, "--policy", f.policy},
		{worker.Prefill, "--prefill-policy", cmp.Or(f.prefillPolicy, f.policy)},
		{worker.Decode, "--decode-policy", cmp.Or(f.decodePolicy, f.policy)},
	} {
		if _, err := policy.New(p.name); err != nil {
			return cfg, fmt.Errorf("%s: %w", p.flag, err)
		}
		cfg.policies[p.role] = p.name
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
		{cfg.server.MaxPayload <= 0, "--max-payload-size must be above 0"},
		{cfg.health.Timeout <= 0, "--health-check-timeout-secs must be above 0"},
		{cfg.health.Interval <= 0, "--health-check-interval-secs must be above 0"},
		{cfg.health.DownAfter < 1, "--health-failure-threshold must be 1 or more"},
		{cfg.health.UpAfter < 1, "--health-success-threshold must be 1 or more"},
		{!strings.HasPrefix(cfg.health.Path, "/"), "--health-check-endpoint must begin with a slash"},
		{cfg.carrier.ConnectTimeout <= 0, "--connect-timeout must be above 0"},
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
	for _, path := range cfg.server.AllowPaths {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("--allow-path %q must begin with a slash", path)
		}
	}
	return nil
}

func runServe(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rest, prefills, err := cutPrefill(args)
	if err != nil {
		return err
	}
	f := &serveFlags{config: defaultConfig()}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.register(flags)
	rest, err = expandLists(rest, map[string]bool{"worker-urls": true, "request-id-headers": true, "decode": false})
	if err != nil {
		return err
	}
	if err := parse(flags, rest, stdout); err != nil {
		return err
	}
	cfg, err := f.resolve(prefills)
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
