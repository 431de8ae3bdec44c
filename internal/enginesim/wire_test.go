package enginesim_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestWireViolations sends raw heads, as no Go client would.
func TestWireViolations(t *testing.T) {
	tests := []struct {
		name string
		head string
		want []string // part of each violation
	}{
		{"plain", "", nil},
		{"close", "Connection: close\r\n", nil},
		{"keep-alive", "Connection: Keep-Alive\r\n", nil},
		{"named", "Connection: X-Foo\r\nX-Foo: 1\r\n", []string{"Connection: X-Foo"}},
		{"keep-alive header", "Keep-Alive: timeout=5\r\n", []string{"Keep-Alive"}},
		{"te", "TE: trailers\r\n", []string{"Te"}},
		{"upgrade", "Upgrade: h2c\r\n", []string{"Upgrade"}},
		{"proxy", "Proxy-Authorization: x\r\nProxy-Connection: y\r\n", []string{"Proxy-Authorization", "Proxy-Connection"}},
		{"expect", "Expect: 100-continue\r\n", []string{"Expect"}},
		{"odd id", "X-Request-Id: a b\r\n", []string{"odd bytes"}},
		{"non-ASCII id", "X-Request-Id: \xc3\xa9\r\n", []string{"odd bytes"}},
		{"empty id", "X-Request-Id:\r\n", []string{"odd bytes"}},
		{"long id", "X-Request-Id: " + strings.Repeat("x", 129) + "\r\n", []string{"129 bytes"}},
		{"two ids", "X-Request-Id: a\r\nX-Request-Id: b\r\n", []string{"2 X-Request-Id"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.start(enginesim.Config{Strict: true})
				got := raw(t, w, "POST /v1/completions HTTP/1.1\r\nHost: engine:8000\r\nContent-Type: application/json\r\n"+
					tt.head+"Content-Length: 15\r\n\r\n"+`{"prompt":"hi"}`)
				if !strings.HasPrefix(got, "HTTP/1.1 ") {
					t.Fatal(got)
				}
				expect(t, e, tt.want...)
			})
		})
	}
}

func TestFramingAndHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{Strict: true})
		raw(t, w, "POST /v1/completions HTTP/1.1\r\nHost: engine:8000\r\nContent-Type: application/json\r\n"+
			"Content-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n"+`{"prompt":"hi"}`+"\r\n0\r\n\r\n")
		raw(t, w, "GET /health HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
		expect(t, e, "Transfer-Encoding chunked", "Host is")
	})
}

// raw sends bytes and returns the first bytes of the answer.
func raw(t *testing.T, w *world, request string) string {
	t.Helper()
	c, err := w.net.dial(t.Context(), "tcp", "engine:8000")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func(c net.Conn) { _, _ = io.WriteString(c, request) }(c)
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if strings.HasPrefix(string(b[:n]), "HTTP/1.1 100") {
		n, err = c.Read(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// expect compares the violations of e with parts of them.
func expect(t *testing.T, e *enginesim.Engine, want ...string) {
	t.Helper()
	synctest.Wait()
	s := e.Stats()
	got := s.Violations
	ok := len(got) == len(want) && s.ViolationCount == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		t.Errorf("violations %q, want %q", got, want)
	}
}

// TestLegViolations checks what the engine says about the bodies of legs.
func TestLegViolations(t *testing.T) {
	const (
		kv  = `"kv_transfer_params":{"do_remote_decode":true}`
		two = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":true}`
	)
	tests := []struct {
		role, path, body string
		want             []string
	}{
		{"prefill", "/v1/completions", `{"prompt":"a","max_tokens":1,` + kv + `}`, nil},
		{"prefill", "/v1/chat/completions", `{` + hi + `,"max_tokens":1,"max_completion_tokens":1,"min_tokens":0,"n":1,` + kv + `}`, nil},
		{"prefill", "/v1/responses", `{"input":"a","max_output_tokens":1,"store":false,"stream":false,` + kv + `}`, nil},
		{"prefill", "/v1/messages", `{` + hi + `,"max_tokens":1,` + kv + `}`, nil},
		{
			"prefill", "/inference/v1/generate",
			`{"token_ids":[5],"sampling_params":{"max_tokens":1,"extra_args":{` + kv + `}},` + kv + `}`, nil,
		},
		{"prefill", "/v1/completions", `{"prompt":"a","max_tokens":1,"stream":true,` + kv + `}`, []string{"streams"}},
		{
			"prefill", "/v1/completions", `{"prompt":"a","max_tokens":1,"stream":true,"stream_options":{"include_usage":true},` + kv + `}`,
			[]string{"streams", "stream_options"},
		},
		{"prefill", "/v1/completions", `{"prompt":"a","max_tokens":1,"stream_options":{"include_usage":true},` + kv + `}`, []string{"stream_options"}},
		{"prefill", "/v1/completions", `{"prompt":"a",` + kv + `}`, []string{"does not limit"}},
		{"prefill", "/v1/completions", `{"prompt":"a","max_tokens":2,` + kv + `}`, []string{"does not limit", "max_tokens 2"}},
		{"prefill", "/v1/chat/completions", `{` + hi + `,"max_tokens":1,"max_completion_tokens":9,` + kv + `}`, []string{"does not limit", "max_completion_tokens 9"}},
		{"prefill", "/v1/chat/completions", `{` + hi + `,"max_tokens":9,"max_completion_tokens":1,` + kv + `}`, []string{"max_tokens 9"}},
		{"prefill", "/v1/responses", `{"input":"a","max_tokens":1,` + kv + `}`, []string{"does not limit"}},
		{"prefill", "/v1/completions", `{"prompt":"a","max_tokens":1,"min_tokens":2,` + kv + `}`, []string{"min_tokens 2"}},
		{"prefill", "/v1/completions", `{"prompt":"a","max_tokens":1,"n":2,"best_of":3,` + kv + `}`, []string{"n 2", "best_of 3"}},
		{"prefill", "/v1/completions", `{"prompt":"a","max_tokens":1,` + two + `}`, []string{"do_remote_prefill too"}},
		{"prefill", "/v1/completions", `{"prompt":"a"}`, []string{"a plain request on a prefill engine"}},
		{"decode", "/v1/completions", `{"prompt":"a"}`, []string{"decode recomputes"}},
		{"decode", "/v1/completions", `{"prompt":"a","kv_transfer_params":null}`, []string{"decode recomputes"}},
		{
			"decode", "/inference/v1/generate", `{"token_ids":[5],"sampling_params":{},"kv_transfer_params":{"do_remote_prefill":true}}`,
			[]string{"a plain request on a decode engine"},
		},
		{
			"decode", "/v1/completions", `{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"transfer_mode":"pull","remote_block_ids":[[1]],"remote_host":"h"}}`,
			[]string{"lack remote_engine_id, remote_request_id, remote_port"},
		},
		{"regular", "/v1/completions", `{"prompt":"a"}`, nil},
		{"decode", "/v1/embeddings", `{"input":"a"}`, nil},
	}
	for i, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			e := w.start(enginesim.Config{Role: tt.role, Connector: "nixl", Strict: true, DefaultTokens: 2})
			w.do(request{path: tt.path, body: tt.body, id: fmt.Sprint("x", i)})
			t.Log(tt.path, tt.body)
			expect(t, e, tt.want...)
		})
	}
}

func TestSameIDTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{Connector: "nixl"})
		w.do(request{id: "a", body: `{"prompt":"hi"}`})
		w.do(prefill("engine:8000", "a", "hi")) // another leg
		w.do(request{id: "a-1", body: `{"prompt":"hi"}`})
		clean(t, e)
		w.do(request{id: "a", body: `{"prompt":"hi"}`})
		expect(t, e, "a second plain leg")
	})
}
