package registry_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// op is one step of a history. The same histories run against a plain model,
// one step after another, and on several goroutines at once.
type op struct {
	Kind   string
	Role   worker.Role
	URL    string
	Source string
	TTL    time.Duration
	ZMQ    string
	Take   worker.Take
	Nth    int // which open grant
	By     time.Duration
}

var opKinds = []string{
	"register", "register", "register", "withdraw", "remove", "renew", "advance", "reconcile",
	"pick", "pick", "pick", "pair", "end", "end", "computed", "start", "block", "unblock",
}

func genOps(most int) *rapid.Generator[[]op] {
	one := rapid.Custom(func(t *rapid.T) op {
		return op{
			Kind:   rapid.SampledFrom(opKinds).Draw(t, "kind"),
			Role:   rapid.SampledFrom([]worker.Role{worker.Prefill, worker.Decode}).Draw(t, "role"),
			URL:    rapid.SampledFrom([]string{"http://a", "http://b", "http://c"}).Draw(t, "url"),
			Source: rapid.SampledFrom([]string{"static", "zmq"}).Draw(t, "source"),
			TTL:    rapid.SampledFrom([]time.Duration{0, 5 * time.Second, 10 * time.Second}).Draw(t, "ttl"),
			ZMQ:    rapid.SampledFrom([]string{"", "z1", "z2"}).Draw(t, "zmq"),
			Take:   rapid.SampledFrom([]worker.Take{worker.Acquire, worker.AcquireHold}).Draw(t, "take"),
			Nth:    rapid.IntRange(0, 7).Draw(t, "nth"),
			By:     rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, 11 * time.Second}).Draw(t, "by"),
		}
	})
	return rapid.SliceOfN(one, 1, most)
}

// modelEntry is what the model knows of one place: a map entry, no pools, no
// stamps, no lazy expiry.
type modelEntry struct {
	generation worker.Generation
	zmq        string
	order      []string // sources, the one whose facts changed last first
	claims     map[string]modelClaim
	lost       map[string]time.Time // ZMQ addresses that lost the entry, and when they were last heard
}

type modelClaim struct {
	zmq     string
	expires time.Time // zero: never
}

type model struct {
	next    map[worker.Role]worker.Generation
	entries map[worker.Role]map[string]*modelEntry
}

func newModel() *model {
	return &model{
		next: map[worker.Role]worker.Generation{},
		entries: map[worker.Role]map[string]*modelEntry{
			worker.Prefill: {}, worker.Decode: {},
		},
	}
}

func (m *model) allocate(role worker.Role, e *modelEntry) {
	m.next[role]++
	e.generation = m.next[role]
}

// merge recomputes the facts of an entry from its claims.
func (m *model) merge(role worker.Role, e *modelEntry) {
	var zmq string
	for _, source := range e.order {
		if zmq == "" {
			zmq = e.claims[source].zmq
		}
	}
	switch {
	case zmq == "" || e.zmq == zmq:
	case e.zmq == "":
		e.zmq = zmq
	default:
		m.allocate(role, e)
		e.zmq = zmq
	}
}

func (m *model) dropClaim(role worker.Role, url, source string) {
	e := m.entries[role][url]
	delete(e.claims, source)
	e.order = slices.DeleteFunc(e.order, func(s string) bool { return s == source })
	if len(e.claims) == 0 {
		delete(m.entries[role], url)
		return
	}
	m.merge(role, e)
}

// expire drops what is past its time, entry by entry.
func (m *model) expire(now time.Time) {
	for role, entries := range m.entries {
		for url, e := range entries {
			var gone []string
			for source, c := range e.claims {
				if !c.expires.IsZero() && !c.expires.After(now) {
					gone = append(gone, source)
				}
			}
			// Claims that end together are judged together.
			for _, source := range gone {
				delete(e.claims, source)
			}
			e.order = slices.DeleteFunc(e.order, func(s string) bool { return slices.Contains(gone, s) })
			switch {
			case len(e.claims) == 0:
				delete(entries, url)
			case len(gone) > 0:
				m.merge(role, e)
			}
		}
	}
}

func (m *model) register(o op, now time.Time) worker.Generation {
	e := m.entries[o.Role][o.URL]
	if e == nil {
		e = &modelEntry{claims: map[string]modelClaim{}, lost: map[string]time.Time{}}
		m.allocate(o.Role, e)
		m.entries[o.Role][o.URL] = e
	} else if at, lost := e.lost[o.ZMQ]; lost && o.TTL > 0 && o.ZMQ != e.zmq && now.Sub(at) <= o.TTL {
		e.lost[o.ZMQ] = now
		return e.generation
	}
	before := e.zmq
	old, had := e.claims[o.Source]
	c := modelClaim{zmq: o.ZMQ}
	if o.TTL > 0 {
		c.expires = now.Add(o.TTL)
	}
	e.claims[o.Source] = c
	if !had || old.zmq != c.zmq {
		e.order = slices.DeleteFunc(e.order, func(s string) bool { return s == o.Source })
		e.order = slices.Insert(e.order, 0, o.Source)
		m.merge(o.Role, e)
	}
	if before != "" && before != e.zmq {
		e.lost[before] = now
		delete(e.lost, e.zmq)
	}
	return e.generation
}

// history runs ops on the real thing.
type history struct {
	reg   *registry.Registry
	pools map[worker.Role]*worker.Pool

	mu      sync.Mutex
	open    []worker.Grant
	added   map[worker.ID]*worker.Worker
	removed map[worker.ID]int
}

func newHistory() *history {
	h := &history{
		reg:     registry.New(),
		pools:   map[worker.Role]*worker.Pool{},
		added:   map[worker.ID]*worker.Worker{},
		removed: map[worker.ID]int{},
	}
	for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
		h.pools[role] = worker.NewPool(worker.PoolConfig{Role: role, Lister: h.reg, Observers: []worker.Observer{h}})
	}
	return h
}

func (h *history) WorkerAdded(w *worker.Worker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.added[w.ID()] = w
}

func (h *history) WorkerRemoved(w *worker.Worker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removed[w.ID()]++
}

func (h *history) registration(o op) worker.Registration {
	return worker.Registration{
		ID:       worker.ID{Role: o.Role, URL: o.URL},
		Endpoint: worker.Endpoint{ZMQ: o.ZMQ},
	}
}

func (h *history) need(role worker.Role, take worker.Take) worker.Need {
	r := &policy.Request{Work: worker.Work{Waiting: 3, Held: 5}}
	return worker.Need{Pool: h.pools[role], Take: take, Chooser: policy.LeastLoad{}.Prepare(r, nil)}
}

// take removes and returns an open grant.
func (h *history) take(nth int) (worker.Grant, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.open) == 0 {
		return worker.Grant{}, false
	}
	i := nth % len(h.open)
	g := h.open[i]
	h.open = slices.Delete(h.open, i, i+1)
	return g, true
}

func (h *history) put(grants ...worker.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range grants {
		if g.Worker() != nil {
			h.open = append(h.open, g)
		}
	}
}

func finish(g worker.Grant) {
	if g.Lease != nil {
		g.Lease.Release()
	}
	if g.Hold != nil {
		g.Hold.Drop()
	}
}

// do runs one op and returns what a pick chose.
func (h *history) do(o op) ([]worker.Grant, error) {
	switch o.Kind {
	case "register":
		_, _, err := h.reg.Register(o.Source, h.registration(o), o.TTL)
		return nil, err
	case "withdraw":
		h.reg.Withdraw(o.Source, o.Role, o.URL, 0)
	case "remove":
		_ = h.reg.Remove(o.Source, o.Role, o.URL, 0) // either way the model knows
	case "renew", "block", "unblock":
		for _, w := range h.pools[o.Role].Snapshot().Workers {
			if w.ID().URL != o.URL {
				continue
			}
			switch o.Kind {
			case "renew":
				h.reg.Renew(w.ID())
			case "block":
				w.Block(worker.Down)
			case "unblock":
				w.Unblock(worker.Down)
			}
		}
	case "reconcile":
		h.pools[o.Role].Reconcile()
	case "pick":
		grants, err := worker.Pick(h.need(o.Role, o.Take))
		h.put(grants...)
		return grants, err
	case "pair":
		grants, err := worker.Pick(h.need(worker.Prefill, worker.Acquire), h.need(worker.Decode, o.Take))
		h.put(grants...)
		return grants, err
	case "end":
		if g, ok := h.take(o.Nth); ok {
			finish(g)
		}
	case "computed", "start":
		if g, ok := h.take(o.Nth); ok {
			if o.Kind == "computed" && g.Lease != nil {
				g.Lease.Computed()
			}
			if o.Kind == "start" && g.Hold != nil {
				lease, err := g.Hold.Start()
				if err != nil {
					return nil, nil //nolint:nilerr // departed: the hold is gone, as it should be
				}
				g = worker.Grant{Lease: lease}
			}
			h.put(g)
		}
	}
	return nil, nil
}

// checkLoads compares every worker's figures with the open grants.
func (h *history) checkLoads() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	leases, holds := map[*worker.Worker]int64{}, map[*worker.Worker]int64{}
	for _, g := range h.open {
		if g.Lease != nil {
			leases[g.Worker()]++
		} else {
			holds[g.Worker()]++
		}
	}
	for id, w := range h.added {
		if w.Load() != leases[w] || w.Holds() != holds[w] {
			return fmt.Errorf("%v %s: load %d, holds %d, want %d and %d", id.Role, id, w.Load(), w.Holds(), leases[w], holds[w])
		}
		if held := w.ChosenWork().Held; held != 5*(leases[w]+holds[w]) {
			return fmt.Errorf("%v %s: held %d tokens with %d leases and holds", id.Role, id, held, leases[w]+holds[w])
		}
	}
	return nil
}

// TestModel compares registry, pools, leases and holds with a plain model after
// every step of random histories.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := genOps(60).Draw(rt, "ops")
		var verdict failure
		synctest.Test(t, func(*testing.T) { runModel(&verdict, ops) })
		if verdict.text != "" {
			rt.Fatal(verdict.text)
		}
	})
}

// failure keeps the first thing that went wrong.
type failure struct{ text string }

func (f *failure) Fatalf(format string, args ...any) {
	if f.text == "" {
		f.text = fmt.Sprintf(format, args...)
	}
}

func runModel(t *failure, ops []op) {
	h, m := newHistory(), newModel()
	for _, o := range ops {
		present := map[worker.Role]map[string]worker.ID{worker.Prefill: {}, worker.Decode: {}}
		for role, pool := range h.pools {
			for _, w := range pool.Snapshot().Workers {
				present[role][w.ID().URL] = w.ID()
			}
		}
		if o.Kind == "advance" {
			time.Sleep(o.By)
		}
		m.expire(time.Now())
		grants, err := h.do(o)
		switch o.Kind {
		case "register":
			m.register(o, time.Now())
		case "withdraw", "remove":
			e := m.entries[o.Role][o.URL]
			if e == nil {
				break
			}
			_, claimed := e.claims[o.Source]
			if claimed && (o.Kind == "withdraw" || len(e.claims) == 1) {
				m.dropClaim(o.Role, o.URL, o.Source)
			}
		case "renew":
			e := m.entries[o.Role][o.URL]
			if e != nil && present[o.Role][o.URL].Generation == e.generation {
				m.allocate(o.Role, e)
			}
		case "pick", "pair":
			checkPick(t, h, m, o, grants, err)
		}
		for _, pool := range h.pools {
			pool.Reconcile()
		}
		checkMembership(t, h, m)
		if err := h.checkLoads(); err != nil {
			t.Fatalf("after %+v: %v", o, err)
		}
		if t.text != "" {
			return
		}
	}
	for _, g := range h.open {
		finish(g)
	}
	h.open = nil
	if err := h.checkLoads(); err != nil {
		t.Fatalf("at the end: %v", err)
	}
}

func checkMembership(t *failure, h *history, m *model) {
	for role, pool := range h.pools {
		got := map[string]worker.Generation{}
		for _, w := range pool.Snapshot().Workers {
			got[w.ID().URL] = w.ID().Generation
			if zmq := m.entries[role][w.ID().URL]; zmq != nil && w.Endpoint().ZMQ != zmq.zmq {
				t.Fatalf("%v %s: ZMQ %q, want %q", role, w.ID(), w.Endpoint().ZMQ, zmq.zmq)
			}
			if h.removed[w.ID()] != 0 || h.added[w.ID()] != w {
				t.Fatalf("%v %s: a member that observers do not have", role, w.ID())
			}
		}
		if len(got) != len(m.entries[role]) {
			t.Fatalf("%v: got %v, want %d entries", role, got, len(m.entries[role]))
		}
		for url, e := range m.entries[role] {
			if got[url] != e.generation {
				t.Fatalf("%v %s: generation %d, want %d", role, url, got[url], e.generation)
			}
		}
	}
	for id, n := range h.removed {
		if n != 1 {
			t.Fatalf("%v %s removed %d times", id.Role, id, n)
		}
	}
}

// checkPick requires that a pick failed only for want of candidates, and chose
// among the least loaded of the registered, unblocked workers.
func checkPick(t *failure, h *history, m *model, o op, grants []worker.Grant, err error) {
	needed := []worker.Role{o.Role}
	if o.Kind == "pair" {
		needed = []worker.Role{worker.Prefill, worker.Decode}
	}
	ready := func(role worker.Role) (all []*worker.Worker) {
		for _, w := range h.pools[role].Snapshot().Workers {
			if e := m.entries[role][w.ID().URL]; e != nil && e.generation == w.ID().Generation && w.Blocked() == 0 {
				all = append(all, w)
			}
		}
		return all
	}
	for i, role := range needed {
		candidates := ready(role)
		if err != nil {
			if len(candidates) == 0 {
				return
			}
			continue
		}
		w := grants[i].Worker()
		if !slices.Contains(candidates, w) {
			t.Fatalf("%v %s chosen, which is no candidate", role, w.ID())
		}
		for _, c := range candidates {
			before := w.Chosen() - 1
			if c != w && c.Chosen() < before {
				t.Fatalf("%v %s chosen with load %d before %s with %d", role, w.ID(), before, c.ID(), c.Chosen())
			}
		}
	}
	if err != nil {
		t.Fatalf("%v although every role has candidates", err)
	}
}

// TestConcurrentHistories runs the histories of TestModel on four goroutines at
// once and checks what must hold at the end of any of them.
func TestConcurrentHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory()
		ops := genOps(120).Draw(t, "ops")
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := g; i < len(ops); i += 4 {
					_, _ = h.do(ops[i]) // a pick may find nobody
				}
			})
		}
		wg.Wait()
		if err := h.checkLoads(); err != nil {
			t.Fatal(err)
		}
		for _, g := range h.open {
			finish(g)
		}
		h.open = nil
		if err := h.checkLoads(); err != nil {
			t.Fatal(err)
		}
		members := 0
		for _, pool := range h.pools {
			pool.Reconcile()
			for _, w := range pool.Snapshot().Workers {
				if h.added[w.ID()] != w || h.removed[w.ID()] != 0 || w.Departed() {
					t.Fatalf("%v %s: pool and observers disagree", w.ID().Role, w.ID())
				}
				members++
			}
		}
		if members != len(h.added)-len(h.removed) {
			t.Fatalf("%d members, but %d added and %d removed", members, len(h.added), len(h.removed))
		}
	})
}

// TestBurst is L8 for many at once: 64 concurrent picks over 8 equal workers are
// 8 each.
func TestBurst(t *testing.T) {
	h := newHistory()
	for i := range 8 {
		url := fmt.Sprintf("http://w%d", i)
		if _, _, err := h.reg.Register("test", h.registration(op{Role: worker.Decode, URL: url}), 0); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if _, err := h.do(op{Kind: "pick", Role: worker.Decode, Take: worker.Acquire}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, w := range h.pools[worker.Decode].Snapshot().Workers {
		if w.Load() != 8 {
			t.Errorf("%s: load %d, want 8", w.ID(), w.Load())
		}
	}
}

// TestLeakedLease shows that a lease that nobody releases is reported once it
// has been collected, and that a released one is not.
func TestLeakedLease(t *testing.T) {
	leaks := make(chan worker.ID, 2)
	reg := registry.New()
	pool := worker.NewPool(worker.PoolConfig{Role: worker.Decode, Lister: reg, Leaked: func(id worker.ID) { leaks <- id }})
	for _, url := range []string{"http://a", "http://b"} {
		if _, _, err := reg.Register("test", worker.Registration{ID: worker.ID{Role: worker.Decode, URL: url}}, 0); err != nil {
			t.Fatal(err)
		}
	}
	pick := func() *worker.Lease {
		grants, err := worker.Pick(worker.Need{
			Pool: pool, Take: worker.Acquire, Chooser: policy.LeastLoad{}.Prepare(&policy.Request{}, nil),
		})
		if err != nil {
			t.Fatal(err)
		}
		return grants[0].Lease
	}
	pick().Release()
	forgotten := pick().Worker().ID()
	for range 100 {
		runtime.GC()
		select {
		case id := <-leaks:
			if id != forgotten {
				t.Errorf("got a leak on %v, want %v", id, forgotten)
			}
			return
		default:
			runtime.Gosched()
		}
	}
	t.Error("the forgotten lease was not reported")
}
