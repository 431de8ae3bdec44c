package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/server"
)

// wantErrorObject checks that a body is an error object in the form that
// clients of the path know.
func wantErrorObject(t *testing.T, path string, a answer) {
	t.Helper()
	var v struct {
		Type  string
		Error map[string]any
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Errorf("%v in %q", err, a.body)
		return
	}
	want := []string{"message", "type", "param", "code"}
	if path == "/v1/messages" {
		want = []string{"message", "type", "code"}
		if v.Type != "error" {
			t.Errorf("type %q in %s", v.Type, a.body)
		}
	}
	for _, name := range want {
		if _, ok := v.Error[name]; !ok {
			t.Errorf("no %s in %s", name, a.body)
		}
	}
	if len(v.Error) != len(want) {
		t.Errorf("more than %v in %s", want, a.body)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if a.header.Get("X-Request-Id") == "" {
		t.Error("no request id")
	}
}

// Cases 1.33 and 5.6: the same on every route that generates, with a pair and
// without, streamed or not. The engines check the legs.
func TestGenerationRoutes(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions":   `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_completion_tokens":9,"min_tokens":5,"n":2}`,
		"/v1/completions":        `{"model":"m","prompt":"hello","max_tokens":9,"min_tokens":5}`,
		"/v1/responses":          `{"model":"m","input":"hello","max_output_tokens":9}`,
		"/v1/messages":           `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":9}`,
		"/inference/v1/generate": `{"model":"m","token_ids":[5,6,7,8],"sampling_params":{"max_tokens":9,"min_tokens":5}}`,
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream %t", path, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					body := body
					if stream {
						body = strings.Replace(body, "{", `{"stream":true,`, 1)
					}
					generated := map[string]string{}
					for kind, o := range map[string]options{"plain": {}, "paired": {engines: pdEngines()}} {
						f := start(t, o)
						a := f.post(path, body)
						if a.err != nil || a.status != 200 || a.header.Get("X-Request-Id") == "" {
							t.Fatalf("%s: %+v", kind, a)
						}
						if streamed := strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream"); streamed != stream {
							t.Errorf("%s: Content-Type %s", kind, a.header.Get("Content-Type"))
						}
						generated[kind] = text(a.body)
						want := map[string]int{"plain": 1, "paired": 2}[kind]
						if got := len(f.arrived()); got != want {
							t.Errorf("%s: %d legs, want %d", kind, got, want)
						}
						if kind == "paired" {
							if s := f.engines[0].Stats(); s.HandoffsCollected != 1 || s.GeneratedTokens != 1 {
								t.Errorf("prefill: %d hand-offs collected, %d tokens generated", s.HandoffsCollected, s.GeneratedTokens)
							}
						}
						f.net.Kill(routerAddr) // the next fleet has a network of its own
					}
					if generated["plain"] == "" || generated["plain"] != generated["paired"] {
						t.Errorf("generated %q", generated)
					}
				})
			})
		}
	}
}

// text joins the texts and token ids of an answer of any form, in order.
func text(body string) string {
	var b strings.Builder
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			if v["type"] == "response.output_text.done" || v["type"] == "response.completed" || v["type"] == "response.content_part.done" || v["type"] == "response.output_item.done" {
				return
			}
			for _, name := range []string{"choices", "message", "delta", "content", "output", "text", "token_ids"} {
				switch e := v[name].(type) {
				case string:
					b.WriteString(e)
				case []any:
					if len(e) > 0 {
						if _, number := e[0].(float64); number {
							fmt.Fprint(&b, e)
							continue
						}
					}
					walk(e)
				case map[string]any:
					walk(e)
				}
			}
		}
	}
	for line := range strings.Lines(body) {
		var v any
		line = strings.TrimPrefix(line, "data: ")
		if json.Unmarshal([]byte(line), &v) == nil {
			walk(v)
		}
	}
	return b.String()
}

// Clients reach the paths of the list and no other: above all none that
// controls an engine, however it is written.
func TestPathsNotServed(t *testing.T) {
	control := []string{
		"/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/reset_prefix_cache", "/reset_mm_cache",
		"/reset_encoder_cache", "/abort_requests", "/collective_rpc", "/start_profile", "/stop_profile",
		"/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply", "/server_info", "/weight_info",
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load", "/ping", "/metrics", "/docs", "/openapi.json",
		"/tokenizer_info", "/sim/faults", "/workers",
	}
	targets := []string{
		"/", "/favicon.ico", "/v1", "/v1/", "/v2/", "/V1/chat/completions", "/v1/%63ompletions", "/v1/completions%00",
		"/v1/completions/%2e%2e/%2e%2e/sleep", "/v1/completions/../../sleep", "/v1/..%2fsleep", "/v1/./completions", "//v1/completions", "/v1//completions", "/v1/completions//",
		"http://router/sleep", "http://router//sleep", "http:/sleep",
	}
	for _, path := range control {
		trimmed := strings.TrimPrefix(path, "/")
		targets = append(targets, path, path+"/", path+"?level=1", "/"+path, "/./"+trimmed, "/v1/.."+path, "/v1/%2e%2e"+path,
			"/v1/..%2F"+trimmed, "/v1//.."+path, "/%2F"+trimmed, path+"%2F", path+"%20", path+"/.", path+"//",
			fmt.Sprintf("/%%%x%s", trimmed[0], trimmed[1:]), strings.ReplaceAll(path, "_", "%5F")+"%", path+"%zz")
	}
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		for _, method := range []string{"POST", "GET", "PUT", "OPTIONS"} {
			for _, target := range targets {
				r := f.dial()
				r.say(method + " " + target + " HTTP/1.1\r\nHost: router\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
				a := r.answer()
				r.conn.Close()
				if a.status == 400 && strings.Contains(target, "%") {
					continue // not a URL: refused by net/http
				}
				if a.status != 404 || a.code() != "path_not_served" {
					t.Errorf("%s %s: %+v", method, target, a)
					continue
				}
				wantErrorObject(t, target, a)
			}
		}
		for _, r := range f.arrived() {
			t.Errorf("%s %s reached the worker", r.Method, r.Path)
		}
		if f.counted("unserved", 404) == "0" {
			t.Error("they were not counted")
		}
	})
}

func TestAllowPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{soiled: true, server: func(c *server.Config) { c.AllowPaths = []string{"/load", "/my/", "/is_sleeping"} }})
		for target, want := range map[string]struct {
			status int
			path   string // that arrived
		}{
			"/load?x=1":       {200, "/load"},
			"/is_sleeping":    {200, "/is_sleeping"},
			"/my/":            {404, "/my/"},
			"/my/own":         {404, "/my/own"},
			"/my/own/":        {404, "/my/own/"},
			"/my":             {404, ""},
			"/load/x":         {404, ""},
			"/loads":          {404, ""},
			"/my/../sleep":    {404, ""},
			"/my/%2e%2e/load": {404, ""},
		} {
			before := len(f.arrived())
			r := f.dial()
			r.say("GET " + target + " HTTP/1.1\r\nHost: router\r\n\r\n")
			a := r.answer()
			path := ""
			if arrived := f.arrived(); len(arrived) > before {
				path = arrived[len(arrived)-1].Path
			}
			if a.status != want.status || path != want.path || (a.code() == "path_not_served") != (want.path == "") {
				t.Errorf("%s: %+v, arrived %q, want %+v", target, a, path, want)
			}
		}
		if got := f.counted("allowed", 200); got != "2" {
			t.Errorf("counted %s", got)
		}
	})
}

// Cases 5.12 and 5.17: paths go on as they are, but for a trailing slash, which
// a worker would answer with a redirect.
func TestPathsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		for target, want := range map[string]string{
			"/v1/completions":          "/v1/completions",
			"/v1/completions/":         "/v1/completions",
			"/v1/completions?a=1/":     "/v1/completions?a=1/",
			"/v1/completions/?a=1&b=/": "/v1/completions?a=1&b=/",
			"/v1/rerank":               "/v1/rerank",
			"/rerank":                  "/rerank",
			"/v1/future/x":             "/v1/future/x",
			"/v1/future/":              "/v1/future/",
			"/v1/responses/r/":         "/v1/responses/r",
		} {
			f.post(target, comp)
			arrived := f.arrived()
			if len(arrived) == 0 {
				t.Errorf("%s: nothing arrived", target)
				continue
			}
			last := arrived[len(arrived)-1]
			got := last.Path
			if last.Query != "" {
				got += "?" + last.Query
			}
			if got != want {
				t.Errorf("%s: %s arrived, want %s", target, got, want)
			}
		}
	})
}

func TestMethods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		for _, tt := range []struct {
			method, path string
			status       int
			arrives      bool
		}{
			{"GET", chat, 405, false},
			{"OPTIONS", chat, 405, false},
			{"DELETE", "/v1/messages", 405, false},
			{"GET", "/version", 200, true},
			{"GET", "/v1/responses/r", 404, true},
			{"DELETE", "/v1/responses/r", 405, true},
			{"POST", "/v1/responses/r/cancel", 404, true},
			{"GET", "/v1/models/m", 404, true},
			{"HEAD", "/version", 405, true},
			{"POST", "/v1/models", 405, true},
		} {
			before := len(f.arrived())
			body := ""
			if tt.path == "/v1/models" {
				body = "{}"
			}
			a := f.do(f.request(tt.method, tt.path, body))
			if a.err != nil || a.status != tt.status || len(f.arrived()) > before != tt.arrives {
				t.Errorf("%s %s: %+v, arrives %t", tt.method, tt.path, a, len(f.arrived()) > before)
			}
			if !tt.arrives && (a.header.Get("Allow") != "POST" || a.code() != "method_not_allowed") {
				t.Errorf("%s %s: %+v", tt.method, tt.path, a)
			}
		}
	})
}

// An offer to go on in HTTP/2, as Java's client makes, is no wish for another
// protocol.
func TestUpgrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		for header, want := range map[string]int{
			"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n":      501,
			"Upgrade: h2c, websocket\r\nConnection: Upgrade\r\n":                         501,
			"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings:\r\n": 200,
		} {
			r := f.dial()
			r.say(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", header, len(comp), comp))
			if a := r.answer(); a.status != want || want == 501 && a.code() != "upgrade_not_served" {
				t.Errorf("%q: %+v, want %d", header, a, want)
			}
		}
		r := f.dial()
		r.say("GET /v1/realtime HTTP/1.1\r\nHost: router\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		if a := r.answer(); a.status != 501 {
			t.Errorf("%+v", a)
		}
		if got := len(f.arrived()); got != 1 {
			t.Errorf("%d requests arrived, want 1", got)
		}
	})
}

// Cases 1.24, 2.21 and 5.13: which header fields go on.
func TestHeadersGoOn(t *testing.T) {
	for name, o := range map[string]options{"plain": {engines: []enginesim.Config{{Strict: true}}}, "paired": {engines: pdEngines()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, o)
				r := f.dial()
				r.say(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: router.example\r\nContent-Length: %d\r\n", len(comp)) +
					"Content-Type: application/json\r\nAuthorization: Bearer u1\r\ntraceparent: 00-a-b-01\r\ntracestate: x=1\r\nX-Tenant: t\r\n" +
					"X-Multi: 2\r\nX-Multi: 1\r\nX-Request-Id: id-7\r\nX-Correlation-Id: other\r\nX-Vllm-Priority: 3\r\n" +
					"Connection: keep-alive, X-Hop, X-Forwarded-For\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nProxy-Authorization: Basic x\r\n" +
					"X-Forwarded-For: 10.9.9.9\r\nX-Forwarded-Proto: https\r\n\r\n" + comp)
				if a := r.answer(); a.err != nil || a.status != 200 || a.header.Get("X-Request-Id") != "id-7" {
					t.Fatalf("%+v", a)
				}
				arrived := f.arrived()
				if len(arrived) == 0 {
					t.Fatal("nothing arrived")
				}
				for _, rec := range arrived {
					want := http.Header{
						"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(rec.BodyLen)}, "Authorization": {"Bearer u1"},
						"Traceparent": {"00-a-b-01"}, "Tracestate": {"x=1"}, "X-Tenant": {"t"}, "X-Multi": {"2", "1"},
						"X-Request-Id": {"id-7"}, "X-Vllm-Priority": {"3"},
						// The client's own word on who it is was for us alone: it says so.
						"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"router.example"},
					}
					if rec.Leg == enginesim.LegPrefill {
						want["Accept-Encoding"] = []string{"identity"}
					}
					if diff := cmp.Diff(want, rec.Header); diff != "" {
						t.Errorf("%s leg (-want +got)\n%s", rec.Leg, diff)
					}
				}
			})
		})
	}
}

func TestForwardedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		for i, tt := range []struct {
			from string
			in   []string
			want string
		}{
			{"10.0.0.7", nil, "10.0.0.7"},
			{"10.0.0.7", []string{"1.1.1.1"}, "1.1.1.1, 10.0.0.7"},
			{"fd00::7", []string{"1.1.1.1, 2.2.2.2", "3.3.3.3"}, "1.1.1.1, 2.2.2.2, 3.3.3.3, fd00::7"},
		} {
			conn, err := f.net.DialFrom(t.Context(), tt.from, "tcp", routerAddr)
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: router\r\nConnection: close\r\n")
			for _, v := range tt.in {
				io.WriteString(conn, "X-Forwarded-For: "+v+"\r\n")
			}
			io.WriteString(conn, "\r\n")
			io.Copy(io.Discard, conn)
			conn.Close()
			got := f.arrived()[i].Header["X-Forwarded-For"]
			if diff := cmp.Diff([]string{tt.want}, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		}
	})
}

// A client that never sends the body of a request that is refused does not keep
// its connection for ever.
func TestRefusedBodyIsNotWaitedFor(t *testing.T) {
	for _, path := range []string{"/sleep", "/health", chat} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{server: func(c *server.Config) { c.BodyTimeout = 20 * time.Second }})
				r := f.dial()
				r.say("GET " + path + " HTTP/1.1\r\nHost: router\r\nContent-Length: 10\r\n\r\n")
				if a := r.answer(); a.err != nil {
					t.Errorf("%+v", a)
				}
				began := time.Now()
				if !r.closed() || time.Since(began) > 26*time.Second {
					t.Errorf("closed after %v", time.Since(began))
				}
			})
		})
	}
}
