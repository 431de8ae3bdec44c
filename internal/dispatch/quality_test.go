//go:build quality

package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/memnet"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// TestQuality prints how well each policy serves conversations on engines whose
// caches are too small for all of them. It measures and compares nothing: what
// it asserts is that the policies had the same work and did all of it.
//
// The clock is virtual, so that neither the machine nor the router's own speed
// is in the figures: they are those of the choices alone. They are the same each
// time, but for the order of what happens in one instant.
func TestQuality(t *testing.T) {
	for _, f := range []trialFleet{
		{name: "8 plain", regular: 8},
		{name: "4 prefill and 4 decode", prefill: 4, decode: 4},
	} {
		for _, l := range trialLoads {
			t.Run(f.name+", "+l.name, func(t *testing.T) {
				talks := newTalks(f, l)
				table := newTrialTable()
				for _, name := range trialPolicies {
					var r trialResult
					synctest.Test(t, func(t *testing.T) { r = runTrial(t, f, name, talks) })
					table.add(name, &r)
				}
				t.Logf("%s\n%s", describeTalks(f, talks), table)
			})
		}
	}
}

// trialPolicies are the policies compared, in their default configurations.
var trialPolicies = []string{"least_wait", "cache_aware", "round_robin", "least_load", "consistent_hash", "sticky"}

// What the engines are like. They compute 10,000 prompt tokens in a second, as a
// large model may, and one prompt after the other, as chunked prefill does in
// effect: only so does a prompt delay the next.
const (
	trialPrefillPerToken = 100 * time.Microsecond
	trialPrefillBase     = 10 * time.Millisecond
	trialDecodePerToken  = 20 * time.Millisecond
	trialBlock           = 16
	// trialShare is the part of all conversations that the caches hold together.
	trialShare = 0.4
)

// trialLoad is how many system prompts the conversations share, and how long
// after each other they begin on one engine that computes prompts.
type trialLoad struct {
	name    string
	systems int
	every   time.Duration
}

// trialLoads have a case with one system prompt because there a match says least:
// every worker that has served anything has one.
var trialLoads = []trialLoad{
	{"low load", 6, 4 * time.Second},
	{"high load", 6, time.Second},
	{"high load with one system prompt", 1, time.Second},
}

// trialFleet is how many workers there are of each role.
type trialFleet struct {
	name                     string
	regular, prefill, decode int
}

// computing is the number of workers that compute prompts.
func (f trialFleet) computing() int { return f.regular + f.prefill }

// talk is one conversation. It is made before any policy sees it, the answers
// that later turns repeat included, so that it is the same for all.
type talk struct {
	session string
	begin   time.Duration
	turns   []turn
}

type turn struct {
	think  time.Duration // after the answer before
	body   []byte
	tokens int // of the prompt
}

// talksPerWorker is the number of conversations for each engine that computes
// prompts. Most of them go on at once.
const talksPerWorker = 16

// newTalks draws the conversations for a fleet. Prompts are lists of
// token ids with three digits: the router then knows their size as exactly as
// the engines, and four bytes of its key are a token, as in English text.
func newTalks(f trialFleet, l trialLoad) []talk {
	rng := rand.New(rand.NewPCG(1, 2))
	between := func(from, to int) int { return from + rng.IntN(to-from+1) }
	text := func(n int) []int {
		ids := make([]int, n)
		for i := range ids {
			ids[i] = between(100, 250)
		}
		return ids
	}
	systems := make([][]int, l.systems)
	for i := range systems {
		systems[i] = text(between(1000, 2000))
	}
	talks := make([]talk, f.computing()*talksPerWorker)
	begin := time.Duration(0)
	for i := range talks {
		begin += time.Duration(rng.ExpFloat64() * float64(l.every) / float64(f.computing()))
		// The first are used most, as in any fleet that serves several applications.
		prompt := slices.Clone(systems[min(rng.IntN(l.systems), rng.IntN(l.systems))])
		tk := talk{session: "talk-" + strconv.Itoa(i), begin: begin}
		for n := range between(4, 8) {
			u := turn{}
			if n > 0 {
				u.think = time.Second + time.Duration(rng.ExpFloat64()*float64(4*time.Second))
			}
			prompt = append(prompt, text(between(200, 600))...) // the last answer, and what the user says to it
			u.tokens = len(prompt)
			u.body = completionOf(prompt, between(32, 128))
			tk.turns = append(tk.turns, u)
		}
		talks[i] = tk
	}
	return talks
}

func completionOf(prompt []int, limit int) []byte {
	ids := make([]string, len(prompt))
	for i, id := range prompt {
		ids[i] = strconv.Itoa(id)
	}
	// Few events: what is measured is the first.
	return fmt.Appendf(nil, `{"model":"m","prompt":[%s],"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_interval":32}`,
		strings.Join(ids, ","), limit)
}

// sizeOf counts requests, the tokens of their prompts, and the tokens of what
// the conversations are at their ends: what a cache would have to hold.
func sizeOf(talks []talk) (requests, prompts, whole int) {
	for _, tk := range talks {
		requests += len(tk.turns)
		for _, u := range tk.turns {
			prompts += u.tokens
		}
		whole += tk.turns[len(tk.turns)-1].tokens
	}
	return requests, prompts, whole
}

func (f trialFleet) blocks(talks []talk) int {
	_, _, whole := sizeOf(talks)
	return int(trialShare*float64(whole)) / f.computing() / trialBlock
}

func describeTalks(f trialFleet, talks []talk) string {
	requests, prompts, _ := sizeOf(talks)
	return fmt.Sprintf("%s: %d conversations begin within %v, %d requests of %d prompt tokens on average, caches of %d tokens",
		f.name, len(talks), talks[len(talks)-1].begin.Round(time.Second), requests, prompts/requests, f.blocks(talks)*trialBlock)
}

// trial is one policy at work on one fleet.
type trial struct {
	t          *testing.T
	net        memnet.Network
	reg        *registry.Registry
	pools      map[worker.Role]*worker.Pool
	dispatcher *dispatch.Dispatcher
	engines    map[worker.Role][]*enginesim.Engine
	servers    []*http.Server

	mu    sync.Mutex // guards what follows
	first []time.Duration
}

// trialResult is what one policy achieved.
type trialResult struct {
	first              []time.Duration // times to the first token, sorted
	prompt, cached     int             // tokens
	requests, computed []int           // requests and uncached tokens by worker that computes prompts
}

func runTrial(t *testing.T, f trialFleet, name string, talks []talk) trialResult {
	tr := newTrial(t, name)
	blocks := f.blocks(talks)
	tr.add(worker.Regular, f.regular, blocks)
	tr.add(worker.Prefill, f.prefill, blocks)
	// Decode workers have room: what is compared is where prompts are computed.
	tr.add(worker.Decode, f.decode, 4*blocks)
	var wg sync.WaitGroup
	for i := range talks {
		wg.Go(func() { tr.talk(&talks[i]) })
	}
	wg.Wait()
	r := tr.result(f)
	if requests, prompts, _ := sizeOf(talks); len(r.first) != requests || r.prompt != prompts {
		t.Errorf("%s: %d requests with %d prompt tokens reached the engines whole, not %d with %d", name, len(r.first), r.prompt, requests, prompts)
	}
	tr.finish()
	return r
}

// newTrial wires a dispatcher as the router does. Decode workers are chosen by
// the default policy in any case.
func newTrial(t *testing.T, name string) *trial {
	tr := &trial{
		t: t, reg: registry.New(), pools: make(map[worker.Role]*worker.Pool),
		engines: make(map[worker.Role][]*enginesim.Engine),
	}
	dialects := pd.Set{pd.NewNIXL(30 * time.Second)}
	policies := make(map[worker.Role]policy.Policy)
	tr.dispatcher = dispatch.New(dispatch.Default(), dispatch.Deps{
		Pools: tr.pools, Policies: policies, Dialects: dialects, Health: quiet{},
		NewCarrier: func(base string) (exchange.Carrier, error) {
			return nethttp.New(base, nethttp.Config{Dial: tr.net.DialContext})
		},
	})
	for _, role := range worker.Roles() {
		cfg := policy.DefaultConfig()
		cfg.Role = role
		of := name
		if role == worker.Decode {
			of = policy.Default
		}
		made, err := policy.New(of, cfg)
		if err != nil {
			t.Fatal(err)
		}
		policies[role] = made
		observers := []worker.Observer{tr.dispatcher}
		if o, ok := made.(worker.Observer); ok {
			observers = append(observers, o)
		}
		tr.pools[role] = worker.NewPool(worker.PoolConfig{Role: role, Lister: tr.reg, Dialects: dialects.Bits, Observers: observers})
	}
	return tr
}

// add starts n engines with so many blocks, and registers them.
func (tr *trial) add(role worker.Role, n, blocks int) {
	tr.t.Helper()
	for i := range n {
		addr := fmt.Sprintf("%v-%d:8000", role, i)
		cfg := enginesim.Config{
			Role: role.String(), Advertise: addr, Dial: tr.net.DialContext,
			BlockSize: trialBlock, Blocks: blocks, PrefillSlots: 1,
			PrefillBase: trialPrefillBase, PrefillPerToken: trialPrefillPerToken, DecodePerToken: trialDecodePerToken,
		}
		reg := worker.Registration{ID: worker.ID{Role: role, URL: "http://" + addr}}
		if role != worker.Regular {
			cfg.Connector, reg.Endpoint.Dialect = enginesim.ConnectorNIXL, "nixl"
		}
		e, err := enginesim.New(cfg)
		if err != nil {
			tr.t.Fatal(err)
		}
		listener, err := tr.net.Listen(addr)
		if err != nil {
			tr.t.Fatal(err)
		}
		server := e.NewServer()
		go func() { _ = server.Serve(listener) }() // until finish closes it
		if _, _, err := tr.reg.Register("test", reg, 0); err != nil {
			tr.t.Fatal(err)
		}
		tr.engines[role], tr.servers = append(tr.engines[role], e), append(tr.servers, server)
	}
	tr.pools[role].Reconcile()
	for _, w := range tr.pools[role].Snapshot().Workers {
		// As health does: it bounds what the prefix index remembers of a worker.
		w.SetEngine(&worker.Engine{CacheTokens: int64(blocks * trialBlock)})
	}
}

// talk holds one conversation.
func (tr *trial) talk(tk *talk) {
	time.Sleep(tk.begin)
	for i, u := range tk.turns {
		time.Sleep(u.think)
		const path = "/v1/completions"
		req := new(openai.Request)
		if err := req.ParseJSON(openai.FindRoute(path, nil), u.body); err != nil {
			tr.t.Error(err)
			return
		}
		call := &dispatch.Call{
			Request: req, ID: fmt.Sprintf("%s-%d", tk.session, i),
			Head: exchange.Head{Method: http.MethodPost, Target: path, Fields: exchange.Fields{
				{Name: "Content-Type", Value: "application/json"}, {Name: "X-Session-Id", Value: tk.session},
			}},
		}
		sink := &timedSink{start: time.Now()}
		out := tr.dispatcher.Do(context.Background(), call, sink)
		if out.Err != nil || sink.status != http.StatusOK {
			tr.t.Errorf("%s: status %d, error %v", call.ID, sink.status, out.Err)
			return
		}
		tr.mu.Lock()
		tr.first = append(tr.first, sink.first)
		tr.mu.Unlock()
	}
}

// timedSink is a client that looks at its watch.
type timedSink struct {
	start  time.Time
	status int
	first  time.Duration // from start to the first event
}

func (k *timedSink) Start(status int, _ exchange.Fields) error {
	k.status = status
	return nil
}

func (k *timedSink) Write([]byte) error {
	if k.first == 0 {
		k.first = time.Since(k.start)
	}
	return nil
}

func (*timedSink) Abort() {}

func (tr *trial) result(f trialFleet) trialResult {
	role := worker.Regular
	if f.prefill > 0 {
		role = worker.Prefill
	}
	r := trialResult{first: tr.first}
	slices.Sort(r.first)
	for _, e := range tr.engines[role] {
		s := e.Stats()
		r.prompt += s.PromptTokens
		r.cached += s.CachedTokens
		r.computed = append(r.computed, s.PromptTokens-s.CachedTokens)
		r.requests = append(r.requests, s.Paths["/v1/completions"])
	}
	return r
}

// finish ends everything, and checks that nothing is left of the load.
func (tr *trial) finish() {
	if err := tr.dispatcher.Wait(context.Background()); err != nil {
		tr.t.Error(err)
	}
	for _, role := range worker.Roles() {
		workers := tr.pools[role].Snapshot().Workers
		for _, w := range workers {
			if w.Chosen() != 0 || w.ChosenWork() != (worker.Work{}) {
				tr.t.Errorf("%s ends with load %d, holds %d, work %+v", w.ID(), w.Load(), w.Holds(), w.ChosenWork())
			}
			tr.reg.Withdraw("test", role, w.ID().URL, 0)
		}
		tr.pools[role].Reconcile()
		for _, e := range tr.engines[role] {
			if s := e.Stats(); s.ViolationCount > 0 || s.PinnedHandoffs > 0 {
				tr.t.Errorf("%v: %d hand-offs are left, %d violations: %q", role, s.PinnedHandoffs, s.ViolationCount, s.Violations)
			}
			e.Close()
		}
	}
	for _, server := range tr.servers {
		_ = server.Close() // the trial is over
	}
	time.Sleep(2 * time.Minute) // idle connections and timers end
}

// trialTable is the table of one workload, a line for each policy.
type trialTable struct {
	strings.Builder

	w *tabwriter.Writer
}

func newTrialTable() *trialTable {
	tt := new(trialTable)
	tt.w = tabwriter.NewWriter(&tt.Builder, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tt.w, "policy\thit share\tfirst token p50\tp90\tp99\tmean\trequests max/mean\tcomputed max/mean\t")
	return tt
}

func (tt *trialTable) add(name string, r *trialResult) {
	var sum time.Duration
	for _, d := range r.first {
		sum += d
	}
	mean := sum / time.Duration(max(1, len(r.first)))
	fmt.Fprintf(tt.w, "%s\t%.1f %%\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t\n",
		name, 100*float64(r.cached)/float64(max(1, r.prompt)),
		inMillis(quantile(r.first, 0.5)), inMillis(quantile(r.first, 0.9)), inMillis(quantile(r.first, 0.99)), inMillis(mean),
		unevenness(r.requests), unevenness(r.computed))
}

// String returns the table as far as it was written.
func (tt *trialTable) String() string {
	_ = tt.w.Flush() // into memory
	return tt.Builder.String()
}

func inMillis(d time.Duration) string {
	return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
}

// quantile returns the least of the sorted values that a share of them does not
// exceed.
func quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

// unevenness is how much the busiest of all has in terms of the mean: 1 is even.
func unevenness(list []int) float64 {
	sum := 0
	for _, n := range list {
		sum += n
	}
	return float64(slices.Max(list)*len(list)) / float64(max(1, sum))
}
