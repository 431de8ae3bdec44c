package enginesim_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/enginesim"
)

// faultCase is one fault met by one completion of 3 tokens.
type faultCase struct {
	name   string
	fault  enginesim.Fault
	stream bool
	check  func(t *testing.T, a answer)
}

func streamed(events int, done bool, more ...string) func(*testing.T, answer) {
	return func(t *testing.T, a answer) {
		if n := strings.Count(a.body, "data: {"); n != events || strings.HasSuffix(a.body, "data: [DONE]\n\n") != done {
			t.Errorf("%d events, want %d; done must be %v: %+v", n, events, done, a)
		}
		for _, s := range more {
			if !strings.Contains(a.body, s) {
				t.Errorf("no %s in %s", s, a.body)
			}
		}
	}
}

func broken(status int, part string) func(*testing.T, answer) {
	return func(t *testing.T, a answer) {
		if a.err == nil || a.status != status || !strings.Contains(a.body, part) {
			t.Errorf("want a broken answer with status %d and %q: %+v", status, part, a)
		}
	}
}

func both(list ...func(*testing.T, answer)) func(*testing.T, answer) {
	return func(t *testing.T, a answer) {
		for _, f := range list {
			f(t, a)
		}
	}
}

func TestFaults(t *testing.T) {
	whole := func(t *testing.T, a answer) {
		if a.err != nil || a.status != 200 || a.get(t, "choices", 0, "finish_reason") != "length" {
			t.Errorf("%+v", a)
		}
	}
	tests := []faultCase{
		{name: "status", fault: enginesim.Fault{Action: "status"}, check: func(t *testing.T, a answer) {
			if a.status != 503 || a.get(t, "error", "code") != 503 {
				t.Errorf("%+v", a)
			}
		}},
		{
			name: "status with all", stream: true,
			fault: enginesim.Fault{
				Action: "status", Status: 429, Body: "busy", Point: "headers",
				Header: map[string]string{"Retry-After": "3", "Content-Type": "text/plain"},
			},
			check: func(t *testing.T, a answer) {
				if a.status != 429 || a.body != "busy" || a.header.Get("Retry-After") != "3" || a.header.Get("Content-Type") != "text/plain" {
					t.Errorf("%+v", a)
				}
			},
		},
		{
			name: "error object with 200", fault: enginesim.Fault{Action: "status", Status: 200, Body: `{"error":{"message":"x"}}`},
			check: func(t *testing.T, a answer) {
				if a.status != 200 || a.get(t, "error", "message") != "x" {
					t.Errorf("%+v", a)
				}
			},
		},
		{name: "status before the body", fault: enginesim.Fault{Action: "status", Status: 413, Point: "connect"}, check: func(t *testing.T, a answer) {
			if a.status != 413 {
				t.Errorf("%+v", a)
			}
		}},
		{
			name:  "raw",
			fault: enginesim.Fault{Action: "raw", Body: "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 4\r\n\r\ndata: too long"},
			check: func(t *testing.T, a answer) {
				if a.body != "data" {
					t.Errorf("%+v", a)
				}
			},
		},
		{name: "reset connect", fault: enginesim.Fault{Action: "reset", Point: "connect"}, check: broken(0, "")},
		{name: "reset accept", fault: enginesim.Fault{Action: "reset"}, check: broken(0, "")},
		{name: "reset headers", fault: enginesim.Fault{Action: "reset", Point: "headers"}, stream: true, check: broken(0, "")},
		{name: "reset first", fault: enginesim.Fault{Action: "reset", Point: "first"}, stream: true, check: broken(200, "")},
		{name: "reset chunk", fault: enginesim.Fault{Action: "reset", Point: "chunk:2"}, stream: true, check: both(broken(200, "data: "), streamed(2, false))},
		{name: "cut headers", fault: enginesim.Fault{Action: "cut", Point: "headers"}, check: broken(0, "")},
		{name: "cut first", fault: enginesim.Fault{Action: "cut", Point: "first"}, check: broken(200, "")},
		{name: "cut body", fault: enginesim.Fault{Action: "cut", Point: "chunk:10"}, check: both(broken(200, `{"id":"cmp`), func(t *testing.T, a answer) {
			if len(a.body) != 10 {
				t.Errorf("%d bytes", len(a.body))
			}
		})},
		{name: "cut chunk", fault: enginesim.Fault{Action: "cut", Point: "chunk:1"}, stream: true, check: both(broken(200, "data: "), streamed(1, false))},
		{
			name: "cut mid event", fault: enginesim.Fault{Action: "cut", Point: "chunk:1", MidEvent: true}, stream: true,
			check: both(broken(200, "data: "), streamed(2, false), func(t *testing.T, a answer) {
				if strings.HasSuffix(a.body, "\n") {
					t.Errorf("%+v", a)
				}
			}),
		},
		{name: "cut before DONE", fault: enginesim.Fault{Action: "cut", Point: "chunk:3"}, stream: true, check: both(broken(200, `"length"`), streamed(3, false))},
		{name: "error_event accept", fault: enginesim.Fault{Action: "error_event"}, stream: true, check: streamed(1, true, `{"error": {"message": "Internal server error", `)},
		{name: "error_event headers", fault: enginesim.Fault{Action: "error_event", Point: "headers"}, stream: true, check: streamed(1, true, `"code": 500}}`)},
		{name: "error_event chunk", fault: enginesim.Fault{Action: "error_event", Point: "chunk:2"}, stream: true, check: streamed(3, true, `{"error": `)},
		{name: "error_event plain", fault: enginesim.Fault{Action: "error_event", Point: "chunk:2"}, check: func(t *testing.T, a answer) {
			if a.status != 500 || a.get(t, "error", "type") != "InternalServerError" {
				t.Errorf("%+v", a)
			}
		}},
		{name: "abort chunk", fault: enginesim.Fault{Action: "abort", Point: "chunk:2"}, stream: true, check: streamed(3, true, `"finish_reason":"abort"`)},
		{name: "abort first", fault: enginesim.Fault{Action: "abort", Point: "first"}, stream: true, check: streamed(1, true, `"text":"","logprobs":null,"finish_reason":"abort"`)},
		{name: "abort plain", fault: enginesim.Fault{Action: "abort", Point: "chunk:2"}, check: func(t *testing.T, a answer) {
			if a.status != 200 || a.get(t, "choices", 0, "finish_reason") != "abort" || len(a.text(t)) != 2 {
				t.Errorf("%+v", a)
			}
		}},
		{name: "error_finish", fault: enginesim.Fault{Action: "error_finish", Point: "first"}, check: func(t *testing.T, a answer) {
			if a.status != 200 || a.get(t, "choices", 0, "finish_reason") != "error" {
				t.Errorf("%+v", a)
			}
		}},
		{name: "bytes", fault: enginesim.Fault{Action: "bytes"}, stream: true, check: streamed(3, true)},
		{name: "bytes plain", fault: enginesim.Fault{Action: "bytes"}, check: whole},
		{name: "crlf", fault: enginesim.Fault{Action: "crlf"}, stream: true, check: func(t *testing.T, a answer) {
			if strings.Count(a.body, "\r\n\r\n") != 4 || strings.Count(a.body, "\n") != 8 {
				t.Errorf("%q", a.body)
			}
		}},
		{name: "gzip not accepted", fault: enginesim.Fault{Action: "gzip"}, check: whole},
		{name: "gzip", fault: enginesim.Fault{Action: "gzip", Force: true}, check: func(t *testing.T, a answer) {
			a.body = unzip(t, a)
			whole(t, a)
		}},
		{name: "gzip stream", fault: enginesim.Fault{Action: "gzip", Force: true}, stream: true, check: func(t *testing.T, a answer) {
			a.body = unzip(t, a)
			streamed(3, true)(t, a)
		}},
		{name: "other path", fault: enginesim.Fault{Action: "status", Path: "/v1/chat/completions"}, check: whole},
		{name: "other leg", fault: enginesim.Fault{Action: "status", Leg: "decode"}, check: whole},
		{name: "other id", fault: enginesim.Fault{Action: "status", RequestID: "zz"}, check: whole},
		{name: "this leg", fault: enginesim.Fault{Action: "status", Leg: "plain", RequestID: "i"}, check: func(t *testing.T, a answer) {
			if a.status != 503 {
				t.Errorf("%+v", a)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.start(enginesim.Config{})
				e.Fault(tt.fault)
				a := w.do(request{id: "id", body: string(object("prompt", "hello world, hello world", "max_tokens", 3, "stream", tt.stream))})
				tt.check(t, a)
				synctest.Wait()
				s := e.Stats()
				if s.Running != 0 || s.UsedBlocks != 0 {
					t.Errorf("%+v", s)
				}
				want := enginesim.OutcomeSuccess
				switch {
				case a.err != nil || tt.fault.Action == "raw":
					want = enginesim.OutcomeFault
				case a.status >= 400:
					want = enginesim.OutcomeError
				}
				if r := e.Requests()[0]; r.Outcome != want || r.End.IsZero() {
					t.Errorf("outcome %q, want %q", r.Outcome, want)
				}
			})
		})
	}
}

func unzip(t *testing.T, a answer) string {
	t.Helper()
	if a.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%+v", a.header)
	}
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFaultCount checks which requests a fault meets.
func TestFaultCount(t *testing.T) {
	for _, tt := range []struct {
		fault enginesim.Fault
		want  string // x for each failed request of ten
	}{
		{enginesim.Fault{}, "xxxxxxxxxx"},
		{enginesim.Fault{Times: 2}, "xx........"},
		{enginesim.Fault{Nth: 4}, "...xxxxxxx"},
		{enginesim.Fault{Nth: 4, Times: 1}, "...x......"},
		{enginesim.Fault{Every: 3}, "x..x..x..x"},
		{enginesim.Fault{Every: 3, Nth: 2, Times: 2}, ".x..x....."},
		{enginesim.Fault{RequestID: "r7"}, ".......x.."},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			e := w.start(enginesim.Config{})
			tt.fault.Action = "status"
			remove := e.Fault(tt.fault)
			var got strings.Builder
			for i := range 10 {
				if w.do(comp(fmt.Sprint("r", i), "hi", 1)).status == 503 {
					got.WriteByte('x')
				} else {
					got.WriteByte('.')
				}
			}
			if got.String() != tt.want {
				t.Errorf("%+v: %s, want %s", tt.fault, got.String(), tt.want)
			}
			remove()
			if a := w.do(comp("r7-", "hi", 1)); a.status != 200 {
				t.Errorf("after remove: %+v", a)
			}
		})
	}
}

// TestFaultsTogether checks that faults of different points act on one request.
func TestFaultsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		for _, f := range []enginesim.Fault{
			{Action: "delay", Delay: time.Second},
			{Action: "status"}, // the same point: not taken
			{Action: "delay", Delay: time.Second, Point: "headers"},
			{Action: "delay", Delay: time.Second, Point: "chunk:1"},
			{Action: "crlf"},
			{Action: "cut", Point: "chunk:2"},
		} {
			e.Fault(f)
		}
		start := time.Now()
		a := w.do(request{body: `{"prompt":"hi","stream":true}`})
		if got := time.Since(start); got != 3*time.Second || a.err == nil || strings.Count(a.body, "\r\n\r\n") != 2 {
			t.Errorf("%v %+v", got, a)
		}
		if diff := cmp.Diff([]string{"delay", "delay", "delay", "crlf", "cut"}, e.Requests()[0].Faults); diff != "" {
			t.Error(diff)
		}
	})
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		e.Fault(enginesim.Fault{Action: "gate", Gate: "g", Point: "chunk:1", Leg: "plain"})
		q := request{id: "1", body: `{"prompt":"hi","stream":true,"max_tokens":2}`}
		ch := w.later(t.Context(), q)
		if err := e.AwaitGate(t.Context(), "g", 1); err != nil {
			t.Fatal(err)
		}
		if r := e.Requests()[0]; r.Events != 1 || e.AtGate("g") != 1 || e.Stats().Gates["g"] != 1 {
			t.Errorf("%+v", r)
		}
		e.Open("g")
		streamed(2, true)(t, <-ch)
		q.id = "2"
		streamed(2, true)(t, w.do(q)) // it stays open
		e.Gate("g")
		ctx, cancel := context.WithCancel(t.Context())
		q.id = "3"
		ch = w.later(ctx, q)
		synctest.Wait()
		if e.AtGate("g") != 1 {
			t.Error("the gate does not close")
		}
		cancel()
		<-ch
		synctest.Wait()
		if e.AtGate("g") != 0 || e.Stats().Running != 0 {
			t.Error("the client left, its request did not")
		}
		if err := e.AwaitGate(ctx, "g", 1); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestProbeFaults switches health and the like.
func TestProbeFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		for _, path := range []string{"/health", "/v1/models", "/metrics"} {
			get := request{method: "GET", path: path}
			remove := e.Fault(enginesim.Fault{Path: path, Action: "status"})
			if a := w.do(get); a.status != 503 {
				t.Errorf("%s: %+v", path, a)
			}
			remove()
			remove = e.Fault(enginesim.Fault{Path: path, Action: "hang"})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if a := w.doContext(ctx, get); !errors.Is(a.err, context.DeadlineExceeded) {
				t.Errorf("%s: %+v", path, a)
			}
			cancel()
			remove()
			if a := w.do(get); a.status != 200 {
				t.Errorf("%s: %+v", path, a)
			}
		}
		e.Fault(enginesim.Fault{Path: "*", Action: "error_event"})
		if a := w.do(request{method: "GET", path: "/version"}); a.status != 500 {
			t.Errorf("%+v", a)
		}
	})
}

func TestBadFaults(t *testing.T) {
	e, err := enginesim.New(enginesim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []enginesim.Fault{
		{},
		{Action: "explode"},
		{Action: "hang", Point: "nowhere"},
		{Action: "hang", Point: "chunk:-1"},
		{Action: "status", Point: "first"},
		{Action: "gate"},
		{Action: "hang", Point: "connect", Leg: "plain"},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v passes", f)
				}
			}()
			e.Fault(f)
		}()
	}
}

// TestScriptOverHTTP drives an engine as another process would, over TCP.
func TestScriptOverHTTP(t *testing.T) {
	e, err := enginesim.New(enginesim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = e.NewServer()
	srv.Start()
	defer srv.Close()
	defer e.Close()
	client := srv.Client()
	defer client.CloseIdleConnections()
	do := func(method, path, body string) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), err
	}
	want := func(status int, body string) func(int, string, error) {
		return func(s int, b string, err error) {
			t.Helper()
			if s != status || (body != "" && b != body) || err != nil {
				t.Errorf("%d %q %v, want %d %q", s, b, err, status, body)
			}
		}
	}
	const hi = `{"prompt":"hi","max_tokens":2,"stream":true}`
	want(200, `{"id":1}`)(do("POST", "/sim/faults", `{"action":"delay","delay":"1ms","path":"/health"}`))
	want(200, "")(do("GET", "/health", ""))
	want(204, "")(do("DELETE", "/sim/faults/1", ""))
	want(404, `{"error":"no such fault"}`)(do("DELETE", "/sim/faults/1", ""))
	want(400, "")(do("POST", "/sim/faults", `{"action":"x"}`))
	want(400, "")(do("POST", "/sim/faults", `{"action":"delay","delay":"1"}`))
	want(404, "")(do("GET", "/sim/else", ""))
	want(200, `{"ok":false,"reason":"Not Found"}`)(do("POST", "/sim/kv/collect", `{}`))

	want(200, `{"id":2}`)(do("POST", "/sim/faults", `{"action":"reset","point":"chunk:1","times":1}`))
	if _, _, err := do("POST", "/v1/completions", hi); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("no reset: %v", err)
	}
	want(200, `{"id":3}`)(do("POST", "/sim/faults", `{"action":"gate","gate":"g","point":"headers"}`))
	over := make(chan error, 1)
	go func() {
		status, _, err := do("POST", "/v1/completions", hi)
		if status != 200 {
			err = errors.Join(err, fmt.Errorf("status %d", status))
		}
		over <- err
	}()
	if err := e.AwaitGate(t.Context(), "g", 1); err != nil {
		t.Fatal(err)
	}
	want(204, "")(do("POST", "/sim/gates/g/open", ""))
	if err := <-over; err != nil {
		t.Error(err)
	}
	want(204, "")(do("POST", "/sim/gates/g/close", ""))

	_, text, _ := do("GET", "/sim/stats", "")
	var s enginesim.Stats
	if err := json.Unmarshal([]byte(text), &s); err != nil || s.Paths["/v1/completions"] != 2 || s.Connections < 1 ||
		s.Outcomes[enginesim.OutcomeFault] != 1 {
		t.Errorf("%v %s", err, text)
	}
	_, text, _ = do("GET", "/sim/requests", "")
	var list []enginesim.Record
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 3 {
		t.Fatalf("%v %s", err, text)
	}
	if r := list[2]; r.Body != hi || r.BodyLen != len(hi) || len(r.BodySHA256) != 64 || r.Leg != enginesim.LegPlain ||
		r.Path != "/v1/completions" || r.Status != 200 || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v", r)
	}
}

func TestFaultJSON(t *testing.T) {
	f := enginesim.Fault{Path: "/p", Action: "delay", Delay: 1500 * ms, Header: map[string]string{"A": "b"}}
	b, err := json.Marshal(f)
	if err != nil || !bytes.Contains(b, []byte(`"delay":"1.5s"`)) {
		t.Fatalf("%s %v", b, err)
	}
	var g enginesim.Fault
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f, g); diff != "" {
		t.Error(diff)
	}
}

// TestKeepAlive checks that an idle connection ends after 5 s.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		tr := &http.Transport{DialContext: w.net.dial}
		defer tr.CloseIdleConnections()
		w.client = &http.Client{Transport: tr}
		w.do(comp("1", "a", 1))
		time.Sleep(5*time.Second - ms)
		synctest.Wait()
		if s := e.Stats(); s.Connections != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * ms)
		synctest.Wait()
		if s := e.Stats(); s.Connections != 0 || s.ConnectionsTotal != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLogBounds checks that the log does not grow without end.
func TestLogBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		h := e.Handler()
		for i := range 1500 {
			body := strings.NewReader(`{"prompt":"` + strings.Repeat("x", i) + `","max_tokens":1}`)
			req := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/completions", body)
			req.Header.Set("Content-Type", "application/json")
			h.ServeHTTP(httptest.NewRecorder(), req)
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/health", nil))
		}
		list := e.Requests()
		bodies := 0
		for _, r := range list {
			if r.Body != "" {
				bodies++
			}
		}
		if len(list) > 1300 || len(list) < 900 || bodies != 64 || list[len(list)-1].Number != 3000 {
			t.Errorf("%d records, %d bodies", len(list), bodies)
		}
	})
}
