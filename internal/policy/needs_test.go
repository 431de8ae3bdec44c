package policy_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/prefix"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// TestNeeds is what each policy asks of a request in each role, once however
// often it is picked for, and that it gets by without.
func TestNeeds(t *testing.T) {
	t.Parallel()
	needs := map[string][]string{
		"least_load": nil, "round_robin": nil, "random": nil, "power_of_two": nil,
		"least_wait":      {"key", "root"},
		"cache_aware":     {"key", "root"},
		"sticky":          {"session"},
		"consistent_hash": {"placement", "session"},
		"rendezvous_hash": {"placement", "session"},
	}
	for _, name := range policy.Names() {
		for _, role := range worker.Roles() {
			t.Run(name+"/"+role.String(), func(t *testing.T) {
				t.Parallel()
				want := needs[name]
				if name == "least_wait" && role == worker.Decode {
					want = nil
				}
				pool, p := newPool(t, name, role, 3)
				full := &source{root: []string{"m", ""}, key: text("A4000"), session: "s", placement: "x"}
				bare := &source{}
				for _, request := range []*policy.Request{
					{Source: full, Model: "m"}, {Source: bare, Model: "m"}, {Work: worker.Work{Waiting: 9, Held: 9}}, {},
				} {
					chosen := make(map[*worker.Worker]bool)
					for range 12 {
						choice := p.Prepare(request, pool.Snapshot())
						grants, err := worker.Pick(worker.Need{Pool: pool, Take: worker.Acquire, Chooser: choice})
						if err != nil {
							t.Fatal(err)
						}
						w := grants[0].Worker()
						defer grants[0].Lease.Release()
						chosen[w] = true
						if choice.Why(w).Reason == "" {
							t.Error("no reason")
						}
						if undo := choice.Keep(w); undo != nil && request.Source != full {
							t.Error("affinity without anything to tell the request by")
						}
					}
					if len(chosen) == 1 && request.Source != full {
						t.Error("12 requests without a key all go to one worker")
					}
					request.Done()
				}
				if got := slices.Sorted(maps.Keys(full.asked)); !slices.Equal(got, slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s == "placement" })) {
					t.Errorf("asks for %v of a request that has all", got)
				}
				if got := slices.Sorted(maps.Keys(bare.asked)); !slices.Equal(got, want) {
					t.Errorf("asks for %v of a request that has nothing, want %v", got, want)
				}
				for _, src := range []*source{full, bare} {
					for what, n := range src.asked {
						if n != 1 {
							t.Errorf("asks for the %s %d times", what, n)
						}
					}
				}
			})
		}
	}
}

// newPool returns a pool of n workers named w0 and on, and the policy it has.
func newPool(t testing.TB, name string, role worker.Role, n int) (*worker.Pool, policy.Policy) {
	t.Helper()
	cfg := small()
	cfg.Role = role
	p, err := policy.New(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	reg := registry.New()
	for i := range n {
		if _, _, err := reg.Register("test", worker.Registration{ID: worker.ID{Role: role, URL: fmt.Sprintf("http://w%d", i)}}, 0); err != nil {
			t.Fatal(err)
		}
	}
	pc := worker.PoolConfig{Role: role, Lister: reg}
	if o, ok := p.(worker.Observer); ok {
		pc.Observers = []worker.Observer{o}
	}
	pool := worker.NewPool(pc)
	pool.Reconcile()
	return pool, p
}

// TestChooseAllocatesNothing compares with a policy that does nothing but look.
func TestChooseAllocatesNothing(t *testing.T) {
	picks := func(name string, role worker.Role) float64 {
		pool, p := newPool(t, name, role, 8)
		request := &policy.Request{Work: worker.Work{Waiting: 1000, Held: 1000}, Source: &source{key: text("A4000"), session: "s"}}
		choice := p.Prepare(request, pool.Snapshot())
		return testing.AllocsPerRun(50, func() {
			grants, err := worker.Pick(worker.Need{Pool: pool, Take: worker.Acquire, Chooser: choice})
			if err != nil {
				t.Fatal(err)
			}
			grants[0].Lease.Release()
		})
	}
	for _, role := range worker.Roles() {
		want := picks("least_load", role)
		for _, name := range policy.Names() {
			if got := picks(name, role); got != want {
				t.Errorf("%s on %v: a pick allocates %v times, want %v", name, role, got, want)
			}
		}
	}
}

// TestBursts picks from many goroutines at once while workers come and go.
func TestBursts(t *testing.T) {
	t.Parallel()
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := policy.New(name, small())
			if err != nil {
				t.Fatal(err)
			}
			r := newRingOf(t, p, "a", "b", "c", "d")
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := range 40 {
						if g == 0 && i%8 == 7 {
							r.reg.Renew(r.worker(string("abcd"[i/8%4])).ID())
							continue
						}
						src := &source{key: text("S1000") + strings.Repeat(fmt.Sprintf("%d-%d", g, i%5), 100), session: fmt.Sprint(g, i%5)}
						request := &policy.Request{Work: worker.Work{Waiting: 100, Held: 200}, Source: src}
						choice := p.Prepare(request, r.pool.Snapshot())
						grants, err := worker.Pick(worker.Need{Pool: r.pool, Take: worker.Acquire, Chooser: choice})
						if err != nil {
							t.Error(err)
							return
						}
						undo := choice.Keep(grants[0].Worker())
						if i%3 == 0 && undo != nil {
							undo()
						}
						grants[0].Lease.Release()
						request.Done()
					}
				})
			}
			wg.Wait()
			sessions := int64(0)
			for _, w := range r.pool.Snapshot().Workers {
				if w.Chosen() != 0 || w.ChosenWork() != (worker.Work{}) {
					t.Errorf("%s ends with load %d and work %+v", w.Label(), w.Load(), w.ChosenWork())
				}
				if p, ok := p.(*policy.Sticky); ok {
					if p.HomeOf(w) < 0 {
						t.Errorf("%s is home to %d sessions", w.Label(), p.HomeOf(w))
					}
					sessions += p.HomeOf(w)
				}
			}
			if p, ok := p.(interface{ IndexStats() prefix.Stats }); ok && p.IndexStats().Owners != 4 {
				t.Errorf("4 workers are there, and the index has %d owners", p.IndexStats().Owners)
			}
			if p, ok := p.(*policy.Sticky); ok && sessions > int64(p.Sessions()) {
				t.Errorf("workers are home to %d sessions, and %d are known", sessions, p.Sessions())
			}
		})
	}
}

// TestSlotGoesOn makes a choice ready, and then the worker that matches is
// replaced: its successor has the slot, and nothing of what it was sent.
func TestSlotGoesOn(t *testing.T) {
	t.Parallel()
	for _, p := range []policy.Policy{policy.NewLeastWait(small()), policy.NewCacheAware(small())} {
		r := newRingOf(t, p, "a")
		r.own(p, "a", "A4000")
		request := &policy.Request{Work: worker.Work{Waiting: 1000}, Source: &source{key: text("A4000")}}
		choice := p.Prepare(request, r.pool.Snapshot())
		old := r.worker("a")
		r.reg.Renew(old.ID())
		grants, err := worker.Pick(worker.Need{Pool: r.pool, Take: worker.Acquire, Chooser: choice})
		if err != nil {
			t.Fatal(err)
		}
		w := grants[0].Worker()
		if w == old || w.Slot() != old.Slot() || w.Work().Waiting != 1000 || choice.Why(w).Reason == "prefix" {
			t.Errorf("%s: %v in slot %d is said to have cached all but %d of 1000 tokens (%s)",
				p.Name(), w.ID(), w.Slot(), w.Work().Waiting, choice.Why(w).Reason)
		}
	}
}

// TestStickyBurst is case 3.36: new sessions at one instant spread evenly.
func TestStickyBurst(t *testing.T) {
	t.Parallel()
	cfg := small()
	cfg.MaxSessions = 1000
	p := policy.NewSticky(cfg)
	r := newRingOf(t, p, "a", "b", "c", "d")
	var wg sync.WaitGroup
	for i := range 40 {
		for range 5 { // turns of one session, all at once
			wg.Go(func() { r.pickFor(p, &source{session: strconv.Itoa(i)}) })
		}
	}
	wg.Wait()
	for _, w := range r.pool.Snapshot().Workers {
		if n := p.HomeOf(w); n != 10 {
			t.Errorf("%s is home to %d of 40 sessions", w.Label(), n)
		}
	}
	for i := range 100_000 {
		p.Prepare(&policy.Request{Source: &source{session: "once-" + strconv.Itoa(i)}}, r.pool.Snapshot())
	}
	if n := p.Sessions(); n != cfg.MaxSessions {
		t.Errorf("%d sessions are remembered, want %d", n, cfg.MaxSessions)
	}
	for _, w := range r.pool.Snapshot().Workers {
		if n := p.HomeOf(w); n != 0 {
			t.Errorf("%s is home to %d sessions that are forgotten", w.Label(), n)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	cfg := policy.DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	zero := 0.0
	for flag, set := range map[string]func(*policy.Config){
		"--cache-threshold":       func(c *policy.Config) { c.CacheThreshold = 1.1 },
		"--cache-threshold must":  func(c *policy.Config) { c.CacheThreshold = zero / zero },
		"--balance-abs-threshold": func(c *policy.Config) { c.BalanceAbs = -1 },
		"--balance-rel-threshold": func(c *policy.Config) { c.BalanceRel = 0.9 },
		"--balance-token-window":  func(c *policy.Config) { c.TokenWindow = -1 },
		"--max-tree-size":         func(c *policy.Config) { c.MaxTreeSize = 0 },
		"--prefix-index-memory":   func(c *policy.Config) { c.IndexMemory = 0 },
		"--session-ttl":           func(c *policy.Config) { c.SessionTTL = 0 },
		"--max-sessions":          func(c *policy.Config) { c.MaxSessions = 0 },
	} {
		cfg := policy.DefaultConfig()
		set(&cfg)
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), flag) {
			t.Errorf("%s: error %v", flag, err)
		}
	}
}

// BenchmarkPick is one request from the first question to the last: key, match,
// pick, record. The prompts are 8 KiB long, half of them shared.
func BenchmarkPick(b *testing.B) {
	for _, workers := range []int{8, 256, 2048} {
		for _, name := range policy.Names() {
			b.Run(fmt.Sprintf("%s/%d", name, workers), func(b *testing.B) {
				pool, p := newPool(b, name, worker.Regular, workers)
				sources := make([]source, 64)
				for i := range sources {
					sources[i] = source{key: text("S4096") + strings.Repeat(fmt.Sprintf("%8d", i), 512), session: strconv.Itoa(i)}
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					request := &policy.Request{Work: worker.Work{Waiting: 2048, Held: 2300}, Source: &sources[i%64]}
					choice := p.Prepare(request, pool.Snapshot())
					grants, err := worker.Pick(worker.Need{Pool: pool, Take: worker.Acquire, Chooser: choice})
					if err != nil {
						b.Fatal(err)
					}
					choice.Keep(grants[0].Worker())
					grants[0].Lease.Release()
					request.Done()
				}
			})
		}
	}
}
