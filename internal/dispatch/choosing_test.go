package dispatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// choosing is a dispatcher whose policies and carriers write down what happens.
type choosing struct {
	t          *testing.T
	reg        *registry.Registry
	pools      map[worker.Role]*worker.Pool
	dispatcher *dispatch.Dispatcher
	status     map[string]int // by host; 0 is 200, -1 refuses the connection

	mu     sync.Mutex // guards what follows
	events []string
	told   map[worker.Role]told
}

// told is what a policy was told last.
type told struct {
	model, session, key string
	root                []string
	work                worker.Work
}

func newChoosing(t *testing.T, name string) *choosing {
	t.Helper()
	c := &choosing{
		t: t, reg: registry.New(), pools: make(map[worker.Role]*worker.Pool),
		status: make(map[string]int), told: make(map[worker.Role]told),
	}
	dialects := pd.Set{
		pd.NewNIXL(30 * time.Second),
		&fakeDialect{spec: pd.Spec{Name: "both", Concurrent: true, Cancel: pd.AnyTime}},
	}
	policies := make(map[worker.Role]policy.Policy)
	c.dispatcher = dispatch.New(dispatch.Default(), dispatch.Deps{
		Pools: c.pools, Policies: policies, Dialects: dialects, Health: quiet{},
		NewCarrier: func(base string) (exchange.Carrier, error) {
			return scripted{c, strings.TrimPrefix(base, "http://")}, nil
		},
	})
	for _, role := range worker.Roles() {
		cfg := policy.DefaultConfig()
		cfg.Role, cfg.IndexMemory = role, 1<<20
		p, err := policy.New(name, cfg)
		if err != nil {
			t.Fatal(err)
		}
		policies[role] = noting{p, c, role}
		observers := []worker.Observer{c.dispatcher}
		if o, ok := p.(worker.Observer); ok {
			observers = append(observers, o)
		}
		c.pools[role] = worker.NewPool(worker.PoolConfig{Role: role, Lister: c.reg, Dialects: dialects.Bits, Observers: observers})
	}
	return c
}

func (c *choosing) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf(format, args...))
}

// add registers workers given as role/host.
func (c *choosing) add(dialect string, workers ...string) {
	c.t.Helper()
	for _, w := range workers {
		r, host, _ := strings.Cut(w, "/")
		reg := worker.Registration{ID: worker.ID{Role: role(r), URL: "http://" + host}}
		if reg.ID.Role != worker.Regular {
			reg.Endpoint.Dialect = dialect
		}
		if _, _, err := c.reg.Register("test", reg, 0); err != nil {
			c.t.Fatal(err)
		}
	}
}

// do carries a request out and returns what happened.
func (c *choosing) do(path, body string, fields ...exchange.Field) (events []string, out dispatch.Outcome) {
	c.t.Helper()
	req := new(openai.Request)
	if err := req.ParseJSON(openai.FindRoute(path, nil), []byte(body)); err != nil {
		c.t.Fatal(err)
	}
	call := &dispatch.Call{Request: req, ID: "r", Head: exchange.Head{Method: http.MethodPost, Target: path, Fields: fields}}
	out = c.dispatcher.Do(context.Background(), call, discarding{})
	if err := c.dispatcher.Wait(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	events, c.events = c.events, nil
	return events, out
}

// noting writes down what a policy is told and what it keeps.
type noting struct {
	policy.Policy
	c    *choosing
	role worker.Role
}

func (p noting) Prepare(r *policy.Request, s *worker.Snapshot) policy.Choice {
	var key written
	r.Source.WriteKey(&key)
	p.c.mu.Lock()
	p.c.told[p.role] = told{r.Model, r.Source.Session().Key, key.String(), r.Source.KeyRoot(), r.Work}
	p.c.mu.Unlock()
	return notingChoice{p.Policy.Prepare(r, s), p.c}
}

type notingChoice struct {
	policy.Choice
	c *choosing
}

func (ch notingChoice) Keep(w *worker.Worker) func() {
	host := strings.TrimPrefix(w.ID().URL, "http://")
	ch.c.note("keep %s", host)
	undo := ch.Choice.Keep(w)
	return func() {
		ch.c.note("undo %s", host)
		if undo != nil {
			undo()
		}
	}
}

type written struct{ bytes.Buffer }

func (*written) Full() bool { return false }

// scripted is the carrier of one host.
type scripted struct {
	c    *choosing
	host string
}

func (s scripted) Send(context.Context, exchange.Head, []byte) (*exchange.Answer, error) {
	status := s.c.status[s.host]
	switch status {
	case -1:
		return nil, &exchange.Error{Sent: exchange.Nothing, Err: errors.New("refused")}
	case 0:
		status = http.StatusOK
	}
	s.c.note("send %s", s.host)
	return &exchange.Answer{Status: status, Body: io.NopCloser(strings.NewReader(prefillAnswer("")))}, nil
}

type discarding struct{}

func (discarding) Start(int, exchange.Fields) error { return nil }
func (discarding) Write([]byte) error               { return nil }
func (discarding) Abort()                           {}

type quiet struct{}

func (quiet) ConnectFailed(*worker.Worker, error) {}
func (quiet) LastError(*worker.Worker) string     { return "" }
func (quiet) Restarted(*worker.Worker, string)    {}
func (quiet) Recently(string) bool                { return false }

// TestPoliciesAreTold is a table over policy, plan, route and stream: each policy
// of each role is told model, session and key (cases 3.34, 3.35).
func TestPoliciesAreTold(t *testing.T) {
	t.Parallel()
	plans := []struct {
		name, dialect string
		workers       []string
		routes        []string // nil: all
	}{
		{"plain", "", []string{"regular/r"}, nil},
		{"sequential", "nixl", []string{"prefill/p", "decode/d"}, []string{"/v1/chat/completions", "/v1/completions", "/v1/responses"}},
		{"concurrent", "both", []string{"prefill/p", "decode/d"}, []string{"/v1/chat/completions"}},
	}
	routes := map[string]string{ // the member that the key is made of
		"/v1/chat/completions":   `"messages":[{"role":"user","content":"the prompt"}]`,
		"/v1/messages":           `"messages":[{"role":"user","content":"the prompt"}]`,
		"/v1/completions":        `"prompt":"the prompt"`,
		"/v1/responses":          `"input":"the prompt"`,
		"/v1/embeddings":         `"input":["the prompt"]`,
		"/inference/v1/generate": `"token_ids":[1,2,3]`,
		"/pooling":               `"input":"the prompt"`,
		"/v1/unheard/of":         `"prompt":"the prompt"`,
	}
	for _, name := range policy.Names() {
		for _, plan := range plans {
			t.Run(name+"/"+plan.name, func(t *testing.T) {
				t.Parallel()
				c := newChoosing(t, name)
				c.add(plan.dialect, plan.workers...)
				for path, member := range routes {
					if plan.routes != nil && !slices.Contains(plan.routes, path) {
						continue
					}
					for _, stream := range []bool{false, true} {
						body := fmt.Sprintf(`{"model":"m","cache_salt":"x","user":"u","stream":%v,%s}`, stream, member)
						clear(c.told)
						_, out := c.do(path, body, exchange.Field{Name: "X-Session-Id", Value: "s1"})
						if out.Err != nil {
							t.Errorf("%s: %v", path, out.Err)
						}
						for _, w := range plan.workers {
							r, _, _ := strings.Cut(w, "/")
							got := c.told[role(r)]
							if got.model != "m" || got.session != "header:x-session-id:s1" || !slices.Equal(got.root, []string{"m", "x"}) ||
								!strings.Contains(got.key, "the prompt") && !strings.Contains(got.key, "1,2,3") || got.work.Held == 0 {
								t.Errorf("%s, stream %v: the policy of %s was told %+v", path, stream, r, got)
							}
						}
						// Nothing to read a key from is no reason to fail.
						for _, body := range []string{`{}`, `{"messages":null,"prompt":[],"input":{}}`, `{"messages":[{"content":null}],"prompt":[[1],[2]]}`} {
							if _, out := c.do("/v1/chat/completions", body); out.Err != nil && out.Err.Status != http.StatusBadRequest {
								t.Errorf("%s: %v", body, out.Err)
							}
						}
					}
				}
			})
		}
	}
}

// TestAffinityIsKept shows when affinity is recorded and when it is taken back.
func TestAffinityIsKept(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	for _, c := range []struct {
		name, dialect, workers string
		status                 map[string]int
		want                   string
	}{
		{"plain", "", "regular/a", nil, "keep a, send a"},
		{"plain, refused", "", "regular/a regular/b", map[string]int{"a": -1}, "keep a, undo a, keep b, send b"},
		{"plain, all refused", "", "regular/a", map[string]int{"a": -1}, "keep a, undo a"},
		{"plain, failed", "", "regular/a", map[string]int{"a": 500}, "keep a, send a"},
		{"sequential", "nixl", "prefill/p decode/d", nil, "keep p, send p, keep d, send d"},
		{"prefill refused", "nixl", "prefill/p prefill/q decode/d", map[string]int{"p": -1}, "keep p, undo p, keep q, send q, keep d, send d"},
		{"prefill failed", "nixl", "prefill/p prefill/q decode/d", map[string]int{"p": 500}, "keep p, send p, undo p, keep q, send q, keep d, send d"},
		{"the client's own error", "nixl", "prefill/p decode/d", map[string]int{"p": 400}, "keep p, send p, undo p"},
		{"decode refused", "nixl", "prefill/p decode/d decode/e", map[string]int{"d": -1}, "keep p, send p, keep d, undo d, keep e, send e"},
		{"decode failed", "nixl", "prefill/p decode/d", map[string]int{"d": 500}, "keep p, send p, keep d, send d"},
		{"concurrent decode refused", "both", "prefill/p decode/d", map[string]int{"p": 503, "d": -1}, "keep p, keep d, undo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ch := newChoosing(t, "cache_aware")
			ch.add(c.dialect, strings.Fields(c.workers)...)
			ch.status = c.status
			events, _ := ch.do("/v1/chat/completions", body)
			got := strings.Join(events, ", ")
			if c.dialect == "both" { // the legs run at once
				got = strings.Join(slices.DeleteFunc(events, func(e string) bool { return strings.HasPrefix(e, "send") }), ", ")
				if !strings.HasPrefix(got, c.want) {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				return
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPlacementOfVLLMRouter: consistent_hash places requests where release 0.1.17 of
// vllm-router, asked with the same requests in front of five workers, placed them.
// Digits are workers.
func TestPlacementOfVLLMRouter(t *testing.T) {
	t.Parallel()
	const (
		chat      = `{"model":"demo","max_tokens":1,"messages":[{"role":"user","content":"hi %[1]d"}]}`
		inSession = `{"model":"demo","messages":[{"role":"user","content":"hi %[1]d"}],"session_params":{"session_id":"sp%[2]s"}}`
	)
	repeated := func(n int) func(i int) string {
		return func(i int) string { return strings.Repeat(strconv.Itoa(i), n) }
	}
	for _, c := range []struct {
		name, path, body string
		second           func(i int) string // %[2]s of the body
		field, value     string             // %d of the value is the number of the request
		want             string
	}{
		{name: "x-session-id", path: "/v1/chat/completions", body: chat, field: "X-Session-Id", value: "session-%d", want: "030114143333102142003201"},
		{name: "x-user-id", path: "/v1/chat/completions", body: chat, field: "X-User-Id", value: "user %d", want: "343100201112324200010133"},
		{name: "x-tenant-id", path: "/v1/chat/completions", body: chat, field: "X-Tenant-Id", value: "t%d", want: "300331231000402224234304"},
		{name: "session_params", path: "/v1/chat/completions", body: inSession, second: repeated(1), want: "404413210044201123140234"},
		{name: "prompt", path: "/v1/completions", body: `{"model":"demo","prompt":"prompt %[1]d"}`, want: "131224012323040422042020"},
		{
			name: "long prompt", path: "/v1/completions", body: `{"model":"demo","prompt":"%[2]s"}`,
			second: func(i int) string { return strings.Repeat(fmt.Sprintf("prompt %d ", i), 30) }, want: "044244403203310232114444",
		},
		{name: "prompts", path: "/v1/completions", body: `{"model":"demo","prompt":["a%[1]d","b"]}`, want: "002123410200122013142230"},
		{name: "user", path: "/v1/responses", body: `{"model":"demo","input":"x","user":"u%[1]d"}`, want: "221311121320101011444441"},
		{name: "session_id", path: "/v1/responses", body: `{"model":"demo","input":"x","session_id":"s%[1]d"}`, want: "002114311123114110203210"},
		{name: "user_id", path: "/v1/responses", body: `{"model":"demo","input":"x","user_id":"s%[1]d"}`, want: "244123003331400132214344"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ch := newChoosing(t, "consistent_hash")
			for i := range 5 {
				ch.add("", fmt.Sprintf("regular/127.0.0.1:%d", 18501+i))
			}
			ch.pools[worker.Regular].Reconcile() // else the first one is a choice before there is a ring
			var got strings.Builder
			for i := range len(c.want) {
				args := []any{i}
				if c.second != nil {
					args = append(args, c.second(i))
				}
				var fields []exchange.Field
				if c.field != "" {
					fields = append(fields, exchange.Field{Name: c.field, Value: fmt.Sprintf(c.value, i)})
				}
				_, out := ch.do(c.path, fmt.Sprintf(c.body, args...), fields...)
				got.WriteString(strconv.Itoa(int(out.Legs[0].Worker.URL[len("http://127.0.0.1:1850")]) - '1'))
			}
			if got.String() != c.want {
				t.Errorf("requests go to\n%s, want\n%s", got.String(), c.want)
			}
		})
	}
}
