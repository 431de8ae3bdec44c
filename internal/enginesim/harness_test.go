package enginesim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/enginesim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipeNet is a network in memory: listeners by address, connections by net.Pipe.
type pipeNet struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
}

type pipeListener struct {
	addr  string
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

func (n *pipeNet) listen(addr string) *pipeListener {
	l := &pipeListener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*pipeListener{}
	}
	n.listeners[addr] = l
	return l
}

func (n *pipeNet) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return pipeAddr(l.addr) }

// world is a network with engines and a client.
type world struct {
	t      testing.TB
	net    pipeNet
	client *http.Client
}

func newWorld(t testing.TB) *world {
	w := &world{t: t}
	w.client = &http.Client{Transport: &http.Transport{
		DialContext: w.net.dial, DisableKeepAlives: true, DisableCompression: true,
	}}
	return w
}

// start runs an engine at cfg.Advertise until the test ends.
func (w *world) start(cfg enginesim.Config) *enginesim.Engine {
	w.t.Helper()
	if cfg.Advertise == "" {
		cfg.Advertise = "engine:8000"
	}
	cfg.Dial = w.net.dial
	e, err := enginesim.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	l := w.net.listen(cfg.Advertise)
	srv := e.NewServer()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = srv.Serve(l)
	}()
	w.t.Cleanup(func() {
		e.Close()
		srv.Close()
		<-over
	})
	return e
}

// request is one request to an engine.
type request struct {
	addr   string // default engine:8000
	method string // default POST
	path   string // default /v1/completions
	id     string
	header map[string]string
	body   string
}

func (q request) build(ctx context.Context, t testing.TB) *http.Request {
	t.Helper()
	or := func(s, def string) string {
		if s == "" {
			return def
		}
		return s
	}
	req, err := http.NewRequestWithContext(ctx, or(q.method, "POST"),
		"http://"+or(q.addr, "engine:8000")+or(q.path, "/v1/completions"), strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	if q.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.id != "" {
		req.Header.Set("X-Request-Id", q.id)
	}
	for k, v := range q.header {
		req.Header.Set(k, v)
	}
	return req
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of the exchange or of the body
}

func (w *world) do(q request) answer { return w.doContext(w.t.Context(), q) }

func (w *world) doContext(ctx context.Context, q request) answer {
	w.t.Helper()
	resp, err := w.client.Do(q.build(ctx, w.t))
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

// later sends q in the background.
func (w *world) later(ctx context.Context, q request) <-chan answer {
	ch := make(chan answer, 1)
	go func() { ch <- w.doContext(ctx, q) }()
	return ch
}

// get reads a member of a JSON answer by its path.
func (a answer) get(t testing.TB, path ...any) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(a.body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %q (status %d, error %v)", err, a.body, a.status, a.err)
	}
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("no object around %q in %s", p, a.body)
			}
			v = m[p]
		case int:
			l, ok := v.([]any)
			if !ok || len(l) <= p {
				t.Fatalf("no list with %d in %s", p, a.body)
			}
			v = l[p]
		}
	}
	if n, ok := v.(json.Number); ok {
		i, err := n.Int64()
		if err != nil {
			return n.String()
		}
		return int(i)
	}
	return v
}

func (a answer) text(t testing.TB) string {
	t.Helper()
	s, _ := a.get(t, "choices", 0, "text").(string)
	return s
}

// handoff cuts the hand-off parameters out of a prefill answer, as they are.
func (a answer) handoff(t testing.TB) string {
	t.Helper()
	var v struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%v in %q (status %d, error %v)", err, a.body, a.status, a.err)
	}
	return string(v.KV)
}

// sse joins the deltas of a stream of completions or chat.
func (a answer) sse(t testing.TB) (text string, done bool) {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(a.body) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		switch {
		case !ok:
		case line == "[DONE]":
			done = true
		default:
			var v struct {
				Choices []struct {
					Text  string
					Delta struct{ Content string }
				}
			}
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			for _, c := range v.Choices {
				b.WriteString(c.Text + c.Delta.Content)
			}
		}
	}
	return b.String(), done
}

const prefillParams = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// prefill and decode are the legs of a completion.
func prefill(addr, id, prompt string) request {
	return request{addr: addr, id: id, body: string(object("prompt", prompt, "max_tokens", 1,
		"kv_transfer_params", json.RawMessage(prefillParams)))}
}

func decode(addr, id, prompt, handoff string) request {
	return request{addr: addr, id: id, body: string(object("prompt", prompt, "max_tokens", 12,
		"kv_transfer_params", json.RawMessage(handoff)))}
}

// object builds a JSON object from pairs.
func object(pairs ...any) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		k, _ := json.Marshal(pairs[i])
		v, _ := json.Marshal(pairs[i+1])
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// clean fails the test if an engine has noted a violation.
func clean(t testing.TB, engines ...*enginesim.Engine) {
	t.Helper()
	for _, e := range engines {
		for _, v := range e.Stats().Violations {
			t.Errorf("violation: %s", v)
		}
	}
}
