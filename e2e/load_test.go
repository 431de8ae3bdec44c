//go:build e2e

package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestManyClients has 64 clients ask all at once, whatever route, streamed and
// not, and wants each to get its own answer.
func TestManyClients(t *testing.T) {
	t.Parallel()
	const clients, each = 64, 8
	for _, fleet := range []struct {
		name string
		cfg  fleetConfig
	}{
		{"plain", fleetConfig{regular: 4}},
		{"pd", fleetConfig{prefill: 2, decode: 3}},
	} {
		t.Run(fleet.name, func(t *testing.T) {
			t.Parallel()
			cfg := fleet.cfg
			work := []string{"--prefill-per-token", "50us", "--decode-per-token", "1ms"}
			cfg.prefillArgs, cfg.decodeArgs, cfg.regularArgs = work, work, work
			f := newFleet(t, cfg)
			began := time.Now()
			var wg sync.WaitGroup
			for n := range clients {
				r := newRand(t, uint64(n))
				wg.Go(func() {
					for i := range each {
						q := randomQuestion(r, fmt.Sprintf("client %d, request %d", n, i))
						if err := q.check(f.client.post(q.api.path, q.body())); err != nil {
							t.Errorf("%s: %v", q, err)
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d requests in %s", clients*each, time.Since(began).Round(time.Millisecond))
			await(t, patience, "idle", f.quiet)
			total := map[string]uint64{}
			for _, e := range f.engines() {
				w := f.look(e)
				t.Logf("%s worker picked %d times", e.role, w.Picked)
				total[e.role] += w.Picked
				if w.Picked == 0 {
					t.Errorf("%s was never picked", e)
				}
			}
			for role, n := range total {
				if n != clients*each {
					t.Errorf("%s workers were picked %d times for %d requests", role, n, clients*each)
				}
			}
			if n := f.metric("baton_retries_total"); n != 0 {
				t.Errorf("%v legs were tried again", n)
			}
			produced, delivered := f.metric("baton_handoffs_total", `outcome="produced"`), f.metric("baton_handoffs_total", `outcome="delivered"`)
			if produced != float64(total[prefill]) || delivered != produced {
				t.Errorf("of %v hand-offs %v were delivered, want all of %d", produced, delivered, total[prefill])
			}
		})
	}
}

// randomQuestion makes a question of which the prompt begins as given.
func randomQuestion(r *rand.Rand, prompt string) question {
	prompt += strings.Repeat(" and so on", r.IntN(30))
	return question{
		api: apis[r.IntN(len(apis))], stream: r.IntN(2) == 0, tokens: 1 + r.IntN(40), prompt: prompt,
	}
}

// TestShares wants equal requests shared equally: those in a row by turns, those
// at once by load.
func TestShares(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 2, decode: 4})
	q := question{api: completions, prompt: "Share and share alike", tokens: 3}
	for range 16 {
		f.ask(q)
	}
	await(t, patience, "idle", f.quiet)
	picked := func(e *engine) int { return int(f.look(e).Picked) }
	for _, e := range f.engines() {
		if got, want := picked(e), 16/len(f.role(e.role)); got != want {
			t.Errorf("in a row: %s was picked %d times, want %d", e, got, want)
		}
	}

	const burst = 64
	openPrefill := f.gate(prefill, enginesim.Fault{Gate: "prefill"})
	openDecode := f.gate(decode, enginesim.Fault{Gate: "decode"})
	var answers []<-chan *answer
	for range burst {
		answers = append(answers, f.client.async(q.api.path, q.body()))
	}
	checkLoads := func(role string, want int64) {
		t.Helper()
		for _, e := range f.role(role) {
			if w := f.look(e); w.Load != want {
				t.Errorf("%s: load %d, want %d", e, w.Load, want)
			}
		}
	}
	awaitGate(t, f.prefill, "prefill", burst)
	checkLoads(prefill, burst/2)
	checkLoads(decode, 0) // L10
	openPrefill()
	awaitGate(t, f.decode, "decode", burst)
	await(t, patience, "prefill loads 0 during decode", func() error {
		for _, e := range f.prefill {
			if w := f.look(e); w.Load != 0 {
				return fmt.Errorf("%+v", w)
			}
		}
		return nil
	})
	checkLoads(decode, burst/4)
	openDecode()
	for _, ch := range answers {
		if err := q.check(receive(t, ch)); err != nil {
			t.Error(err)
		}
	}
	await(t, patience, "idle", f.quiet)
}
