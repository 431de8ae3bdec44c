package main

import (
	"bytes"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// resolved makes a configuration of a command line.
func resolved(t *testing.T, args ...string) (config, error) {
	t.Helper()
	rest, prefills, err := cutPrefill(args)
	if err != nil {
		t.Fatal(err)
	}
	f := newServeFlags("serve")
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.register(flags)
	if err := parse(flags, rest, io.Discard); err != nil {
		t.Fatal(err)
	}
	return f.resolve(prefills)
}

func TestResolveDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := resolved(t)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.public != "127.0.0.1:30000" || cfg.admin != "127.0.0.1:29001" || cfg.metrics != "127.0.0.1:29000" || cfg.adminOnPublic {
		t.Errorf("addresses %s, %s, %s", cfg.public, cfg.admin, cfg.metrics)
	}
	for _, role := range worker.Roles() {
		if cfg.policies[role] != "least_wait" {
			t.Errorf("policy of %v is %s", role, cfg.policies[role])
		}
	}
	if c := cfg.choosing; c.TokenWindow != 8192 || c.CacheThreshold != 0.3 || c.BalanceAbs != 64 || c.BalanceRel != 1.5 ||
		c.MaxTreeSize != 64<<20 || c.IndexMemory != 64<<20 || c.SessionTTL != 2*time.Hour || c.MaxSessions != 262144 {
		t.Errorf("policies are made with %+v", c)
	}
	if cfg.dispatch.FirstByteTimeout != 1800*time.Second || cfg.health.Interval != 5*time.Second || cfg.health.Timeout != 5*time.Second {
		t.Errorf("times %v, %v, %v", cfg.dispatch.FirstByteTimeout, cfg.health.Interval, cfg.health.Timeout)
	}
	if cfg.workers.Dialect != "nixl" || cfg.carrier.ConnectTimeout != 5*time.Second || len(cfg.server.RequestIDHeaders) != 4 {
		t.Errorf("got %+v", cfg)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	cfg, err := resolved(
		t, "--host", "::", "--port", "1", "--admin-port", "0", "--prometheus-port", "0",
		"--worker-urls", "http://r", "--prefill", "http://p", "8998", "--prefill", "http://q", "--decode", "http://d",
		"--policy", "random", "--decode-policy", "round_robin", "--cache-threshold", "0.5", "--balance-abs-threshold", "32",
		"--balance-rel-threshold", "1.1", "--balance-token-window", "100", "--max-tree-size", "1000", "--prefix-index-memory", "2000",
		"--session-ttl", "1m", "--max-sessions", "9", "--vllm-pd-disaggregation",
		"--request-timeout-secs", "0", "--health-check-interval-secs", "7", "--health-check-timeout-secs", "3",
		"--request-id-headers", "x-my-id", "--stream-idle-timeout", "0",
	)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.public != "[::]:1" || cfg.admin != "" || cfg.metrics != "" {
		t.Errorf("addresses %q, %q, %q", cfg.public, cfg.admin, cfg.metrics)
	}
	if !slices.Equal(cfg.workers.Prefill, []string{"http://p", "http://q"}) || !slices.Equal(cfg.workers.Decode, []string{"http://d"}) ||
		!slices.Equal(cfg.workers.Regular, []string{"http://r"}) {
		t.Errorf("workers %+v", cfg.workers)
	}
	for role, want := range map[worker.Role]string{worker.Regular: "random", worker.Prefill: "random", worker.Decode: "round_robin"} {
		if cfg.policies[role] != want {
			t.Errorf("policy of %v is %s, want %s", role, cfg.policies[role], want)
		}
	}
	if want := (policy.Config{
		Role: worker.Regular, CacheThreshold: 0.5, BalanceAbs: 32, BalanceRel: 1.1, TokenWindow: 100,
		MaxTreeSize: 1000, IndexMemory: 2000, SessionTTL: time.Minute, MaxSessions: 9,
	}); cfg.choosing != want {
		t.Errorf("policies are made with %+v, want %+v", cfg.choosing, want)
	}
	if cfg.dispatch.FirstByteTimeout != 0 || cfg.dispatch.IdleTimeout != 0 || cfg.health.Interval != 7*time.Second || cfg.health.Timeout != 3*time.Second {
		t.Errorf("times %+v, %+v", cfg.dispatch, cfg.health)
	}
	if !slices.Equal(cfg.server.RequestIDHeaders, []string{"X-My-Id"}) {
		t.Errorf("request id headers %q", cfg.server.RequestIDHeaders)
	}
}

// TestBadValues: a value that cannot be meant ends the start with exit code 2
// and names its flag.
func TestBadValues(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"--port 70000", "--port -1", "--port x", "--admin-port 65536", "--prometheus-port 1.5",
		"--max-payload-size 0", "--max-payload-size x",
		"--health-check-timeout-secs 0", "--health-check-timeout-secs 18446744073709551615",
		"--health-check-interval-secs 0", "--health-check-interval-secs 9300000000", "--health-check-interval-secs -1",
		"--request-timeout-secs 18446744073709551615", "--request-timeout-secs 10s",
		"--health-failure-threshold 0", "--health-success-threshold 0", "--health-check-endpoint health",
		"--connect-timeout 0", "--connect-timeout 5", "--handoff-max-age 0s", "--decode-wait -1s",
		"--stream-idle-timeout -1s", "--client-body-timeout -1s", "--client-write-timeout -1ms",
		"--drain-delay -1s", "--drain-timeout -1s",
		"--log-format xml", "--log-level loud",
		"--allow-path v1/x",
		"--kv-connector mooncake",
		"--balance-token-window -1", "--cache-threshold 2", "--cache-threshold x", "--balance-abs-threshold -1", "--balance-rel-threshold 0.5",
		"--max-tree-size 0", "--prefix-index-memory 0", "--session-ttl 0s", "--max-sessions 0",
		"--policy cache", "--prefill-policy x", "--decode-policy least-load",
		"--worker-urls a:8000", "--worker-urls http://a:8000 http://a:8000/", "--worker-urls grpc://a",
		"--prefill x", "--prefill", "--prefill=", "--decode http://u:p@a", "--decode",
		"--no-such-flag",
		"--decode http://a --no-such-flag=1",
	} {
		words := strings.Fields(args)
		flag := words[0]
		if i := slices.IndexFunc(words, func(s string) bool { return strings.HasPrefix(s, "--no-such") }); i >= 0 {
			flag = words[i]
		}
		flag, _, _ = strings.Cut(flag, "=")
		var stdout, stderr bytes.Buffer
		code := baton(append([]string{"serve"}, words...), &stdout, &stderr)
		if code != 2 || !strings.HasPrefix(stderr.String(), "baton serve: ") || !strings.Contains(stderr.String(), flag) {
			t.Errorf("%s: exit code %d, want 2, and %q, want %s in it", args, code, stderr.String(), flag)
		}
		if stdout.Len() > 0 {
			t.Errorf("%s: printed %q", args, stdout.String())
		}
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string // parts
	}{
		{"", 0, "usage: baton COMMAND", ""},
		{"help", 0, "serve ", ""},
		{"-h", 0, "demo ", ""},
		{"--help", 0, "version ", ""},
		{"version", 0, "baton dev go1", ""},
		{"route", 2, "", `unknown command "route"`},
		{"--port 1", 2, "", `unknown command "--port"`},
		{"serve --help", 0, "--health-check-endpoint", ""},
		{"serve -h", 0, "usage: baton serve [flags]", ""},
		{"serve --port 1 x", 2, "", `unexpected argument "x"`},
		{"demo --rounds 1", 2, "", "unknown flag: --rounds"},
		{"sim --role encode --port 0", 2, "", "encode"},
	} {
		var stdout, stderr bytes.Buffer
		code := baton(strings.Fields(tt.args), &stdout, &stderr)
		if code != tt.code || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("baton %s: exit code %d, printed %q and %q, want %d, %q and %q",
				tt.args, code, stdout.String(), stderr.String(), tt.code, tt.stdout, tt.stderr)
		}
		if (tt.stdout == "") != (stdout.Len() == 0) && !strings.HasPrefix(tt.args, "sim") || (tt.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("baton %s: printed %q and %q", tt.args, stdout.String(), stderr.String())
		}
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ format, level, want string }{
		{"json", "info", `"msg":"info"`},
		{"text", "INFO", "msg=info"},
		{"text", "warning", "msg=warn"},
		{"text", "critical", "msg=error"},
		{"text", "debug", "msg=debug"},
	} {
		var buf bytes.Buffer
		log, err := newLogger(&buf, tt.format, tt.level)
		if err != nil {
			t.Errorf("%s: %v", tt.level, err)
			continue
		}
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			log.Log(t.Context(), l, strings.ToLower(l.String())) //nolint:sloglint // a word for each level
		}
		first, _, _ := strings.Cut(buf.String(), "\n")
		if !strings.Contains(first, tt.want) {
			t.Errorf("--log-format %s --log-level %s: the first line is %q, want %s", tt.format, tt.level, first, tt.want)
		}
	}
}
