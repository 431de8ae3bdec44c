package dispatch_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/memnet"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/scenario"
	"github.com/baton-llm/baton/internal/worker"
)

// TestLifecycle runs the scripts of testdata/lifecycle: the real dispatcher,
// registry, pools and net/http over an in-memory network, scripted workers, and
// a clock that only "advance" moves.
//
//	worker ROLE HOST [group=] [dialect=] [zmq=] [mode=] [ttl=D]  register, and listen unless it does
//	withdraw|renew|block|unblock ROLE HOST [REASON]
//	script HOST [status=N] [handoff=none|abort|junk] [chunks=N] [cut=N] [plain] [sized]   how its worker answers
//	kill|refuse|restore|blackhole HOST
//	request NAME [route=R] [plain] [whole] [model=M] [times=N]
//	leave NAME                            the client goes
//	park NAME at POINT ; resume NAME
//	advance D
//	state [ROLE]
//
// Points of NAME are prepare-ROLE (before the pick), picked-ROLE (after it),
// handoff (prefill has answered) and client (a part is to be written to the
// client). Points of NAME/ROLE, which is the worker's side of a leg, are arrived,
// answer (before the head), headers (after it), chunk-N (before part N) and last
// (before the end).
func TestLifecycle(t *testing.T) {
	datadriven.Walk(t, "testdata/lifecycle", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(filepath.Base(path))
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				return s.run(t, d)
			})
			s.finish(t)
		})
	})
}

type stage struct {
	*scenario.Stage
	net        memnet.Network
	reg        *registry.Registry
	pools      map[worker.Role]*worker.Pool
	dispatcher *dispatch.Dispatcher
	breaker    *breaker.Breaker
	cancels    map[string]context.CancelFunc
	servers    []*http.Server
	start      time.Time

	mu      sync.Mutex // guards what follows
	all     []*worker.Worker
	scripts map[string]*script
}

// script is how one host answers.
type script struct {
	status  int
	handoff string // "", none, abort, junk, or an engine id
	chunks  int
	cut     int  // parts after which the connection breaks; -1: never
	plain   bool // not streamed
	sized   bool // neither, and its length is known
}

// newStage returns the stage of a script. Only the breaker's own script has a
// breaker that ejects.
func newStage(name string) *stage {
	s := &stage{
		Stage:   scenario.New(),
		reg:     registry.New(),
		pools:   make(map[worker.Role]*worker.Pool),
		cancels: make(map[string]context.CancelFunc),
		scripts: make(map[string]*script),
		start:   time.Now(),
	}
	cfg := dispatch.Default()
	cfg.FirstByteTimeout = 60 * time.Second
	cfg.IdleTimeout = 20 * time.Second
	s.breaker = breaker.New(breaker.Config{
		Failures: 3, Successes: 2, Timeout: time.Minute, Disabled: name != "breaker.txt",
	}, nil)
	sticky := &stickyDialect{fakeDialect: fakeDialect{spec: pd.Spec{Name: "sticky", Cancel: pd.AnyTime}}, s: s, ids: make(map[*worker.Worker]string)}
	dialects := pd.Set{
		parkingDialect{pd.NewNIXL(30 * time.Second), s},
		&fakeDialect{spec: pd.Spec{Name: "both", Concurrent: true, Cancel: pd.AnyTime}},
		&fakeDialect{spec: pd.Spec{Name: "late", Concurrent: true, Cancel: pd.UntilHandoff}},
		&fakeDialect{spec: pd.Spec{Name: "pinned", PairFirst: true, Cancel: pd.AnyTime}},
		sticky,
		pd.P2P{},
		pd.NewMoRIIO("READ"), pd.NewMoRIIO("WRITE"),
	}
	s.dispatcher = dispatch.New(cfg, dispatch.Deps{
		Pools: s.pools, Dialects: dialects, Health: s, Breaker: s.breaker,
		Policies: map[worker.Role]policy.Policy{
			worker.Regular: parkingPolicy{policy.LeastLoad{}, s, worker.Regular},
			worker.Prefill: parkingPolicy{policy.LeastLoad{}, s, worker.Prefill},
			worker.Decode:  parkingPolicy{policy.LeastLoad{}, s, worker.Decode},
		},
		NewCarrier: func(base string) (exchange.Carrier, error) {
			return nethttp.New(base, nethttp.Config{Dial: s.net.DialContext})
		},
	})
	for _, role := range worker.Roles() {
		s.pools[role] = worker.NewPool(worker.PoolConfig{
			Role: role, Lister: s.reg, Dialects: dialects.Bits,
			Observers: []worker.Observer{s, s.dispatcher, s.breaker, sticky},
		})
	}
	return s
}

// WorkerAdded implements [worker.Observer].
func (s *stage) WorkerAdded(w *worker.Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, w)
}

// WorkerRemoved implements [worker.Observer].
func (s *stage) WorkerRemoved(w *worker.Worker) { s.Log("- %v %s", w.ID().Role, short(w.ID())) }

// ConnectFailed implements [dispatch.Health] as package health does.
func (s *stage) ConnectFailed(w *worker.Worker, _ error) {
	w.Block(worker.Pending)
	s.Log("%v %s: connect failed", w.ID().Role, short(w.ID()))
}

// Restarted implements [dispatch.Health] as package health does.
func (s *stage) Restarted(w *worker.Worker, why string) {
	s.Log("%v %s: another process (%s)", w.ID().Role, short(w.ID()), why)
	s.reg.Renew(w.ID())
}

// LastError implements [dispatch.Health].
func (s *stage) LastError(*worker.Worker) string { return "" }

// Recently implements [dispatch.Health].
func (s *stage) Recently(string) bool { return false }

// parkingPolicy lets a script stop a request around its pick.
type parkingPolicy struct {
	policy.Policy
	s    *stage
	role worker.Role
}

func (p parkingPolicy) Prepare(r *policy.Request, snap *worker.Snapshot) policy.Choice {
	p.s.Reach("prepare-" + p.role.String())
	return parkingChoice{p.Policy.Prepare(r, snap), p.s}
}

type parkingChoice struct {
	policy.Choice
	s *stage
}

func (c parkingChoice) Keep(w *worker.Worker) func() {
	c.s.Reach("picked-" + w.ID().Role.String())
	return nil
}

// parkingDialect lets a script stop a request between its legs.
type parkingDialect struct {
	pd.Dialect
	s *stage
}

func (d parkingDialect) Read(p *pd.Pair, body []byte) (pd.Handoff, error) {
	d.s.Reach("handoff")
	return d.Dialect.Read(p, body)
}

// Discard marks the leg: its worker sends no token before the router has closed
// it.
func (d parkingDialect) Discard(p *pd.Pair, h pd.Handoff) (pd.Leg, bool, error) {
	leg, read, err := d.Dialect.Discard(p, h)
	leg.Fields = append(leg.Fields, exchange.Field{Name: "X-Discard", Value: "1"})
	return leg, read, err
}

// fakeDialect names the pair in the legs' fields and hands a fixed object over.
type fakeDialect struct{ spec pd.Spec }

func (d *fakeDialect) Spec() pd.Spec {
	spec := d.spec
	spec.Routes = []string{"chat"}
	return spec
}

func (d *fakeDialect) Prefill(p *pd.Pair) (pd.Leg, error) {
	fields := append(pd.LegFields(p.ID, p.Prefill), exchange.Field{Name: "X-Leg", Value: "prefill"})
	if p.Decode != nil {
		fields = append(fields, exchange.Field{Name: "X-Pair", Value: short(p.Decode.ID())})
	}
	return pd.Leg{Body: p.Request.Body, Fields: fields}, nil
}

func (d *fakeDialect) Read(*pd.Pair, []byte) (pd.Handoff, error) {
	return pd.Handoff{Params: []byte("{}")}, nil
}

func (d *fakeDialect) Decode(p *pd.Pair, h pd.Handoff) (pd.Leg, error) {
	fields := append(pd.LegFields(p.ID, p.Decode),
		exchange.Field{Name: "X-Leg", Value: "decode"},
		exchange.Field{Name: "X-Pair", Value: strings.TrimSpace(short(p.Prefill.ID()) + " " + string(h.Params))})
	return pd.Leg{Body: p.Request.Body, Fields: fields}, nil
}

func (d *fakeDialect) Discard(p *pd.Pair, h pd.Handoff) (pd.Leg, bool, error) {
	leg, err := d.Decode(p, h)
	return leg, true, err
}

// stickyDialect remembers something of each prefill worker, as NIXL push does
// with identities, and tells decode.
type stickyDialect struct {
	fakeDialect
	s   *stage
	mu  sync.Mutex
	ids map[*worker.Worker]string
}

func (d *stickyDialect) Read(p *pd.Pair, _ []byte) (pd.Handoff, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids[p.Prefill] == "" {
		d.ids[p.Prefill] = "identity-of-" + short(p.Prefill.ID())
		d.s.Log("learned %s", d.ids[p.Prefill])
	}
	return pd.Handoff{Params: []byte(d.ids[p.Prefill])}, nil
}

func (d *stickyDialect) WorkerAdded(*worker.Worker) {}

func (d *stickyDialect) WorkerRemoved(w *worker.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids[w] != "" {
		d.s.Log("forgot %s", d.ids[w])
	}
	delete(d.ids, w)
}

func (s *stage) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	words, opts := split(d)
	if err := s.do(d.Cmd, words, opts); err != nil {
		s.Log("error: %v", err)
	}
	synctest.Wait()
	lines := s.Take()
	slices.Sort(lines) // what happens at once comes in any order
	return strings.Join(append(lines, ""), "\n")
}

func (s *stage) do(cmd string, words []string, opts map[string]string) error {
	switch cmd {
	case "worker":
		return s.worker(words, opts)
	case "withdraw":
		s.reg.Withdraw("test", role(words[0]), "http://"+words[1], 0)
	case "renew", "block", "unblock":
		return s.change(cmd, words)
	case "script":
		s.script(words, opts)
	case "kill":
		s.net.Kill(words[0] + ":80")
	case "refuse":
		s.net.Refuse(words[0] + ":80")
	case "restore":
		s.net.Restore(words[0] + ":80")
	case "blackhole":
		s.net.Blackhole(words[0] + ":80")
	case "request":
		return s.request(words, opts)
	case "leave":
		s.cancels[words[0]]()
	case "park":
		s.Park(words[0], words[2])
	case "resume":
		if !s.Resume(words[0]) {
			return fmt.Errorf("%s is not parked", words[0])
		}
	case "advance":
		d, err := time.ParseDuration(words[0])
		time.Sleep(d)
		return err
	case "state":
		s.state(words)
	default:
		return fmt.Errorf("unknown command %q", cmd)
	}
	return nil
}

func (s *stage) worker(words []string, opts map[string]string) error {
	r, host := role(words[0]), words[1]
	reg := worker.Registration{
		ID:       worker.ID{Role: r, URL: "http://" + host},
		Endpoint: worker.Endpoint{ZMQ: opts["zmq"], Mode: opts["mode"]},
	}
	if r != worker.Regular {
		reg.Endpoint.Dialect = cmp.Or(opts["dialect"], "nixl")
	}
	if group, ok := opts["group"]; ok {
		reg.Labels = map[string]string{worker.GroupLabel: group}
	}
	ttl, _ := time.ParseDuration(opts["ttl"])
	id, change, err := s.reg.Register("test", reg, ttl)
	if err != nil {
		return err
	}
	s.Log("%s %v", short(id), change)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scripts[host] != nil {
		return nil
	}
	s.scripts[host] = &script{status: http.StatusOK, chunks: 2, cut: -1}
	listener, err := s.net.Listen(host + ":80")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.host(host)}
	s.servers = append(s.servers, server)
	go func() { _ = server.Serve(listener) }() // until finish closes it
	return nil
}

func (s *stage) change(cmd string, words []string) error {
	pool := s.pools[role(words[0])]
	pool.Reconcile()
	for _, w := range pool.Snapshot().Workers {
		if w.ID().URL != "http://"+words[1] {
			continue
		}
		switch cmd {
		case "renew":
			s.reg.Renew(w.ID())
		case "block":
			w.Block(reason(words[2]))
		case "unblock":
			w.Unblock(reason(words[2]))
		}
		return nil
	}
	return fmt.Errorf("no worker %s", words[1])
}

func (s *stage) script(words []string, opts map[string]string) {
	sc := &script{status: http.StatusOK, chunks: 2, cut: -1, handoff: opts["handoff"], plain: slices.Contains(words, "plain"), sized: slices.Contains(words, "sized")}
	sc.plain = sc.plain || sc.sized
	for name, field := range map[string]*int{"status": &sc.status, "chunks": &sc.chunks, "cut": &sc.cut} {
		if v, ok := opts[name]; ok {
			*field = number(v)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[words[0]] = sc
}

// minted is the part of an id that is new each time.
var minted = regexp.MustCompile(`_[0-9a-f]{32}`)

// host is a worker's server. A request with stream:false, or with one token to
// compute for a hand-off, is answered in one piece.
func (s *stage) host(host string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		name, id := r.Header.Get("X-Name"), minted.ReplaceAllString(r.Header.Get("X-Request-Id"), "_*")
		as := r.Header.Get("X-Leg")
		switch {
		case as != "":
		case bytes.Contains(body, []byte(`"do_remote_decode":true`)):
			as = "prefill"
		case bytes.Contains(body, []byte(`"do_remote_prefill":true`)):
			as = "decode"
		default:
			as = s.roleOf(host)
		}
		note := ""
		if pair := r.Header.Get("X-Pair"); pair != "" {
			note = " with " + pair
		}
		s.Log("%s %s: got %s%s", as, host, id, note)
		gone := sync.OnceFunc(func() {
			s.Log("%s %s: %s gone%s", as, host, id, s.at())
		})
		defer context.AfterFunc(r.Context(), gone)()
		name += "/" + as
		s.ReachAs(name, "arrived")
		s.mu.Lock()
		sc := *s.scripts[host]
		s.mu.Unlock()
		s.ReachAs(name, "answer")
		if r.Context().Err() != nil {
			return
		}
		switch {
		case sc.status != http.StatusOK:
			w.WriteHeader(sc.status)
			_, _ = fmt.Fprintf(w, `{"error":{"message":"scripted %d"}}`, sc.status)
		case as == "prefill":
			_, _ = io.WriteString(w, prefillAnswer(sc.handoff))
		default:
			if r.Header.Get("X-Discard") != "" {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				gone()
				return
			}
			s.stream(w, r, name, sc)
		}
	})
}

func prefillAnswer(handoff string) string {
	switch handoff {
	case "A", "B", "A_dp1":
		return `{"choices":[{"finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"` + handoff + `"}}`
	case "none":
		return `{"choices":[{"finish_reason":"length"}],"kv_transfer_params":null}`
	case "abort":
		return `{"choices":[{"finish_reason":"abort"}]}`
	case "junk":
		return `<html>`
	default:
		return `{"choices":[{"finish_reason":"length"}],"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]]}}`
	}
}

func (s *stage) stream(w http.ResponseWriter, r *http.Request, name string, sc script) {
	rc := http.NewResponseController(w)
	if !sc.plain {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	if sc.sized {
		w.Header().Set("Content-Length", strconv.Itoa(sc.chunks)) // a digit each
	}
	_ = rc.Flush()
	s.ReachAs(name, "headers")
	for i := 1; i <= sc.chunks; i++ {
		s.ReachAs(name, "chunk-"+strconv.Itoa(i))
		if r.Context().Err() != nil {
			return
		}
		if sc.cut >= 0 && i > sc.cut {
			panic(http.ErrAbortHandler)
		}
		if sc.plain {
			_, _ = fmt.Fprintf(w, "%d", i)
		} else {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
		}
		_ = rc.Flush()
	}
	s.ReachAs(name, "last")
	if sc.cut >= sc.chunks {
		panic(http.ErrAbortHandler)
	}
}

func (s *stage) roleOf(host string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range slices.Backward(s.all) {
		if w.ID().URL == "http://"+host {
			return w.ID().Role.String()
		}
	}
	return "unknown"
}

// at is the virtual time, if any has passed.
func (s *stage) at() string {
	if d := time.Since(s.start); d > 0 {
		return " at " + d.String()
	}
	return ""
}

func (s *stage) request(words []string, opts map[string]string) error {
	name := words[0]
	path := map[string]string{
		"": "/v1/chat/completions", "chat": "/v1/chat/completions", "completions": "/v1/completions",
		"tokenize": "/tokenize", "batch": "/v1/chat/completions/batch", "responses": "/v1/responses",
	}[opts["route"]]
	fields := []string{`"messages":[{"role":"user","content":"hi"}]`, `"stream":true`, `"max_tokens":9`}
	if m, ok := opts["model"]; ok {
		fields = append(fields, fmt.Sprintf(`"model":%q`, m))
	}
	if slices.Contains(words, "whole") {
		fields = append(fields, `"echo":true`)
	}
	req := new(openai.Request)
	if err := req.ParseJSON(openai.FindRoute(path, nil), []byte("{"+strings.Join(fields, ",")+"}")); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancels[name] = cancel
	call := &dispatch.Call{
		Request: req, ID: name,
		Head: exchange.Head{Method: http.MethodPost, Target: path, Fields: exchange.Fields{
			{Name: "Content-Type", Value: "application/json"}, {Name: "X-Name", Value: name},
		}},
	}
	s.Go(name, func() string {
		sink := &fakeSink{ctx: ctx, s: s}
		out := s.dispatcher.Do(ctx, call, sink)
		return sink.describe(out)
	})
	return nil
}

// fakeSink is a client.
type fakeSink struct {
	ctx     context.Context //nolint:containedctx // the client's
	s       *stage
	status  int
	text    strings.Builder
	aborted bool
}

func (k *fakeSink) Start(status int, _ exchange.Fields) error {
	k.status = status
	return nil
}

func (k *fakeSink) Write(p []byte) error {
	k.s.Reach("client")
	if k.ctx.Err() != nil {
		return k.ctx.Err()
	}
	k.text.Write(p)
	return nil
}

func (k *fakeSink) Abort() { k.aborted = true }

func (k *fakeSink) describe(out dispatch.Outcome) string {
	var parts []string
	if k.status != 0 {
		parts = append(parts, fmt.Sprintf("%d %q", k.status, k.text.String()))
	}
	if k.aborted {
		parts = append(parts, "broken off")
	}
	if out.Err != nil {
		parts = append(parts, fmt.Sprintf("error %d %s", out.Err.Status, out.Err.Code))
	}
	if out.Err != nil && out.Err.Status == http.StatusServiceUnavailable {
		parts = append(parts, "("+out.Err.Message+")")
	}
	for _, leg := range out.Legs {
		text := fmt.Sprintf("[%v %s", leg.Worker.Role, short(leg.Worker))
		if leg.Err != nil {
			text += " " + plain(leg.Err)
		}
		parts = append(parts, text+"]")
	}
	return strings.Join(parts, " ")
}

func plain(err error) string {
	if e, ok := errors.AsType[*exchange.Error](err); ok {
		return map[exchange.Sent]string{exchange.Nothing: "unsent", exchange.Stale: "stale", exchange.Maybe: "broke"}[e.Sent]
	}
	return err.Error()
}

func (s *stage) state(words []string) {
	roles := worker.Roles()
	if len(words) > 0 {
		roles = []worker.Role{role(words[0])}
	}
	for _, r := range roles {
		for _, w := range s.pools[r].Snapshot().Workers {
			s.Log("%v %s", r, s.describe(w))
		}
		s.mu.Lock()
		all := slices.Clone(s.all)
		s.mu.Unlock()
		for _, w := range all {
			if w.ID().Role == r && w.Departed() && w.Chosen() != 0 {
				s.Log("%v %s (departed)", r, s.describe(w))
			}
		}
	}
}

func (s *stage) describe(w *worker.Worker) string {
	words := []string{short(w.ID()), fmt.Sprintf("load=%d picked=%d", w.Load(), w.Picked())}
	if w.Holds() != 0 {
		words = append(words, fmt.Sprintf("holds=%d", w.Holds()))
	}
	if b := w.Blocked(); b != 0 {
		words = append(words, b.String())
	}
	h := s.dispatcher.Handoffs(w)
	figures := map[string]uint64{"produced": h.Produced, "delivered": h.Delivered, "discarded": h.Discarded, "abandoned": h.Abandoned}
	for reason, n := range s.dispatcher.Abandoned(w) {
		figures["abandoned:"+reason] = n
	}
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if figures[name] != 0 {
			words = append(words, fmt.Sprintf("%s=%d", name, figures[name]))
		}
	}
	return strings.Join(words, " ")
}

// finish lets everything end and checks L9: all loads are 0.
func (s *stage) finish(t *testing.T) {
	for _, cancel := range s.cancels {
		cancel()
	}
	synctest.Wait()
	if err := s.dispatcher.Wait(context.Background()); err != nil {
		t.Error(err)
	}
	if !s.Idle() {
		t.Errorf("the script ends with requests still running: %v", s.Take())
	}
	for _, server := range s.servers {
		_ = server.Close() // the script is over
	}
	for _, role := range worker.Roles() {
		for _, w := range s.pools[role].Snapshot().Workers {
			s.reg.Withdraw("test", role, w.ID().URL, 0)
		}
		s.pools[role].Reconcile()
	}
	for _, w := range s.all {
		if w.Chosen() != 0 || w.ChosenWork() != (worker.Work{}) {
			t.Errorf("%s ends with load %d, holds %d, work %+v", w.ID(), w.Load(), w.Holds(), w.ChosenWork())
		}
	}
	time.Sleep(2 * time.Minute) // idle connections and timers end
}

func split(d *datadriven.TestData) (words []string, opts map[string]string) {
	opts = make(map[string]string)
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) > 0 {
			opts[arg.Key] = strings.Join(arg.Vals, ",")
		} else {
			words = append(words, arg.Key)
		}
	}
	return words, opts
}

func role(s string) worker.Role {
	for _, r := range worker.Roles() {
		if r.String() == s {
			return r
		}
	}
	panic("unknown role " + strconv.Quote(s))
}

func reason(s string) worker.Block {
	for b := worker.Pending; b <= worker.Full; b <<= 1 {
		if b.String() == s {
			return b
		}
	}
	panic("unknown reason " + strconv.Quote(s))
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func short(id worker.ID) string { return strings.TrimPrefix(id.String(), "http://") }
