package enginesim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestAnyHistory runs pairs of legs with departures, faults, bad
// timing and too few blocks, and checks that everything is given back.
func TestAnyHistory(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			small := func(c *enginesim.Config) {
				c.MaxSeqs, c.Blocks, c.Validity = 3, 30, 2*time.Second
				c.PrefillPerToken, c.DecodePerToken = ms, 20*ms
			}
			p, d := pair(w, func(p, d *enginesim.Config) { small(p); small(d) })
			for _, e := range []*enginesim.Engine{p, d} {
				e.Fault(enginesim.Fault{Action: "reset", Point: "accept", Every: 11})
				e.Fault(enginesim.Fault{Action: "cut", Point: "chunk:2", Every: 7})
				e.Fault(enginesim.Fault{Action: "abort", Point: "chunk:3", Every: 5})
				e.Fault(enginesim.Fault{Action: "delay", Delay: 300 * ms, Point: "headers", Every: 3})
			}
			var wg sync.WaitGroup
			for i := range 60 {
				rnd := rand.New(rand.NewPCG(seed, uint64(i)))
				wg.Go(func() { oneHistory(t, w, rnd, fmt.Sprintf("h%d", i)) })
			}
			wg.Wait()
			synctest.Wait()
			for _, e := range []*enginesim.Engine{p, d} {
				s := e.Stats()
				over := s.HandoffsCollected + s.HandoffsFreed + s.HandoffsExpired
				if s.Running != 0 || s.Waiting != 0 || s.Connections != 0 || s.HandoffsProduced != over+s.PinnedHandoffs ||
					(s.UsedBlocks != 0) != (s.PinnedBlocks != 0) {
					t.Errorf("seed %d: %+v", seed, s)
				}
				for _, v := range s.Violations {
					if !strings.Contains(v, "after its validity") {
						t.Errorf("seed %d: %s", seed, v)
					}
				}
			}
			time.Sleep(3 * time.Second)
			if s := p.Stats(); s.UsedBlocks != 0 || s.PinnedHandoffs != 0 {
				t.Errorf("seed %d: %+v", seed, s)
			}
			for _, e := range []*enginesim.Engine{p, d} {
				for _, r := range e.Requests() {
					if r.Outcome == "" || r.End.IsZero() {
						t.Errorf("seed %d: %+v", seed, r)
					}
				}
			}
		})
	}
}

// oneHistory sends both legs of a request, leaving when it pleases.
func oneHistory(t *testing.T, w *world, rnd *rand.Rand, id string) {
	time.Sleep(time.Duration(rnd.IntN(3000)) * ms)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+rnd.IntN(5000))*ms)
	defer cancel()
	text := strings.Repeat("abc", 1+rnd.IntN(60))
	a := w.doContext(ctx, prefill(addrP, id, text))
	if a.err != nil || a.status != 200 || !strings.Contains(a.body, "remote_host") {
		return
	}
	q := decode(addrD, id, text, a.handoff(t))
	if rnd.IntN(2) == 0 {
		q.body = strings.Replace(q.body, "{", `{"stream":true,`, 1)
	}
	w.doContext(ctx, q)
}
