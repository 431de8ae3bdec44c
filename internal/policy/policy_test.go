package policy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// ring is a pool of regular workers named a, b, c and so on.
type ring struct {
	t    *testing.T
	reg  *registry.Registry
	pool *worker.Pool
}

func newRing(t *testing.T, names ...string) *ring {
	t.Helper()
	return newRingOf(t, policy.LeastLoad{}, names...)
}

// newRingOf returns a ring whose pool the policy observes.
func newRingOf(t *testing.T, p policy.Policy, names ...string) *ring {
	t.Helper()
	r := &ring{t: t, reg: registry.New()}
	cfg := worker.PoolConfig{Role: worker.Regular, Lister: r.reg}
	if o, ok := p.(worker.Observer); ok {
		cfg.Observers = append(cfg.Observers, o)
	}
	r.pool = worker.NewPool(cfg)
	r.add(names...)
	return r
}

func (r *ring) add(names ...string) {
	r.t.Helper()
	for _, name := range names {
		reg := worker.Registration{ID: worker.ID{Role: worker.Regular, URL: "http://" + name}}
		if _, _, err := r.reg.Register("test", reg, 0); err != nil {
			r.t.Fatal(err)
		}
	}
	r.pool.Reconcile()
}

func (r *ring) worker(name string) *worker.Worker {
	r.t.Helper()
	for _, w := range r.pool.Snapshot().Workers {
		if w.ID().URL == "http://"+name {
			return w
		}
	}
	r.t.Fatalf("no worker %s", name)
	return nil
}

// pick picks once, with the named workers left out, and returns who was chosen.
func (r *ring) pick(p policy.Policy, take worker.Take, except ...string) (string, worker.Grant) {
	r.t.Helper()
	need := worker.Need{
		Pool: r.pool, Take: take,
		Chooser: p.Prepare(&policy.Request{Work: worker.Work{Waiting: 3, Held: 5}}, r.pool.Snapshot()),
	}
	for _, name := range except {
		need.Want.Except = append(need.Want.Except, r.worker(name))
	}
	grants, err := worker.Pick(need)
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimPrefix(grants[0].Worker().Label(), "http://"), grants[0]
}

// pickFor picks for a request that a policy can ask about, and keeps the choice.
func (r *ring) pickFor(p policy.Policy, src *source, except ...string) (string, worker.Grant) {
	r.t.Helper()
	request := &policy.Request{Work: worker.Work{Waiting: int64(len(src.key) / 4)}, Source: src}
	choice := p.Prepare(request, r.pool.Snapshot())
	need := worker.Need{Pool: r.pool, Take: worker.Acquire, Chooser: choice}
	for _, name := range except {
		need.Want.Except = append(need.Want.Except, r.worker(name))
	}
	grants, err := worker.Pick(need)
	if err != nil {
		r.t.Fatal(err)
	}
	choice.Keep(grants[0].Worker())
	request.Done()
	return strings.TrimPrefix(grants[0].Worker().Label(), "http://"), grants[0]
}

// burst picks n times and keeps the leases.
func (r *ring) burst(p policy.Policy, n int, except ...string) (order string, leases []*worker.Lease) {
	r.t.Helper()
	var chosen strings.Builder
	for range n {
		name, grant := r.pick(p, worker.Acquire, except...)
		chosen.WriteString(name)
		leases = append(leases, grant.Lease)
	}
	return chosen.String(), leases
}

func release(leases []*worker.Lease) {
	for _, l := range leases {
		l.Release()
	}
}

func (r *ring) want(p policy.Policy, n int, want string, except ...string) []*worker.Lease {
	r.t.Helper()
	got, leases := r.burst(p, n, except...)
	if got != want {
		r.t.Errorf("%s chose %s, want %s", p.Name(), got, want)
	}
	return leases
}

func TestNames(t *testing.T) {
	t.Parallel()
	names := policy.Names()
	want := []string{
		"cache_aware", "consistent_hash", "least_load", "least_wait", "power_of_two",
		"random", "rendezvous_hash", "round_robin", "sticky",
	}
	if !slices.Equal(names, want) || !slices.Contains(names, policy.Default) {
		t.Errorf("names %q, want %q", names, want)
	}
	for _, name := range names {
		p, err := policy.New(name, small())
		if err != nil || p.Name() != name {
			t.Errorf("New(%q) = %v, %v", name, p, err)
		}
	}
}

func TestUnknownName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "LEAST_LOAD", "cache"} {
		p, err := policy.New(name, small())
		want := fmt.Sprintf("unknown policy %q: known are %s", name, strings.Join(policy.Names(), ", "))
		if p != nil || err == nil || err.Error() != want {
			t.Errorf("New(%q) = %v, %v, want the error %s", name, p, err, want)
		}
	}
}

// TestChoices is what every policy's choice owes.
func TestChoices(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]string{"least_load": "load", "random": "random", "round_robin": "turn"} {
		p, err := policy.New(name, small())
		if err != nil {
			t.Fatal(err)
		}
		r := newRing(t, "a")
		work := worker.Work{Waiting: 10, Held: 20}
		choice := p.Prepare(&policy.Request{Work: work}, r.pool.Snapshot())
		grants, err := worker.Pick(worker.Need{Pool: r.pool, Take: worker.Acquire, Chooser: choice})
		if err != nil {
			t.Fatal(err)
		}
		a := grants[0].Worker()
		if a.Work() != work {
			t.Errorf("%s adds %+v, want %+v", name, a.Work(), work)
		}
		if choice.Why(a).Reason != reason || choice.Keep(a) != nil {
			t.Errorf("%s gives the reason %q, or has affinity to undo", name, choice.Why(a).Reason)
		}
	}
}

func TestLeastLoad(t *testing.T) {
	t.Parallel()
	p := policy.LeastLoad{}

	t.Run("ties go round", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "c", "a", "b")
		for range 3 {
			release(r.want(p, 3, "abc"))
		}
		// One at a time, all loads are equal at each pick.
		for _, want := range []string{"a", "b", "c", "a", "b", "c"} {
			release(r.want(p, 1, want))
		}
	})
	t.Run("unequal loads end level", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b", "c", "d")
		r.want(p, 3, "bbb", "a", "c", "d")
		r.want(p, 2, "dd", "a", "b", "c")
		r.want(p, 3, "aca") // c second: as little as a, and longer ago
		r.want(p, 4, "cdac")
		for _, w := range r.pool.Snapshot().Workers {
			if w.Load() != 3 {
				t.Errorf("%s ends with load %d", w.Label(), w.Load())
			}
		}
	})
	t.Run("holds count", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b")
		name, held := r.pick(p, worker.AcquireHold)
		if name != "a" {
			t.Errorf("held %s", name)
		}
		for range 3 {
			release(r.want(p, 1, "b")) // a is not loaded, but held
		}
		held.Hold.Drop()
		release(r.want(p, 1, "a"))
	})
	t.Run("others' load counts", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b")
		r.worker("a").SetForeign(3)
		leases := r.want(p, 5, "bbbab") // level at three, then a first
		r.worker("a").SetForeign(0)
		leases = append(leases, r.want(p, 3, "aaa")...)
		release(leases)
	})
	t.Run("tokens do not count", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b")
		big := p.Prepare(&policy.Request{Work: worker.Work{Waiting: 1e6, Held: 1e6}}, r.pool.Snapshot())
		if _, err := worker.Pick(worker.Need{Pool: r.pool, Take: worker.Acquire, Chooser: big}); err != nil {
			t.Fatal(err)
		}
		r.want(p, 3, "bab")
	})
	t.Run("newcomer and returner", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b")
		for range 10 {
			release(r.want(p, 2, "ab"))
		}
		r.worker("b").Block(worker.Down)
		for range 10 {
			release(r.want(p, 1, "a"))
		}
		r.worker("b").Unblock(worker.Down)
		r.add("c")
		// Each is chosen once and then waits like the others.
		for range 3 {
			_, leases := r.burst(p, 3)
			release(leases)
		}
		release(r.want(p, 6, "cbacba"))
	})
	t.Run("burst is even", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b", "c", "d", "e", "f", "g", "h")
		done := make(chan *worker.Lease)
		for range 64 {
			go func() {
				_, grant := r.pick(p, worker.Acquire)
				done <- grant.Lease
			}()
		}
		var leases []*worker.Lease
		for range 64 {
			leases = append(leases, <-done)
		}
		for _, w := range r.pool.Snapshot().Workers {
			if w.Load() != 8 {
				t.Errorf("%s has %d of 64", w.Label(), w.Load())
			}
		}
		release(leases)
	})
}

func TestRoundRobin(t *testing.T) {
	t.Parallel()
	p := policy.RoundRobin{}

	t.Run("in turn, whatever the load", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "b", "c", "a")
		leases := r.want(p, 3, "bbb", "a", "c")
		release(r.want(p, 7, "acbacba"))
		release(leases)
	})
	t.Run("differing candidates starve nobody", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b", "c")
		counts := map[string]int{}
		// Every other request may not use c: c gets its turns from the rest.
		for i := range 300 {
			var except []string
			if i%2 == 0 {
				except = []string{"c"}
			}
			name, grant := r.pick(p, worker.Acquire, except...)
			counts[name]++
			grant.Lease.Release()
		}
		for name, n := range counts {
			if n < 75 {
				t.Errorf("%s was chosen %d of 300 times: %v", name, n, counts)
			}
		}
	})
	t.Run("a hold is a turn", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b")
		_, held := r.pick(p, worker.AcquireHold)
		release(r.want(p, 3, "bab"))
		held.Hold.Drop()
		release(r.want(p, 2, "ab"))
	})
	t.Run("newcomer is next, once", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b")
		release(r.want(p, 5, "ababa"))
		r.add("c")
		release(r.want(p, 6, "cbacba"))
	})
}

func TestRandom(t *testing.T) {
	t.Parallel()
	t.Run("follows what is drawn", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b", "c")
		next := uint64(0)
		p := policy.NewRandom(func() uint64 { next++; return next - 1 })
		release(r.want(p, 6, "abcabc"))
		next = 1
		release(r.want(p, 4, "caca", "b"))
	})
	t.Run("uses all alike, whatever their load", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b", "c", "d")
		p := policy.NewRandom(rand.New(rand.NewPCG(1, 2)).Uint64)
		_, loaded := r.burst(policy.LeastLoad{}, 20, "b", "c", "d")
		counts := map[string]int{}
		const n = 4000
		for range n {
			name, grant := r.pick(p, worker.Acquire)
			counts[name]++
			grant.Lease.Release()
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			if c := counts[name]; c < n/4*9/10 || c > n/4*11/10 {
				t.Errorf("%s was chosen %d of %d times: %v", name, c, n, counts)
			}
		}
		release(loaded)
	})
	t.Run("draws by itself", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b")
		order, leases := r.burst(policy.NewRandom(nil), 200)
		if !strings.Contains(order, "a") || !strings.Contains(order, "b") {
			t.Errorf("200 draws gave %s", order)
		}
		release(leases)
	})
	t.Run("largest draw", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b", "c")
		release(r.want(policy.NewRandom(func() uint64 { return 1<<64 - 1 }), 1, "a")) // 2^64-1 is a multiple of 3
	})
}
