package main

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/discovery/zmq"
	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// series returns the router's own series by name and labels, without their
// values.
func (r *running) series() []string {
	r.t.Helper()
	var all []string
	for line := range strings.Lines(r.do("GET", "http://"+r.metricsAddr()+"/metrics", "").body) {
		if strings.HasPrefix(line, "baton_") || strings.HasPrefix(line, "vllm_router_") {
			all = append(all, line[:strings.LastIndexByte(line, ' ')])
		}
	}
	return all
}

// TestLabelsAreBounded is case 6.1: whatever clients and workers send, and
// however workers come and go, each label of each metric has one of a fixed set
// of values, or names a worker that is there.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	regular, engine := startEngine(t, enginesim.RoleRegular)
	prefill, _ := startEngine(t, enginesim.RolePrefill)
	decode, _ := startEngine(t, enginesim.RoleDecode)
	allowed, err := zmq.ParseAllowed(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := startRouter(t, func(c *config) {
		c.workers.Regular, c.workers.Prefill, c.workers.Decode = []string{regular}, []string{prefill}, []string{decode}
		c.server.AllowPaths = []string{"/my/"}
		c.discovery.Address, c.discovery.Allowed = "127.0.0.1:0", allowed
	})
	eventually(t, "three workers", func() bool { ready, _ := r.counts(); return ready == 3 })

	values := map[string][]string{
		"route":      {"unserved"},
		"role":       {"regular", "prefill", "decode"},
		"state":      {"ready", "pending", "down", "asleep", "full", "ejected", "trial", "draining"}, // joined by commas
		"worker":     {regular, prefill, decode, dead + "9"},
		"outcome":    {"ok", "refused", "failed", "broken", "cut_off", "produced", "delivered", "discarded", "abandoned", "success", "failure"},
		"phase":      {"prefill", "handoff", "decode"},
		"policy":     policy.Names(),
		"error_type": {"no_available_workers", "non_retryable_error"},
		"from":       {"closed", "open", "half_open"},
		"to":         {"closed", "open", "half_open"},
		"reason": {
			"prefix", "wait", "held", "load", "discard", // picks with the default policies
			"expired", "lost", "no_decode", "not_admitted", "cut_off", "refused", "discard_failed",
		},
	}
	paths := openai.RoutePaths()
	values["route"] = append(append(values["route"], openai.RouteNames()...), paths...)
	patterns := map[string]*regexp.Regexp{
		"status": regexp.MustCompile(`^([1-5]\d\d|other)$`),
		"le":     regexp.MustCompile(`^([\d.]+|\+Inf)$`),
		"result": regexp.MustCompile(`^[a-z_]{1,20}$`), // the words of package discovery/zmq
	}
	label := regexp.MustCompile(`(\w+)="([^"]*)"`)
	check := func() int {
		all := r.series()
		for _, s := range all {
			for _, m := range label.FindAllStringSubmatch(s, -1) {
				name, value := m[1], m[2]
				if p := patterns[name]; p != nil {
					if !p.MatchString(value) {
						t.Errorf("%s: the value of %s", s, name)
					}
					continue
				}
				for part := range strings.SplitSeq(value, ",") {
					if !slices.Contains(values[name], part) {
						t.Errorf("%s: the value of %s is none of %v", s, name, values[name])
					}
				}
			}
		}
		return len(all)
	}

	public := "http://" + r.addr()
	ask := func(path, body string, header ...string) answer {
		return r.do("POST", public+path, body, append(header, "Content-Type", "application/json")...)
	}
	traffic := func(round int) {
		for i := range 20 {
			n := fmt.Sprintf("%d-%d", round, i)
			ask("/scan/"+n+".php", "{}")
			r.do("M-"+n, public+"/v1/"+n, "{}")
			r.do("GET", public+"/my/"+n, "")
			r.do("GET", public+"/v1/responses/"+n, "")
			ask("/v1/completions", `{"model":"x`+n+`","prompt":"p"}`)
			ask("/v1/completions", `{"model":"m","prompt":"p","user":"`+n+`"}`, "X-Session-Id", n, "X-Request-Id", n)
			ask("/v1/embeddings", `{"model":"m","input":"`+n+`"}`)
		}
		for _, path := range paths {
			ask(path, `{"model":"m","prompt":"p","messages":[{"role":"user","content":"p"}],"input":"p"}`)
		}
		for i := range 60 {
			undo := engine.Fault(enginesim.Fault{Path: "*", Action: "status", Status: 300 + 5*i, Body: "odd", Times: 1})
			ask("/v1/chat/completions/batch", `{"model":"m"}`)
			undo()
		}
		for _, rubbish := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x02"} {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.discovery.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write([]byte(rubbish)) // it may be refused before
			conn.Close()
		}
		eventually(t, "the rubbish is counted", func() bool {
			return slices.ContainsFunc(r.series(), func(s string) bool { return strings.HasPrefix(s, "baton_registrations_total{") })
		})
		for i := range 30 { // workers come and go
			body := fmt.Sprintf(`{"url":%q,"worker_type":%q}`, fmt.Sprint(dead, i%10), []string{"regular", "prefill", "decode"}[i%3])
			if got := r.do("POST", "http://"+r.adminAddr()+"/workers", body); got.status != http.StatusOK {
				t.Fatal(got)
			}
			if i%10 != 9 || i < 29 {
				r.do("DELETE", "http://"+r.adminAddr()+"/workers/"+fmt.Sprint(dead, i%10), "")
			}
		}
		eventually(t, "only the workers that are left are there", func() bool {
			var left []string
			for _, role := range worker.Roles() {
				for _, w := range r.pools[role].Snapshot().Workers {
					left = append(left, w.Label())
				}
			}
			slices.Sort(left)
			return slices.Equal(left, slices.Sorted(slices.Values(values["worker"])))
		})
	}
	traffic(1)
	first := check()
	traffic(2)
	if second := check(); second > first+10 || first > 2500 {
		t.Errorf("%d series, then %d", first, second)
	}

	// The test is only as good as what it has seen.
	seen := map[string]bool{}
	for _, s := range r.series() {
		for _, m := range label.FindAllStringSubmatch(s, -1) {
			seen[m[1]] = true
		}
	}
	for _, name := range append(slices.Collect(maps.Keys(values)), slices.Collect(maps.Keys(patterns))...) {
		if !seen[name] && !slices.Contains([]string{"from", "to"}, name) {
			t.Errorf("no series has the label %s", name)
		}
	}
}

// TestMatchedShare: how much of the prompts the workers chosen had been sent
// before is counted by role, in bytes.
func TestMatchedShare(t *testing.T) {
	t.Parallel()
	prefill, _ := startEngine(t, enginesim.RolePrefill)
	decode, _ := startEngine(t, enginesim.RoleDecode)
	r := startRouter(t, func(c *config) {
		c.workers.Prefill, c.workers.Decode = []string{prefill}, []string{decode}
	})
	eventually(t, "two workers", func() bool { ready, _ := r.counts(); return ready == 2 })
	value := func(series string) (v float64) {
		for line := range strings.Lines(r.do("GET", "http://"+r.metricsAddr()+"/metrics", "").body) {
			if text, ok := strings.CutPrefix(line, series+" "); ok {
				if _, err := fmt.Sscan(text, &v); err != nil {
					t.Fatal(err)
				}
			}
		}
		return v
	}
	const key, matched = `baton_prefix_key_bytes_total{role="prefill"}`, `baton_prefix_matched_bytes_total{role="prefill"}`
	prompt := strings.Repeat("all work and no play ", 100)
	asked := 0.0
	ask := func(prompt string) {
		t.Helper()
		asked++
		body := fmt.Sprintf(`{"model":"m","prompt":%q}`, prompt)
		if got := r.do("POST", "http://"+r.addr()+"/v1/completions", body, "Content-Type", "application/json"); got.status != http.StatusOK {
			t.Fatal(got)
		}
		eventually(t, "the request is counted", func() bool {
			return value(`baton_requests_total{route="completions",status="200"}`) == asked
		})
	}
	ask(prompt)
	if k, m := value(key), value(matched); k < float64(len(prompt)) || m != 0 {
		t.Errorf("of a first prompt of %d bytes: %v of %v matched", len(prompt), m, k)
	}
	first := value(key)
	ask(prompt + "makes Jack a dull boy")
	if k, m := value(key)-first, value(matched); k <= first || m < .9*first || m > first {
		t.Errorf("of a prompt that extends %v bytes: %v of %v matched", first, m, k)
	}
	for _, w := range []string{prefill, decode} { // the same requests as vllm-router tells of them
		if n := value(`vllm_router_cb_outcomes_total{outcome="success",worker="` + w + `"}`); n != asked {
			t.Errorf("%v good legs on %s, want %v", n, w, asked)
		}
	}
	if k := value(`baton_prefix_key_bytes_total{role="decode"}`); k != 0 {
		t.Errorf("%v bytes looked up for decode", k)
	}
}
