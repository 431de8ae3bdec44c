package main

import (
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/baton-llm/baton/internal/discovery/zmq"
	"github.com/baton-llm/baton/internal/policy"
)

// connectors are the values of --kv-connector.
var connectors = []string{"nixl", "p2p", "moriio"}

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
	registrationAllow            []string
	cbTimeoutSecs                uint64
	cbWindowSecs                 uint64
}

// newServeFlags returns the defaults of a command, serve or vllm-router.
func newServeFlags(command string) *serveFlags {
	f := &serveFlags{config: defaultConfig(), policy: policy.Default}
	if command == vllmRouter {
		f.policy = "cache_aware"
	}
	return f
}

func (f *serveFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.host, "host", "127.0.0.1", "address to serve clients on")
	flags.Uint16Var(&f.port, "port", 30000, "port to serve clients on")
	flags.StringArrayVar(&f.workers.Regular, "worker-urls", nil, "workers that compute prompt and tokens: URL[@RANK] ...")
	// --prefill is cut out before; it is registered for the help text alone.
	flags.StringArray("prefill", nil, "prefill workers: URL[@RANK] [BOOTSTRAP_PORT|none], repeatable")
	flags.StringArrayVar(&f.workers.Decode, "decode", nil, "decode worker: URL[@RANK], repeatable")
	flags.IntVar(&f.workers.Ranks, "intra-node-data-parallel-size", 1, "data-parallel ranks of each engine named without @RANK; each is a worker of its own")
	flags.BoolVar(&f.pdDisaggregation, "vllm-pd-disaggregation", false, "accepted for vllm-router command lines: P/D follows from the workers there are")
	flags.StringVar(&f.connector, "kv-connector", "nixl", "KV connector of prefill and decode workers whose registration does not tell: "+strings.Join(connectors, ", "))
	flags.StringVar(&f.discovery.Address, "vllm-discovery-address", "", "HOST:PORT to take registrations over ZMQ on")
	flags.DurationVar(&f.discovery.TTL, "discovery-ttl", zmq.DefaultTTL, "how long a worker lives after its last registration")
	flags.StringArrayVar(&f.registrationAllow, "registration-allow", nil, "networks that workers may register from and be in (default private, loopback and this machine's own)")
	names := strings.Join(policy.Names(), ", ")
	flags.StringVar(&f.policy, "policy", f.policy, "how workers are chosen: "+names)
	flags.StringVar(&f.prefillPolicy, "prefill-policy", "", "policy of prefill workers (default --policy)")
	flags.StringVar(&f.decodePolicy, "decode-policy", "", "policy of decode workers (default --policy)")
	flags.Int64Var(&f.choosing.TokenWindow, "balance-token-window", f.choosing.TokenWindow, "least_wait: tokens above the least wait within which the longest match is preferred, at most a quarter of the prompt")
	flags.Float64Var(&f.choosing.CacheThreshold, "cache-threshold", f.choosing.CacheThreshold, "cache_aware: share of a prompt that must match for its worker to be preferred")
	flags.Int64Var(&f.choosing.BalanceAbs, "balance-abs-threshold", f.choosing.BalanceAbs, "cache_aware: requests above the least loaded worker up to which a match is followed")
	flags.Float64Var(&f.choosing.BalanceRel, "balance-rel-threshold", f.choosing.BalanceRel, "cache_aware: the same as a multiple of the least load; the wider of the two counts")
	flags.Int64Var(&f.choosing.MaxTreeSize, "max-tree-size", f.choosing.MaxTreeSize, "bytes of prompts remembered of a worker whose KV cache size is not known")
	flags.Int64Var(&f.choosing.IndexMemory, "prefix-index-memory", f.choosing.IndexMemory, "bytes of memory for each role's prefix index")
	flags.DurationVar(&f.choosing.SessionTTL, "session-ttl", f.choosing.SessionTTL, "sticky: how long an idle session is remembered")
	flags.IntVar(&f.choosing.MaxSessions, "max-sessions", f.choosing.MaxSessions, "sticky: sessions remembered for each role")

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

	flags.IntVar(&f.breaker.Failures, "cb-failure-threshold", f.breaker.Failures, "failed requests in a row until a worker is ejected")
	flags.IntVar(&f.breaker.Successes, "cb-success-threshold", f.breaker.Successes, "good trial requests in a row until it is trusted again")
	flags.Uint64Var(&f.cbTimeoutSecs, "cb-timeout-duration-secs", uint64(f.breaker.Timeout/time.Second), "seconds from an ejection to the first trial request")
	flags.Uint64Var(&f.cbWindowSecs, "cb-window-duration-secs", 120, "accepted for vllm-router command lines; it has no effect there either")
	flags.BoolVar(&f.breaker.Disabled, "disable-circuit-breaker", false, "never eject a worker")

	flags.DurationVar(&f.health.EngineInterval, "engine-metrics-interval", f.health.EngineInterval, "time between reads of the workers' own metrics; 0: never")

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
