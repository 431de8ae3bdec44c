package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/server"
	"github.com/baton-llm/baton/internal/worker"
)

func TestRequestIDs(t *testing.T) {
	long := strings.Repeat("x", 128)
	for _, tt := range []struct {
		name   string
		header []string
		want   string // "" for a new one
	}{
		{"none", nil, ""},
		{"the first header", []string{"X-Request-Id", "a-1_B.2:/=+~", "X-Correlation-Id", "b"}, "a-1_B.2:/=+~"},
		{"the second", []string{"X-Correlation-Id", "b", "X-Trace-Id", "c"}, "b"},
		{"the third", []string{"Request-Id", "d", "X-Trace-Id", "c"}, "c"},
		{"the fourth", []string{"Request-Id", "d"}, "d"},
		{"an empty one does not count", []string{"X-Request-Id", "", "Request-Id", "d"}, "d"},
		{"as long as may be", []string{"X-Request-Id", long}, long},
		{"too long", []string{"X-Request-Id", long + "x", "Request-Id", "d"}, ""},
		{"addresses in it", []string{"X-Request-Id", "cmpl-___prefill_addr_h:1___decode_addr_h:2_x"}, ""},
		{"two underscores", []string{"X-Request-Id", "a__b__c"}, "a__b__c"},
		{"three at the end", []string{"X-Request-Id", "a___"}, ""},
		{"a blank", []string{"X-Request-Id", "a b"}, ""},
		{"quotes", []string{"X-Request-Id", `a"b`}, ""},
		{"not ASCII", []string{"X-Request-Id", "ä"}, ""},
		{"markup", []string{"X-Request-Id", "<b>"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{})
				a := f.post("/v1/completions", comp, tt.header...)
				id := a.header.Get("X-Request-Id")
				if tt.want != "" && id != tt.want {
					t.Errorf("id %q, want %q", id, tt.want)
				}
				if tt.want == "" && !regexp.MustCompile(`^[a-z0-9]{26}$`).MatchString(id) {
					t.Errorf("id %q, want a new one", id)
				}
				arrived := f.arrived()
				if len(arrived) != 1 || arrived[0].Header.Get("X-Request-Id") != id {
					t.Errorf("the worker got %v", arrived)
				}
				for _, name := range []string{"X-Correlation-Id", "X-Trace-Id", "Request-Id"} {
					if arrived[0].Header.Get(name) != "" {
						t.Errorf("the worker got %s too", name)
					}
				}
				if line := f.access(); line["request_id"] != id {
					t.Errorf("%v", line)
				}
			})
		})
	}
}

func TestRequestIDHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{server: func(c *server.Config) { c.RequestIDHeaders = []string{"X-My-Id"} }})
		if a := f.post("/v1/completions", comp, "X-My-Id", "mine", "X-Request-Id", "other"); a.header.Get("X-Request-Id") != "mine" {
			t.Errorf("%+v", a)
		}
		if got := f.arrived()[0].Header["X-Request-Id"]; len(got) != 1 || got[0] != "mine" {
			t.Errorf("the worker got %q", got)
		}
	})
}

// shape returns the keys of an access line, with what is the same in each run.
func shape(line map[string]any) map[string]any {
	line = maps.Clone(line)
	for _, key := range []string{"time", "request_id", "bytes_out"} {
		delete(line, key)
	}
	return line
}

func TestAccessLine(t *testing.T) {
	slow := enginesim.Config{PrefillBase: time.Second, DecodePerToken: time.Second}
	ms := func(d time.Duration) float64 { return float64(d) }
	t.Run("plain", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, options{engines: []enginesim.Config{slow}})
			f.post("/v1/completions", strings.Replace(comp, "{", `{"stream":true,`, 1))
			want := map[string]any{
				"level": "INFO", "msg": "request", "component": "server",
				"method": "POST", "route": "completions", "status": 200.0, "model": "m", "stream": true,
				"bytes_in": float64(len(comp) + len(`"stream":true,`)), "duration": ms(4 * time.Second), "first_byte": ms(time.Second),
				"regular_leg": map[string]any{
					"worker": "http://regular-0:8000#1", "attempt": 1.0, "reason": "load", "status": 200.0,
					"duration": ms(4 * time.Second), "first_byte": ms(time.Second),
				},
			}
			if diff := cmp.Diff(want, shape(f.access())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	})
	t.Run("paired", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			engines := pdEngines()
			engines[0].PrefillBase, engines[1].DecodePerToken = 2*time.Second, time.Second
			f := start(t, options{engines: engines})
			f.post("/v1/completions", comp)
			want := map[string]any{
				"level": "INFO", "msg": "request", "component": "server",
				"method": "POST", "route": "completions", "status": 200.0, "model": "m",
				"bytes_in": float64(len(comp)), "duration": ms(6 * time.Second), "first_byte": ms(6 * time.Second),
				"prefill_leg": map[string]any{
					"worker": "http://prefill-0:8000#1", "attempt": 1.0, "reason": "load", "status": 200.0,
					"duration": ms(2 * time.Second), "first_byte": ms(2 * time.Second),
				},
				"decode_leg": map[string]any{
					"worker": "http://decode-1:8000#1", "attempt": 2.0, "reason": "load", "status": 200.0,
					// Its first token takes a step, as all others do.
					"duration": ms(4 * time.Second), "first_byte": ms(4 * time.Second),
				},
			}
			if diff := cmp.Diff(want, shape(f.access())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	})
	t.Run("not served", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, options{})
			f.do(f.request("MEDDLE"+strings.Repeat("X", 1000), "/sleep", ""))
			want := map[string]any{
				"level": "INFO", "msg": "request", "component": "server",
				"method": "MEDDLE" + strings.Repeat("X", 122) + "...", "route": "unserved", "status": 404.0, "code": "path_not_served",
				"bytes_in": 0.0, "duration": 0.0,
			}
			if diff := cmp.Diff(want, shape(f.access())); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	})
}

// Every leg has a name of its own in the line, whatever was tried again.
func TestAccessLineOfRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := append(pdEngines(), pdEngines()...)
		f := start(t, options{engines: engines})
		f.engines[0].Fault(enginesim.Fault{Leg: enginesim.LegPrefill, Action: "status", Status: 500, Times: 1})
		f.engines[2].Fault(enginesim.Fault{Leg: enginesim.LegPrefill, Action: "delay", Delay: time.Second, Times: 1})
		f.engines[1].Fault(enginesim.Fault{Leg: enginesim.LegDecode, Action: "status", Status: 503, Times: 1})
		if a := f.post("/v1/completions", comp); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		legs := map[string]any{}
		for key, v := range f.access() {
			if leg, ok := v.(map[string]any); ok {
				legs[key] = leg["status"]
			}
		}
		want := map[string]any{"prefill_leg": 500.0, "prefill_leg_2": 200.0, "decode_leg": 503.0, "decode_leg_2": 200.0}
		if diff := cmp.Diff(want, legs); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if n := strings.Count(f.log.String(), `"decode_leg":`); n != 1 {
			t.Errorf("decode_leg stands %d times in the line", n)
		}
	})
}

// Case 6.2: what a client wrote and what a worker answered stay out of the log,
// and so do keys; at any level and in any format.
func TestLogHoldsNoSecrets(t *testing.T) {
	const secret = "TOPSECRET"
	handlers := map[string]func(io.Writer) slog.Handler{
		"json": func(w io.Writer) slog.Handler {
			return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})
		},
		"text": func(w io.Writer) slog.Handler {
			return slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})
		},
	}
	for format, handler := range handlers {
		for kind, engines := range map[string][]enginesim.Config{"plain": {{}}, "paired": pdEngines()} {
			t.Run(format+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := start(t, options{engines: engines, handler: handler, soiled: true})
					ask := func(path, body string) {
						r := f.request(http.MethodPost, path+"?key="+secret, body,
							"Authorization", "Bearer "+secret, "X-Api-Key", secret, "X-Tenant", secret, "Cookie", "s="+secret)
						f.do(r)
					}
					lines := 0
					each := func() {
						ask(chat, chatBody(secret))
						ask(chat, strings.Replace(chatBody(secret), "{", `{"stream":true,`, 1))
						lines += 2
					}
					each()
					for _, body := range []string{`{"prompt":"` + secret + `"`, secret, `{"model":["` + secret + `"]}`, `{"model":"m","prompt":"` + secret + `","echo":true}`} {
						ask("/v1/completions", body)
						lines++
					}
					ask("/"+secret, "{}")
					ask("/v1/"+secret, `{"prompt":"`+secret+`"}`)
					lines += 2
					for _, fault := range []enginesim.Fault{
						{Action: "raw", Body: secret + "\r\n\r\n"},
						{Action: "raw", Body: "HTTP/1.1 " + secret + "\r\n\r\n"},
						{Action: "raw", Body: "HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n"},
						{Action: "raw", Body: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + secret[:3]},
						{Action: "raw", Body: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + secret + "\r\n"},
						{Action: "raw", Body: "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + `{"kv_transfer_params":"` + secret + `"}      `},
						{Action: "raw", Body: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + secret},
						{Action: "status", Status: 500, Body: `{"error":{"message":"` + secret + `"}}`},
						{Action: "status", Status: 400, Body: secret, Header: map[string]string{"X-Secret": secret}},
						{Action: "reset", Point: "chunk:1", MidEvent: true},
						{Action: "error_event", Point: "first"},
						{Action: "reset"},
					} {
						for _, e := range f.engines {
							defer e.Fault(fault)()
						}
						each()
						f.settle()
						time.Sleep(10 * time.Second) // until those that were refused are well again
					}
					f.net.Refuse(f.addrs[0])
					each()
					time.Sleep(time.Minute)
					log := f.log.String()
					if i := strings.Index(log, secret); i >= 0 {
						t.Errorf("in the log: %s", log[max(0, i-200):min(len(log), i+100)])
					}
					message := `"msg":"request"`
					if format == "text" {
						message = "msg=request "
					}
					if got := strings.Count(log, message); got != lines {
						t.Errorf("%d access lines for %d requests", got, lines)
					}
				})
			})
		}
	}
}

// Case 6.16: a stream that breaks is no success, although its head said so, and
// does not look complete.
func TestBrokenStream(t *testing.T) {
	for name, engines := range map[string][]enginesim.Config{"plain": {{}}, "paired": pdEngines()} {
		for _, action := range []string{"cut", "reset"} {
			t.Run(name+" "+action, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := start(t, options{engines: engines})
					last := f.engines[len(f.engines)-1]
					last.Fault(enginesim.Fault{Point: "chunk:2", Action: action})
					a := f.post("/v1/completions", strings.Replace(comp, "{", `{"stream":true,`, 1))
					if a.status != 200 || !errors.Is(a.err, io.ErrUnexpectedEOF) {
						t.Errorf("%+v", a)
					}
					if !strings.Contains(a.body, `"code":"stream_broken"`) || strings.Contains(a.body, "[DONE]") {
						t.Errorf("body %s", a.body)
					}
					if line := f.access(); line["status"] != 502.0 || line["code"] != "stream_broken" {
						t.Errorf("%v", line)
					}
					if f.counted("completions", 502) != "1" || f.counted("completions", 200) != "0" {
						t.Error(f.scrape())
					}
				})
			})
		}
	}
}

// Cases 4.4, 4.5, 4.13 and 6.16: a client that leaves is 499, seen by the worker
// at once, and no error.
func TestClientLeaves(t *testing.T) {
	for name, engines := range map[string][]enginesim.Config{"plain": {{}}, "paired": pdEngines()} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream %t", name, stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					engines := slices.Clone(engines)
					engines[len(engines)-1].DecodePerToken = 10 * time.Second
					f := start(t, options{engines: engines})
					body := comp
					if stream {
						body = strings.Replace(comp, "{", `{"stream":true,`, 1)
					}
					const many = 20
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					for range many {
						wg.Go(func() {
							if a := f.do(f.request("POST", "/v1/completions", body).WithContext(ctx)); a.err == nil {
								t.Errorf("%+v", a)
							}
						})
					}
					time.Sleep(5 * time.Second)
					cancel()
					wg.Wait()
					left := time.Now()
					synctest.Wait()
					for _, r := range f.arrived() {
						if r.Leg != enginesim.LegPrefill && (r.Outcome != enginesim.OutcomeAbort || r.End.Sub(left) > 200*time.Millisecond) {
							t.Errorf("%s: %s after %v", r.Leg, r.Outcome, r.End.Sub(left))
						}
					}
					if got := f.counted("completions", 499); got != "20" {
						t.Errorf("counted %s", got)
					}
					if lines := f.lines("request"); len(lines) != many || lines[0]["status"] != 499.0 {
						t.Errorf("%d lines: %v", len(lines), lines)
					}
					if log := f.log.String(); strings.Contains(log, `"level":"WARN"`) || strings.Contains(log, `"level":"ERROR"`) {
						t.Error(log)
					}
					f.settle()
				})
			})
		}
	}
}

// panicky is a policy and a carrier that panic.
type panicky struct {
	policy.Policy
	exchange.Carrier
}

func (panicky) Prepare(*policy.Request, *worker.Snapshot) policy.Choice { panic("policy") }

func (p panicky) Send(ctx context.Context, h exchange.Head, body []byte) (*exchange.Answer, error) {
	a, err := p.Carrier.Send(ctx, h, body)
	if err == nil {
		a.Body = &panickyBody{ReadCloser: a.Body}
	}
	return a, err
}

type panickyBody struct {
	io.ReadCloser
	reads int
}

func (b *panickyBody) Read(p []byte) (int, error) {
	if b.reads++; b.reads > 1 {
		panic("body")
	}
	return b.ReadCloser.Read(p)
}

// A panic is an error of ours, whenever it comes, and nothing is left of the
// request (invariant L9).
func TestPanic(t *testing.T) {
	t.Run("before the head", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, options{policy: panicky{}})
			a := f.post("/v1/completions", comp)
			if a.status != 500 || a.code() != "internal" || strings.Contains(a.body, "policy") {
				t.Errorf("%+v", a)
			}
			wantErrorObject(t, "/v1/completions", a)
			wantPanicLogged(t, f)
		})
	})
	t.Run("within the body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, options{
				engines: []enginesim.Config{{DecodePerToken: time.Second}},
				carrier: func(c exchange.Carrier) exchange.Carrier { return panicky{Carrier: c} },
			})
			a := f.post("/v1/completions", strings.Replace(comp, "{", `{"stream":true,`, 1))
			if a.status != 200 || !errors.Is(a.err, io.ErrUnexpectedEOF) {
				t.Errorf("%+v", a)
			}
			wantPanicLogged(t, f)
		})
	})
}

func wantPanicLogged(t *testing.T, f *fleet) {
	t.Helper()
	if line := f.access(); line["status"] != 500.0 || line["code"] != "internal" {
		t.Errorf("%v", line)
	}
	if got := f.counted("completions", 500); got != "1" {
		t.Errorf("counted %s", got)
	}
	lines := f.lines("panic while serving")
	if len(lines) != 1 || lines[0]["level"] != "ERROR" || !strings.Contains(fmt.Sprint(lines[0]["stack"]), "dispatch") {
		t.Errorf("%v", lines)
	}
}

// An answer in one piece that breaks off, or stalls, before its first byte is told
// as an error, although its head said 200: nothing of it was passed on.
func TestBrokenBeforeTheFirstByte(t *testing.T) {
	for name, engines := range map[string][]enginesim.Config{"worker": {{}}, "decode": pdEngines()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{engines: engines})
				last := f.engines[len(f.engines)-1]
				undo := last.Fault(enginesim.Fault{Action: "raw", Body: "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"})
				if a := f.post("/v1/completions", comp); a.status != 502 || a.code() != name+"_failed" || a.err != nil {
					t.Errorf("%+v", a)
				}
				undo()
				defer last.Fault(enginesim.Fault{Point: "first", Action: "hang"})()
				if a := f.post("/v1/completions", comp); a.status != 504 || a.code() != "first_byte_timeout" || a.err != nil {
					t.Errorf("%+v", a)
				}
				if f.counted("completions", 200) != "0" || f.counted("completions", 502) != "1" || f.counted("completions", 504) != "1" {
					t.Error(f.scrape())
				}
				time.Sleep(time.Minute) // hand-offs of failed requests expire
			})
		})
	}
}
