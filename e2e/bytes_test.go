//go:build e2e

package e2e_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// oddBodies are requests whose bytes a router that reads and writes JSON would
// change. In each, HERE is where a member is added that was not there.
var oddBodies = map[string]string{
	"order_and_space":  "\n{ \"zulu\" :1 ,\t\"messages\":[ {\"role\" : \"user\",\"content\":\"hi\"} ],\r\n  \"model\":\"m\",\"max_tokens\": 4,\"alpha\":[ ],\"mike\":{ }HERE }\n ",
	"big_numbers":      `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4,"id":9007199254740993,"huge":123456789012345678901234567890,"f":1.0,"e":1E+2,"neg":-0,"tiny":1e-400HERE}`,
	"escapes":          `{"model":"m","messages":[{"role":"user","content":"\u0068\u0069 \ud83d\ude00 \/ <&> \u2028 é 日本"}],"max_tokens":4,"k\u00e9y":"\u00e9\ud800"HERE}`,
	"duplicates":       `{"model":"absent","messages":[],"x":1,"model":"m","x":2,"messages":[{"role":"user","content":"last counts"}],"max_tokens":99,"max_tokens":4,"x":3HERE}`,
	"escaped_names":    `{"mod\u0065l":"m","messages":[{"role":"user","content":"hi"}],"max_tok\u0065ns":4,"str\u0065am":falseHERE}`,
	"unknown_fields":   `{"model":"m","vllm_xargs":{"a":[1,2,{"b":null}]},"messages":[{"role":"user","content":"hi","future":{"kv_transfer_params":{"x":1}}}],"max_tokens":4,"metadata":{"stream":true,"model":"n"}HERE}`,
	"not_a_number":     `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":4,"a":NaN,"b":[Infinity,-Infinity]HERE}`,
	"long":             `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"` + strings.Repeat("0123456789abcde ", 1500) + `"}]HERE}`,
	"nothing_but_must": `{"messages":[{"role":"user","content":"hi"}],"max_tokens":4HERE}`,
}

// TestRequestBytes wants a request to arrive byte for byte, but for the members
// that a leg is about.
func TestRequestBytes(t *testing.T) {
	t.Parallel()
	plain := newFleet(t, fleetConfig{regular: 1})
	pair := newFleet(t, fleetConfig{prefill: 1, decode: 1})
	for name, template := range oddBodies {
		t.Run(name, func(t *testing.T) {
			body := []byte(strings.Replace(template, "HERE", "", 1))
			a := plain.client.post(chat.path, body)
			r, err := plain.regular[0].record(a.id)
			if err != nil || a.status != http.StatusOK {
				t.Fatalf("%v: %v", err, a)
			}
			if r.BodySHA256 != hash(body) {
				t.Errorf("plain: the engine got %q, want %q", r.Body, body)
			}

			a = pair.client.post(chat.path, body)
			r, err = pair.decode[0].record(a.id)
			if err != nil || a.status != http.StatusOK {
				t.Fatalf("%v: %v", err, a)
			}
			before, after, _ := strings.Cut(template, "HERE")
			params := between(t, r.Body, before+`,"kv_transfer_params":`, after)
			if want := before + `,"kv_transfer_params":` + params + after; r.BodySHA256 != hash([]byte(want)) {
				t.Errorf("decode got %q, want %q", r.Body, want)
			}
			p, err := pair.prefill[0].record(a.id)
			if err != nil {
				t.Fatal(err)
			}
			checkPrefillBody(t, template, p.Body)
		})
	}
}

// between returns the one JSON object that stands between two texts.
func between(t *testing.T, s, before, after string) string {
	t.Helper()
	rest, ok := strings.CutPrefix(s, before)
	inner, ok2 := strings.CutSuffix(rest, after)
	if !ok || !ok2 || !json.Valid([]byte(inner)) || !strings.HasPrefix(inner, "{") {
		t.Fatalf("%q is not an object between %q and %q", s, before, after)
	}
	return inner
}

// checkPrefillBody wants the prefill leg to be the request with one token as its
// limit and the question for a hand-off.
func checkPrefillBody(t *testing.T, template, got string) {
	t.Helper()
	want := strings.NewReplacer(
		`"max_tokens":99,"max_tokens":4`, `"max_tokens":1`, // a name that is set stands once
		`"max_tokens":4`, `"max_tokens":1`,
		`"max_tokens": 4`, `"max_tokens": 1`,
		`"max_tok\u0065ns":4`, `"max_tok\u0065ns":1`,
	).Replace(template)
	before, after, _ := strings.Cut(want, "HERE")
	between(t, got, before+`,"kv_transfer_params":`, after)
}

// TestSplice wants whatever a client says of a hand-off replaced, in place, and
// what prefill said kept to the last digit.
func TestSplice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1})
	f.prefill[0].fault(enginesim.Fault{Action: "extra_kv"})
	for _, test := range []struct{ name, path, before, after string }{
		{
			"client's own", chat.path,
			`{"kv_transfer_params":`, `,"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3}`,
		},
		{
			"twice", chat.path,
			`{"model":"m","kv_transfer_params":`, `,"messages":[{"role":"user","content":"hi"}],"max_tokens":3}`,
		},
		{
			"completion", completions.path,
			`{"model":"m","prompt":"hi","n":2,"stream":true,"stream_options":{"include_usage":true},"min_tokens":2,"max_tokens":3,"kv_transfer_params":`, `}`,
		},
	} {
		own := `{"do_remote_prefill":true,"remote_host":"10.1.2.3","remote_port":1}`
		sent := test.before + own + test.after
		if test.name == "twice" {
			sent = strings.Replace(sent, `,"messages"`, `,"kv_transfer_params":null,"messages"`, 1)
		}
		if test.name == "completion" {
			sent = strings.Replace(sent, `,"kv_transfer_params":`+own, "", 1)
		}
		a := f.client.post(test.path, []byte(sent))
		r, err := f.decode[0].record(a.id)
		if err != nil || a.status != http.StatusOK {
			t.Fatalf("%s: %v: %v", test.name, err, a)
		}
		params := between(t, r.Body, test.before, test.after)
		for _, part := range []string{
			`"future_id":9007199254740993`, `"future_float":1.0`, `"future_big":123456789012345678901234567890`,
			`"future":{"a":1,"list":[true,null,{"c":"\u00e9<&>"}],"empty":{}}`, `"remote_host":"127.0.0.1"`,
		} {
			if !strings.Contains(params, part) {
				t.Errorf("%s: %s is not in %s", test.name, part, params)
			}
		}
		if strings.Contains(r.Body, "10.1.2.3") {
			t.Errorf("%s: a client said where to fetch from: %s", test.name, r.Body)
		}
	}
}

// oddWorker is a worker that answers with whatever a test wants.
type oddWorker struct {
	*httptest.Server

	answer atomic.Pointer[http.HandlerFunc]
}

func (w *oddWorker) set(answer http.HandlerFunc) { w.answer.Store(&answer) }

func newOddWorker(t *testing.T) *oddWorker {
	w := &oddWorker{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m"}]}`)
	})
	mux.HandleFunc("POST /", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		(*w.answer.Load())(rw, r)
	})
	w.Server = httptest.NewServer(mux)
	t.Cleanup(w.Close)
	return w
}

// TestResponseBytes wants answers to come through as they are.
func TestResponseBytes(t *testing.T) {
	t.Parallel()
	odd := newOddWorker(t)
	r := startRouter(t, "--worker-urls", odd.URL)
	t.Cleanup(r.end)
	c := newClient(t, r.url)
	t.Cleanup(c.close)
	await(t, patience, "ready", func() error { return r.ready(1) })

	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(`{"choices":[]}`))
	z.Close()
	type headers = map[string][]string
	for _, test := range []struct {
		name   string
		status int
		header headers
		parts  []string // flushed one by one
		sized  bool     // with Content-Length
	}{
		{"all_bytes", 200, headers{"Content-Type": {"application/octet-stream"}}, []string{string(every)}, true},
		{"all_bytes_chunked", 200, headers{"Content-Type": {"application/json"}}, []string{string(every[:100]), string(every[100:])}, false},
		{"no_type", 200, headers{"Content-Type": nil}, []string{"<html>not guessed"}, true},
		{"own_status", 299, headers{"Content-Type": {"text/plain"}, "X-Odd": {"a", "b"}, "Set-Cookie": {"a=1", "b=2"}}, []string{"x"}, true},
		{"no_content", 204, headers{"X-Odd": {"a"}}, nil, false},
		{"redirect", 307, headers{"Location": {"http://elsewhere.example/"}}, []string{""}, true},
		{"loading", 503, headers{"Content-Type": {"text/plain"}, "Retry-After": {"7"}}, []string{"loading"}, true},
		{"html_error", 502, headers{"Content-Type": {"text/html"}}, []string{"<h1>Bad Gateway</h1>"}, true},
		{"busy", 429, headers{"Content-Type": {"application/json"}, "Retry-After": {"3"}}, []string{`{"error":{"message":"busy"}}`}, true},
		{"gzip", 200, headers{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, []string{zipped.String()}, true},
		{"odd_stream", 200, headers{"Content-Type": {"text/event-stream"}}, []string{"da", "ta: {\"a\"", ":1}\r\n\r\n: comment\n", "data: a\ndata: b\n\ndata: no end"}, false},
		{"ndjson", 200, headers{"Content-Type": {"application/x-ndjson"}}, []string{"{}\n", "{}\n"}, false},
		{"huge", 200, headers{"Content-Type": {"application/json"}}, []string{strings.Repeat(string(every), 40_000)}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			whole := strings.Join(test.parts, "")
			odd.set(func(w http.ResponseWriter, _ *http.Request) {
				h := w.Header()
				maps.Copy(h, test.header)
				h["Connection"] = []string{"X-Hop"}
				h["X-Hop"], h["Keep-Alive"] = []string{"1"}, []string{"timeout=5"}
				if test.sized {
					h.Set("Content-Length", strconv.Itoa(len(whole)))
				}
				w.WriteHeader(test.status)
				for _, part := range test.parts {
					_, _ = io.WriteString(w, part)
					w.(http.Flusher).Flush()
				}
			})
			a := c.post("/v1/chat/completions", []byte(`{"model":"m","messages":[]}`), header{"Accept-Encoding": "gzip"})
			if a.err != nil || a.status != test.status || string(a.body) != whole {
				t.Errorf("got %d bytes, want %d as the worker sent them: %v", len(a.body), len(whole), a)
			}
			for name, want := range test.header {
				if got := a.header[name]; strings.Join(got, "|") != strings.Join(want, "|") {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			for _, name := range []string{"X-Hop", "Keep-Alive", "Connection"} {
				if got := a.header[name]; got != nil {
					t.Errorf("%s: %q was passed on", name, got)
				}
			}
			if got := a.header.Get("Content-Length"); test.sized && got != strconv.Itoa(len(whole)) {
				t.Errorf("Content-Length is %q, want %d", got, len(whole))
			}
		})
	}
	t.Run("too_short", func(t *testing.T) {
		odd.set(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, strings.Repeat("x", 500))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		a := c.post("/v1/chat/completions", []byte(`{"model":"m","messages":[]}`))
		if !errors.Is(a.err, io.ErrUnexpectedEOF) || len(a.body) != 500 {
			t.Errorf("half of a body looks like a whole one: %v", a)
		}
	})
}

// TestEncodings wants coded answers passed on coded, by either kind of fleet,
// and none where the router has to read.
func TestEncodings(t *testing.T) {
	t.Parallel()
	for _, cfg := range []fleetConfig{{regular: 1}, {prefill: 1, decode: 1}} {
		f := newFleet(t, cfg)
		for _, e := range f.engines() {
			e.fault(enginesim.Fault{Action: "gzip"})
		}
		for _, stream := range []bool{false, true} {
			q := question{api: chat, prompt: "Squeeze this.", tokens: 12, stream: stream}
			a := f.ask(q) // uncoded, unless asked for
			for _, e := range f.engines() {
				r, err := e.record(a.id)
				if got := r.Header.Get("Accept-Encoding"); err != nil || e.role != prefill && got != "" {
					t.Errorf("%s: Accept-Encoding is %q, want that of the client, which sent none; %v", e, got, err)
				}
			}
			a = f.client.post(q.api.path, q.body(), header{"Accept-Encoding": "gzip"})
			if got := a.header.Get("Content-Encoding"); got != "gzip" {
				t.Fatalf("%s: Content-Encoding is %q: %v", q, got, a)
			}
			z, err := gzip.NewReader(bytes.NewReader(a.body))
			if err != nil {
				t.Fatalf("%s: %v", q, err)
			}
			text, err := io.ReadAll(z)
			if err != nil {
				t.Fatalf("%s: %v", q, err)
			}
			if err := checkRaw(q, &answer{id: a.id, status: a.status, body: text}); err != nil {
				t.Errorf("%s: %v", q, err)
			}
		}
	}
}

// TestStreamForms wants streams passed on as they come: byte by byte, with the
// line ends of their maker.
func TestStreamForms(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1})
	for _, api := range apis {
		q := question{api: api, prompt: "One by one.", tokens: 6, stream: true}
		for _, form := range []string{"bytes", "crlf"} {
			remove := f.decode[0].fault(enginesim.Fault{Action: form})
			a := f.client.post(q.api.path, q.body())
			if form == "crlf" && !bytes.HasSuffix(a.body, []byte("\r\n\r\n")) {
				t.Errorf("%s: the line ends were changed: %v", form, a)
			}
			a.body = bytes.ReplaceAll(a.body, []byte("\r\n"), []byte("\n"))
			if err := q.check(a); err != nil {
				t.Errorf("%s: %v", form, err)
			}
			remove()
		}
	}
}

// TestHeaders looks at what of a request's head reaches the engines.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, cfg := range []fleetConfig{{regular: 1}, {prefill: 1, decode: 1}} {
		f := newFleet(t, cfg)
		send := func(id string, extra ...string) *answer {
			t.Helper()
			body := question{api: chat, prompt: "Look at my head.", tokens: 3}.body()
			w := dial(t, f.addr)
			lines := []string{
				"POST /v1/chat/completions?trace=1&q=%20x HTTP/1.1", "Host: router.example:81", "Content-Type: application/json; charset=utf-8",
				"Authorization: Bearer u1", "traceparent: 00-1-2-01", "X-Tenant: t", "X-Many: a", "X-Many: b",
				"Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: timeout=9", "TE: trailers", "Proxy-Authorization: Basic x",
				"Proxy-Connection: keep-alive", "X-Forwarded-For: 192.0.2.7", "User-Agent: test/1", "Accept-Encoding: br",
			}
			if id != "" {
				lines = append(lines, "X-Request-Id: "+id)
			}
			lines = append(lines, extra...)
			lines = append(lines, "Content-Length: "+strconv.Itoa(len(body)), "", string(body))
			if _, err := io.WriteString(w, strings.Join(lines, "\r\n")); err != nil {
				t.Fatal(err)
			}
			a, err := w.read()
			if err != nil || a.status != http.StatusOK {
				t.Fatalf("%v: %v", err, a)
			}
			a.id = a.header.Get("X-Request-Id")
			return a
		}
		sent := newID()
		a := send(sent)
		if a.id != sent {
			t.Errorf("X-Request-Id of the answer is %q, want %q", a.id, sent)
		}
		for _, e := range f.engines() {
			checkHead(t, e, sent)
		}
		// Ids that are missing or could be mistaken for something else are made.
		for _, id := range []string{"", "a___b", strings.Repeat("x", 129), "has space", `quote"`, "\xff"} {
			a := send(id)
			if a.id == id || a.id == "" || len(a.id) > 128 {
				t.Errorf("id %q became %q", id, a.id)
			}
			for _, e := range f.engines() {
				if _, err := e.record(a.id); err != nil {
					t.Errorf("id %q: %v", id, err)
				}
			}
		}
		// Of other names, the first that is there counts.
		if a := send("", "X-Trace-Id: from-trace", "X-Correlation-Id: from-correlation"); a.id != "from-correlation" {
			t.Errorf("id is %q", a.id)
		}
	}
}

func checkHead(t *testing.T, e *engine, id string) {
	t.Helper()
	r, err := e.record(id)
	if err != nil {
		t.Fatal(err)
	}
	if r.Host != e.addr || r.Query != "trace=1&q=%20x" || r.Proto != "HTTP/1.1" {
		t.Errorf("%s: host %q, query %q, %s", e, r.Host, r.Query, r.Proto)
	}
	coding := "br"
	if e.role == prefill {
		coding = "identity" // its answer is read
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer u1", "Traceparent": "00-1-2-01", "X-Tenant": "t", "X-Many": "a|b", "User-Agent": "test/1",
		"Content-Type": "application/json; charset=utf-8", "X-Request-Id": id, "Accept-Encoding": coding,
		"X-Forwarded-For": "192.0.2.7, 127.0.0.1", "X-Forwarded-Host": "router.example:81", "X-Forwarded-Proto": "http",
		"X-Hop": "", "Keep-Alive": "", "Te": "", "Proxy-Authorization": "", "Proxy-Connection": "", "Transfer-Encoding": "",
		"Content-Length": strconv.Itoa(r.BodyLen),
	} {
		if got := strings.Join(r.Header[name], "|"); got != want {
			t.Errorf("%s: %s is %q, want %q", e, name, got, want)
		}
	}
}

// TestRequestForms sends bodies in the other ways that HTTP allows. Engines get
// them with a length.
func TestRequestForms(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1})
	q := question{api: completions, prompt: "In any form.", tokens: 3}
	body := q.body()
	half := len(body) / 2
	chunked := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x;ext=1\r\n%s\r\n%x\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n", half, body[:half], len(body)-half, body[half:])
	for name, rest := range map[string]string{
		"chunked":  chunked,
		"expect":   fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		"no type":  fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"pipeline": fmt.Sprintf("Content-Length: %d\r\n\r\n%sGET /liveness HTTP/1.1\r\nHost: x\r\n\r\n", len(body), body),
	} {
		w := dial(t, f.addr)
		kind := "Content-Type: application/json\r\n"
		if name == "no type" {
			kind = ""
		}
		if _, err := fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: x\r\n%s%s", q.api.path, kind, rest); err != nil {
			t.Fatal(err)
		}
		a, err := w.read()
		if err == nil && a.status == http.StatusContinue {
			a, err = w.read()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if name == "no type" { // an engine wants it; its refusal is passed on
			if a.status != http.StatusBadRequest || !bytes.Contains(a.body, []byte("Unsupported Media Type")) {
				t.Errorf("%s: %v", name, a)
			}
			continue
		}
		if err := q.check(a); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A client that sends its body slowly is waited for.
	w := dial(t, f.addr)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	_, _ = fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", q.api.path, len(body))
	for i := range body {
		<-tick.C
		if _, err := w.Write(body[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	a, err := w.read()
	if err == nil {
		err = q.check(a)
	}
	if err != nil {
		t.Errorf("a byte at a time: %v", err)
	}
}
