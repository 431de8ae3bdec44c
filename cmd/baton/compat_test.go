package main

import (
	"bytes"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/baton-llm/baton/internal/worker"
)

// vllmRouterFlags are all flags of vllm-router, Python's included, with values
// that its users give; each begins a line.
const vllmRouterFlags = `
--host 127.0.0.1
--port 30000
--worker-urls http://a:8000 http://b:8000@1
--policy cache_aware
--prefill-policy power_of_two
--decode-policy consistent_hash
--cache-threshold 0.3
--balance-abs-threshold 64
--balance-rel-threshold 1.5
--eviction-interval 120
--eviction-interval-secs 60
--max-tree-size 67108864
--max-payload-size 536870912
--request-timeout-secs 1800
--worker-startup-timeout-secs 600
--worker-startup-check-interval 30
--intra-node-data-parallel-size 2
--backend vllm
--runtime vllm
--enable-igw
--history-backend none
--profile
--api-key k
--max-concurrent-requests 256
--queue-size 100
--queue-timeout-secs 60
--rate-limit-tokens-per-second 100
--cors-allowed-origins http://a http://b
--retry-max-retries 5
--retry-initial-backoff-ms 50
--retry-max-backoff-ms 30000
--retry-backoff-multiplier 1.5
--retry-jitter-factor 0.2
--disable-retries
--cb-failure-threshold 10
--cb-success-threshold 3
--cb-timeout-duration-secs 60
--cb-window-duration-secs 120
--disable-circuit-breaker
--health-failure-threshold 3
--health-success-threshold 2
--health-check-timeout-secs 5
--health-check-interval-secs 60
--health-check-endpoint /health
--log-dir /var/log/vllm
--log-level warning
--prometheus-port 29000
--prometheus-host 127.0.0.1
--request-id-headers x-a x-b
--enable-trace
--otlp-traces-endpoint localhost:4317
--otel-sampling-ratio 0.5
--otel-excluded-paths /health /readiness
--router-temperature 0.5
--kv-penalty-host 0.8
--kv-penalty-external 0.60
--kv-penalty-disk 0.1
--kv-aware-session-affinity-ttl-secs 60
--kv-event-source http://a:8000=tcp://a:5557,tcp://a:5558
--kv-event-replay-source http://a:8000=tcp://a:5559
--kv-event-block-size 16
--kv-event-model m
--pd-kv-events http://p:8000=tcp://p:5557
--selector app=vllm tier=gpu
--prefill-selector app=p
--decode-selector app=d
--service-discovery=false
--service-discovery-port 8000
--service-discovery-namespace llm
--vllm-pd-disaggregation
--prefill http://p:8000 8998
--prefill http://q:8000 none
--decode http://d:8000
--vllm-discovery-address 127.0.0.1:30001
--kv-connector nixl
--enable-program-scheduling=false
--mini-lb=false
`

// parseServe parses a command line as far as a configuration.
func parseServe(command string, args []string) (*pflag.FlagSet, config, error) {
	rest, prefills, err := cutPrefill(args)
	if err != nil {
		return nil, config{}, err
	}
	f := newServeFlags(command)
	flags := pflag.NewFlagSet(command, pflag.ContinueOnError)
	f.register(flags)
	registerInert(flags)
	if rest, err = expandLists(rest, lists()); err != nil {
		return nil, config{}, err
	}
	if err := parse(flags, rest, new(bytes.Buffer)); err != nil {
		return nil, config{}, err
	}
	cfg, err := f.resolve(prefills)
	return flags, cfg, err
}

// TestVLLMRouterCommandLine gives all flags of vllm-router at once.
func TestVLLMRouterCommandLine(t *testing.T) {
	t.Parallel()
	flags, cfg, err := parseServe(vllmRouter, strings.Fields(vllmRouterFlags))
	if err != nil {
		t.Fatal(err)
	}
	if w := cfg.workers; len(w.Regular) != 2 || len(w.Prefill) != 2 || len(w.Decode) != 1 {
		t.Errorf("workers %+v", w)
	}
	want := "cors-allowed-origins decode-selector disable-retries enable-igw enable-trace eviction-interval-secs history-backend " +
		"kv-aware-session-affinity-ttl-secs kv-event-model kv-event-replay-source kv-event-source kv-penalty-disk " +
		"log-dir max-concurrent-requests otel-excluded-paths otel-sampling-ratio otlp-traces-endpoint pd-kv-events prefill-selector profile " +
		"rate-limit-tokens-per-second router-temperature selector service-discovery-namespace service-discovery-port"
	if got := strings.Join(without(flags), " "); got != want {
		t.Errorf("without effect are\n%s, want\n%s", got, want)
	}
}

// TestDefaultPolicy: the one default that hangs on the name.
func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{"serve": "least_wait", vllmRouter: "cache_aware"} {
		flags, cfg, err := parseServe(command, nil)
		if err != nil {
			t.Fatal(err)
		}
		for role, got := range cfg.policies {
			if got != want {
				t.Errorf("%s: policy of %v is %s, want %s", command, role, got, want)
			}
		}
		if n := without(flags); len(n) > 0 {
			t.Errorf("%s: flags that were not given are without effect: %v", command, n)
		}
	}
}

// TestPolicyNames: a policy that has another name here is found by the old one.
func TestPolicyNames(t *testing.T) {
	t.Parallel()
	_, cfg, err := parseServe(vllmRouter, strings.Fields("--policy sticky_least_loaded --decode-policy round_robin"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[worker.Role]string{worker.Regular: "sticky", worker.Prefill: "sticky", worker.Decode: "round_robin"}
	if !maps.Equal(cfg.policies, want) {
		t.Errorf("policies %v, want %v", cfg.policies, want)
	}
}

// TestRefusedFlags: what asks for something that would be missed ends the start,
// and so does a value that vllm-router would not take.
func TestRefusedFlags(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"--service-discovery", "--backend openai", "--runtime trtllm", "--intra-node-data-parallel-size 0",
		"--api-key-validation-urls http://auth", "--wasm-middleware a.wasm", "--wasm-middleware-sha256 00",
		"--wasm-middleware-route /v1/completions", "--enable-program-scheduling", "--program-scheduling-config-json {}", "--mini-lb",
		"--retry-max-retries many", "--retry-jitter-factor x", "--disable-retries=maybe", "--queue-size -1",
		"--retry-max-retry 5", "--policy kv_aware", "--prefill-policy kv_aware", "--decode-policy kv-aware",
	} {
		var stdout, stderr bytes.Buffer
		flag, _, _ := strings.Cut(strings.Fields(args)[0], "=")
		code := baton(append([]string{vllmRouter}, strings.Fields(args)...), &stdout, &stderr)
		if code != 2 || !strings.HasPrefix(stderr.String(), "baton vllm-router: ") || !strings.Contains(stderr.String(), flag) {
			t.Errorf("%s: exit code %d and %q, want 2 and the flag's name", args, code, stderr.String())
		}
	}
}

// An environment that has clients' keys checked is not served without.
func TestRefusedEnvironment(t *testing.T) {
	t.Setenv("API_KEY_VALIDATION_URLS", "http://auth")
	var stdout, stderr bytes.Buffer
	if code := baton([]string{vllmRouter}, &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), "API_KEY_VALIDATION_URLS") {
		t.Errorf("exit code %d, printed %q", code, stderr.String())
	}
}

// TestMigratingNamesAllFlags: the page names each flag that changes nothing.
func TestMigratingNamesAllFlags(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range inertFlags {
		if !bytes.Contains(page, []byte("`--"+f.name+"`")) {
			t.Errorf("docs/migrating.md does not name --%s", f.name)
		}
	}
}
