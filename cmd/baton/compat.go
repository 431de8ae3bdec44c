package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/baton-llm/baton/internal/policy"
)

// vllmRouter is the name under which baton is vllm-router: linked or copied to
// it, its arguments are those of serve.
const vllmRouter = "vllm-router"

// runVLLMRouter is serve with vllm-router's default policy.
func runVLLMRouter(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-V") {
		return runVersion(ctx, nil, stdout, stderr)
	}
	return serve(ctx, vllmRouter, args, stdout, stderr)
}

// inertFlag is a flag of vllm-router that changes nothing here. With a value
// whose absence would surprise, such as one that asks for protection, the router
// does not start.
type inertFlag struct {
	name, kind string // kind: bool, uint, float, string or list
	def        string // value that says nothing
	why        string
	refused    bool // any other value than def is
}

// noKVEvents is why the flags of vllm-router's kv_aware policy have no effect.
const noKVEvents = "KV events are not read yet; the router goes by which prompts it sent where"

var inertFlags = []inertFlag{
	{name: "eviction-interval", kind: "uint", def: "120", why: "the prefix index makes room as it goes"},
	{name: "eviction-interval-secs", kind: "uint", def: "120", why: "the prefix index makes room as it goes"},
	{name: "worker-startup-timeout-secs", kind: "uint", def: "600", why: "workers may come up at any time"},
	{name: "worker-startup-check-interval", kind: "uint", def: "30", why: "a new worker is probed at once and then ever less often"},
	{name: "enable-igw", kind: "bool", def: "false", why: "several models and worker management are always served"},
	{name: "history-backend", kind: "string", def: "memory", why: "engines alone store responses"},
	{name: "profile", kind: "bool", def: "false", why: "nothing to profile through the router"},
	{name: "log-dir", kind: "string", why: "logs go to the standard error output"},
	{name: "max-concurrent-requests", kind: "uint", def: "32768", why: "requests are not limited yet"},
	{name: "queue-size", kind: "uint", def: "100", why: "requests are not queued yet"},
	{name: "queue-timeout-secs", kind: "uint", def: "60", why: "requests are not queued yet"},
	{name: "rate-limit-tokens-per-second", kind: "uint", why: "requests are not limited yet"},
	{name: "cors-allowed-origins", kind: "list", why: "CORS is off"},
	{name: "retry-max-retries", kind: "uint", def: "5", why: "a leg is tried at most twice, at once"},
	{name: "retry-initial-backoff-ms", kind: "uint", def: "50", why: "a leg is tried at most twice, at once"},
	{name: "retry-max-backoff-ms", kind: "uint", def: "30000", why: "a leg is tried at most twice, at once"},
	{name: "retry-backoff-multiplier", kind: "float", def: "1.5", why: "a leg is tried at most twice, at once"},
	{name: "retry-jitter-factor", kind: "float", def: "0.2", why: "a leg is tried at most twice, at once"},
	{name: "disable-retries", kind: "bool", def: "false", why: "a leg is tried at most twice, at once"},
	{name: "enable-trace", kind: "bool", def: "false", why: "spans are not exported; trace headers are passed on"},
	{name: "otlp-traces-endpoint", kind: "string", why: "spans are not exported; trace headers are passed on"},
	{name: "otel-sampling-ratio", kind: "float", def: "1.0", why: "spans are not exported; trace headers are passed on"},
	{name: "otel-excluded-paths", kind: "list", why: "spans are not exported; trace headers are passed on"},
	{name: "router-temperature", kind: "float", def: "0", why: noKVEvents},
	{name: "kv-penalty-host", kind: "float", def: "0.8", why: noKVEvents},
	{name: "kv-penalty-external", kind: "float", def: "0.6", why: noKVEvents},
	{name: "kv-penalty-disk", kind: "float", def: "0.3", why: noKVEvents},
	{name: "kv-aware-session-affinity-ttl-secs", kind: "uint", why: noKVEvents},
	{name: "kv-event-source", kind: "list", why: noKVEvents},
	{name: "kv-event-replay-source", kind: "list", why: noKVEvents},
	{name: "kv-event-block-size", kind: "uint", def: "16", why: noKVEvents},
	{name: "kv-event-model", kind: "string", why: noKVEvents},
	{name: "pd-kv-events", kind: "list", why: noKVEvents},
	{name: "selector", kind: "list", why: "see --service-discovery"},
	{name: "prefill-selector", kind: "list", why: "see --service-discovery"},
	{name: "decode-selector", kind: "list", why: "see --service-discovery"},
	{name: "service-discovery-port", kind: "uint", def: "80", why: "see --service-discovery"},
	{name: "service-discovery-namespace", kind: "string", why: "see --service-discovery"},

	{name: "service-discovery", kind: "bool", def: "false", refused: true, why: "pods are not watched yet; workers register over ZMQ (--vllm-discovery-address) or with POST /workers"},
	{name: "backend", kind: "string", def: "vllm", refused: true, why: "vllm alone is served"},
	{name: "runtime", kind: "string", def: "vllm", refused: true, why: "vllm alone is served"},
	{name: "api-key-validation-urls", kind: "list", refused: true, why: "keys of clients are not checked yet, and an open router is not what it asks for"},
	{name: "wasm-middleware", kind: "string", refused: true, why: "there is no WebAssembly middleware"},
	{name: "wasm-middleware-sha256", kind: "string", refused: true, why: "there is no WebAssembly middleware"},
	{name: "wasm-middleware-route", kind: "list", refused: true, why: "there is no WebAssembly middleware"},
	{name: "enable-program-scheduling", kind: "bool", def: "false", refused: true, why: "there is no program scheduling"},
	{name: "program-scheduling-config-json", kind: "string", refused: true, why: "there is no program scheduling"},
	{name: "mini-lb", kind: "bool", def: "false", refused: true, why: "there is no debug balancer"},
}

// registerInert adds the flags that change nothing, hidden from the help text:
// docs/migrating.md lists them.
func registerInert(flags *pflag.FlagSet) {
	for i := range inertFlags {
		f := &inertFlags[i]
		added := flags.VarPF(&inertValue{flag: f, text: f.def}, f.name, "", "of vllm-router: "+f.why)
		added.Hidden = true
		if f.kind == "bool" {
			added.NoOptDefVal = "true"
		}
	}
}

// without returns the flags given that have no effect, sorted.
func without(flags *pflag.FlagSet) (names []string) {
	flags.Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*inertValue); ok && v.text != v.flag.def {
			names = append(names, f.Name)
		}
	})
	slices.Sort(names)
	return names
}

// inertValue checks the value of an inert flag as vllm-router would.
type inertValue struct {
	flag *inertFlag
	text string
}

var _ pflag.Value = (*inertValue)(nil)

func (v *inertValue) String() string { return v.text }
func (v *inertValue) Type() string   { return v.flag.kind }

func (v *inertValue) Set(s string) error {
	same := s == v.flag.def
	switch v.flag.kind {
	case "bool":
		b, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("must be true or false")
		}
		same = !b
	case "uint":
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return errors.New("must be a whole number, 0 or more")
		}
		same = strconv.FormatUint(n, 10) == v.flag.def
	case "float":
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return errors.New("must be a number")
		}
		if def, err := strconv.ParseFloat(v.flag.def, 64); err == nil && n == def {
			same = true
		}
	}
	if v.flag.refused && !same {
		return fmt.Errorf("not supported: %s", v.flag.why)
	}
	if v.text = s; same {
		v.text = v.flag.def
	}
	return nil
}

// lists are the flags that take several values, and whether they may be empty.
func lists() map[string]bool {
	all := map[string]bool{"worker-urls": true, "request-id-headers": true, "decode": false}
	for _, f := range inertFlags {
		if f.kind == "list" {
			all[f.name] = true
		}
	}
	return all
}

// policyNamed returns the name here of a policy of vllm-router.
func policyNamed(flag, name string) (string, error) {
	switch {
	case slices.Contains(policy.Names(), name):
		return name, nil
	case name == "sticky_least_loaded":
		return "sticky", nil
	case name == "kv_aware":
		return "", fmt.Errorf("%s kv_aware is not supported: %s (%s)", flag, noKVEvents, policy.Default)
	default:
		return "", fmt.Errorf("%s: unknown policy %q: known are %s", flag, name, strings.Join(policy.Names(), ", "))
	}
}

// checkEnvironment refuses a variable of vllm-router that asks for protection.
func checkEnvironment() error {
	const name = "API_KEY_VALIDATION_URLS"
	i := slices.IndexFunc(inertFlags, func(f inertFlag) bool { return f.name == "api-key-validation-urls" })
	if os.Getenv(name) != "" {
		return fmt.Errorf("%s is set in the environment: not supported: %s", name, inertFlags[i].why)
	}
	return nil
}
