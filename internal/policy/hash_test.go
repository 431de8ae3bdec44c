package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// TestFBIHash has its answers from a program that follows the definitions of
// MurmurHash64A and FurcHash in another language.
func TestFBIHash(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]uint64{
		"":                           0xc0663e029346e424,
		"a":                          0x29d1ab12ec5fea11,
		"http://a:8000:0":            0x2361effc0cfe6be1,
		"http://10.0.0.1:8000@1:159": 0x31fa9ee706a6e5db,
		"header:x-session-id:s1":     0xe4f5071aa09e0e3d,
		"user:alice":                 0xccb3ce7850815e85,
		"request:hello":              0xc1675fe631cfab05,
		"session:é":                  0x945b293c71103faa,
		"0123456789abcdef":           0x4f2c0d1adbffd8f3,
		strings.Repeat("x", 1000):    0x2d636b664cc63f4d,
	} {
		if got := policy.FBIHash(key); got != want {
			t.Errorf("hash of %.40q is %#x, want %#x", key, got, want)
		}
	}
	sum := uint32(0)
	for i := range 3000 { // some need many bits
		sum = sum*31 + policy.Furc(fmt.Sprintf("key%d", i), 33)
	}
	if sum != 2467222055 {
		t.Errorf("buckets of 3000 keys sum up to %d", sum)
	}
	for m, want := range map[uint32][]uint32{
		0:   {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		1:   {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		2:   {0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1},
		3:   {0, 2, 0, 1, 2, 2, 1, 0, 1, 0, 0, 1},
		100: {22, 2, 40, 73, 47, 21, 66, 15, 93, 86, 62, 14},
	} {
		var got []uint32
		for i := range want {
			got = append(got, policy.Furc(fmt.Sprintf("key%d", i), m))
		}
		if !slices.Equal(got, want) {
			t.Errorf("buckets of %d are %v, want %v", m, got, want)
		}
	}
}

func moved(before, after string) (n int) {
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

// The placement of the sessions s0 to s23 on four workers, from the same program
// as the hashes.
var placed = map[string]string{
	"consistent_hash": "122003210322300101212011",
	"rendezvous_hash": "022123100012320230330333",
}

var fourWorkers = []string{"w0:8000", "w1:8000", "w2:8000", "w3:8000"}

func TestHashPlacement(t *testing.T) {
	t.Parallel()
	for name, want := range placed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := policy.New(name, small())
			if err != nil {
				t.Fatal(err)
			}
			r := newRing(t, fourWorkers...)
			place := func(except ...string) string {
				var order strings.Builder
				for i := range len(want) {
					src := &source{header: fmt.Sprintf("s%d", i)}
					got, grant := r.pickFor(p, src, except...)
					grant.Lease.Release()
					order.WriteString(strings.TrimSuffix(strings.TrimPrefix(got, "w"), ":8000"))
				}
				return order.String()
			}
			all := place()
			if all != want {
				t.Errorf("sessions go to\n%s, want\n%s", all, want)
			}
			// A worker that is not there gives its sessions to all others, and no
			// other session moves. When it is back so are they.
			r.worker("w1:8000").Block(worker.Down)
			less := place()
			r.worker("w1:8000").Unblock(worker.Down)
			spread := make(map[byte]bool)
			for i := range want {
				switch {
				case want[i] != '1' && less[i] != want[i]:
					t.Errorf("session %d moves from %c to %c", i, want[i], less[i])
				case want[i] == '1':
					spread[less[i]] = true
				}
			}
			if len(spread) < 2 || spread['1'] {
				t.Errorf("the sessions of a worker that is down go to %v", spread)
			}
			if again := place(); again != want {
				t.Errorf("with all back sessions go to\n%s, want\n%s", again, want)
			}
			// One more worker takes about its share, and only for itself.
			r.add("w4:8000")
			more := place()
			for i := range want {
				if more[i] != want[i] && more[i] != '4' {
					t.Errorf("session %d moves from %c to %c", i, want[i], more[i])
				}
			}
			if n := moved(want, more); n == 0 || n > 12 {
				t.Errorf("%d of 24 sessions move to a fifth worker", n)
			}
			// A history of memberships leaves no trace.
			r.reg.Withdraw("test", worker.Regular, "http://w4:8000", 0)
			r.reg.Renew(r.worker("w2:8000").ID())
			r.pool.Reconcile()
			if again := place(); again != want {
				t.Errorf("after it has left sessions go to\n%s, want\n%s", again, want)
			}
		})
	}
}

func TestHashOfText(t *testing.T) {
	t.Parallel()
	r := newRing(t, fourWorkers...)
	p := policy.NewConsistentHash()
	for text, want := range map[string]string{
		"short":                                 "w3:8000",
		strings.Repeat("once upon a time ", 10): "w2:8000",
	} {
		for range 3 {
			if got, _ := r.pickFor(p, &source{placement: text}); got != want {
				t.Errorf("%.20q goes to %s, want %s", text, got, want)
			}
		}
	}
}

func TestHashWithoutKeyGoesByLoad(t *testing.T) {
	t.Parallel()
	for name := range placed {
		p, err := policy.New(name, small())
		if err != nil {
			t.Fatal(err)
		}
		r := newRing(t, "a", "b", "c", "d")
		r.want(p, 8, "abcdabcd")
	}
}

// TestBoundedLoad is case 3.16: sessions that hash to one worker do not pin all
// of their load to it.
func TestBoundedLoad(t *testing.T) {
	t.Parallel()
	r := newRing(t, "a", "b", "c", "d")
	p := policy.NewConsistentHash()
	home, first := r.pickFor(p, &source{session: "hot"})
	counts := map[string]int{home: 1}
	for range boundFloor - 1 {
		name, _ := r.pickFor(p, &source{session: "hot"})
		counts[name]++
	}
	if counts[home] != boundFloor {
		t.Errorf("the first requests of a session go to %v", counts)
	}
	for range 96 {
		name, _ := r.pickFor(p, &source{session: "hot"})
		counts[name]++
	}
	for name, n := range counts {
		if n > 32 { // 100 / 4 x 1.25, rounded up
			t.Errorf("%s has %d of 100 requests, more than 1.25 times the mean: %v", name, n, counts)
		}
	}
	if counts[home] < 31 {
		t.Errorf("the session's own worker has only %d: %v", counts[home], counts)
	}
	first.Lease.Release()
	if name, _ := r.pickFor(p, &source{session: "hot"}); name != home {
		t.Errorf("with room again the session goes to %s, not %s", name, home)
	}
}

const boundFloor = 4

// TestHashNewcomer picks with a snapshot that is older than the only candidate.
func TestHashNewcomer(t *testing.T) {
	t.Parallel()
	for name := range placed {
		p, err := policy.New(name, small())
		if err != nil {
			t.Fatal(err)
		}
		r := newRing(t, "a")
		old := r.pool.Snapshot()
		r.add("b")
		choice := p.Prepare(&policy.Request{Source: &source{session: "s"}}, old)
		grants, err := worker.Pick(worker.Need{
			Pool: r.pool, Take: worker.Acquire, Chooser: choice,
			Want: worker.Want{Except: []*worker.Worker{r.worker("a")}},
		})
		if err != nil || grants[0].Worker() != r.worker("b") || choice.Why(grants[0].Worker()).Reason != "load" {
			t.Errorf("%s: %v, %v, %s", name, grants, err, choice.Why(grants[0].Worker()).Reason)
		}
	}
}

func TestPowerOfTwo(t *testing.T) {
	t.Parallel()
	r := newRing(t, "a", "b", "c")
	drawn := uint64(0)
	p := policy.NewPowerOfTwo(func() uint64 { return drawn })
	draw := func(first, step uint64) { drawn = first<<32 | step }
	draw(0, 0) // a, then b
	release(r.want(p, 1, "a"))
	draw(2, 1) // c, then b
	release(r.want(p, 1, "c"))
	leases := r.want(p, 4, "cbcb")
	draw(1, 1) // b, then a
	leases = append(leases, r.want(p, 3, "aab")...)
	draw(1, 0)
	leases = append(leases, r.want(p, 1, "b", "a", "c")...) // b is all there is
	release(leases)

	t.Run("load counts", func(t *testing.T) {
		t.Parallel()
		r := newRing(t, "a", "b", "c", "d")
		p := policy.NewPowerOfTwo(nil)
		_, leases := r.burst(p, 400)
		for _, w := range r.pool.Snapshot().Workers {
			if w.Load() < 85 || w.Load() > 115 {
				t.Errorf("%s has %d of 400", w.Label(), w.Load())
			}
		}
		release(leases)
	})
}
