//go:build e2e

package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestLeaveInTime measures how long after a client has left the worker's
// connection is closed. Both times are of this machine's clock. The aim is
// 200 ms; a machine that is busy with other things is given a second.
func TestLeaveInTime(t *testing.T) {
	const each, limit = 5, time.Second
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1, regular: 1})
	hang := func(leg, at string) enginesim.Fault {
		return enginesim.Fault{Leg: leg, Point: at, Action: "hang", Times: 1} // not the leg that gives a hand-off back
	}
	whole := map[string]any{"prompt_logprobs": 1} // for the regular worker
	for _, phase := range []struct {
		name   string
		on     *engine
		fault  enginesim.Fault
		stream bool
		more   map[string]any
		events int // that have come when the client leaves
		head   bool
	}{
		{"during prefill", f.prefill[0], hang("prefill", "accept"), false, nil, 0, false},
		{"during prefill, streamed", f.prefill[0], hang("prefill", "accept"), true, nil, 0, false},
		{"before headers", f.decode[0], hang("decode", "headers"), false, nil, 0, false},
		{"before headers, streamed", f.decode[0], hang("decode", "headers"), true, nil, 0, false},
		{"before first token", f.decode[0], hang("decode", "first"), true, nil, 0, true},
		{"mid-stream", f.decode[0], hang("decode", "chunk:4"), true, nil, 4, true},
		{"mid-body", f.decode[0], hang("decode", "chunk:40"), false, nil, 0, true},
		{"plain, before headers", f.regular[0], hang("plain", "accept"), false, whole, 0, false},
		{"plain, before first token", f.regular[0], hang("plain", "first"), true, whole, 0, true},
		{"plain, mid-stream", f.regular[0], hang("plain", "chunk:4"), true, whole, 4, true},
	} {
		q := question{api: chat, prompt: "Are you still there?", tokens: 10, stream: phase.stream}
		var took []time.Duration
		for i := range each * len(leaves) {
			how := leaves[i%len(leaves)]
			remove := phase.on.fault(phase.fault)
			w, id := dial(t, f.addr), newID()
			if err := w.post(q.api.path, id, q.body(phase.more)); err != nil {
				t.Fatal(err)
			}
			await(t, patience, phase.name+" reached", func() error {
				r, err := phase.on.record(id)
				if err == nil && (len(r.Faults) == 0 || r.Events < phase.events || phase.head && r.Status == 0) {
					err = fmt.Errorf("%+v", r)
				}
				return err
			})
			left := time.Now()
			w.leave(how)
			var end time.Time
			await(t, patience, fmt.Sprintf("%s, %s: the worker's connection is closed", phase.name, how), func() error {
				r, err := phase.on.record(id)
				if err == nil && r.Outcome == "" {
					err = errNotYet
				}
				if err == nil && r.Outcome != enginesim.OutcomeAbort {
					t.Errorf("%s: outcome %q", phase.name, r.Outcome)
				}
				end = r.End
				return err
			})
			took = append(took, end.Sub(left))
			if took[i] > limit {
				t.Errorf("%s, %s: the worker's connection was closed after %s", phase.name, how, took[i])
			}
			if err := w.awaitEnd(); how == leaveHalf && err != nil {
				t.Errorf("%s, %s: %v", phase.name, how, err)
			}
			remove()
			await(t, patience, "idle", f.quiet) // a hand-off given back late would meet the next fault
		}
		slices.Sort(took)
		t.Logf("%-27s median %7s, slowest %7s of %d", phase.name,
			took[len(took)/2].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond), len(took))
	}
	f.noneLeft(t)
}

// TestLeaveBetweenLegs has the client leave when prefill has answered and decode
// has not admitted the request: the hand-off must not stay pinned, whether
// decode, which has the request, looks at it after all or drops it unseen.
func TestLeaveBetweenLegs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1})
	for _, unseen := range []bool{false, true} {
		for _, stream := range []bool{false, true} {
			for _, how := range leaves {
				what := fmt.Sprintf("%s, stream %t, unseen %t", how, stream, unseen)
				at := point("decode", "accept")
				var open func()
				if unseen {
					at.Action, at.Times = "hang", 1 // not the leg that gives it back
					open = f.decode[0].fault(at)
				} else {
					open = f.gate(decode, at)
				}
				w, id := dial(t, f.addr), newID()
				q := question{api: chat, prompt: "I am off.", tokens: 5, stream: stream}
				if err := w.post(q.api.path, id, q.body()); err != nil {
					t.Fatal(err)
				}
				await(t, patience, what+": decode has the request", func() error {
					r, err := f.decode[0].record(id)
					if err == nil && len(r.Faults) == 0 {
						err = errNotYet
					}
					return err
				})
				w.leave(how)
				await(t, patience, what+": the request is over", func() error {
					if n := f.metric("baton_requests_active"); n != 0 {
						return fmt.Errorf("%v requests are active", n)
					}
					return nil
				})
				open()
				f.noneLeft(t)
				if t.Failed() {
					t.Fatal(what)
				}
			}
		}
	}
	f.ask(question{api: chat, prompt: "And I stay.", tokens: 5})
}

var errNotYet = errors.New("not yet")

// noneLeft wants all loads and holds gone, the engines idle, and every hand-off
// that the router has heard of collected or given back, far before its validity
// of 30 s is over. What it cannot have heard of is a hand-off that prefill made
// at the moment in which the client left, so that its answer found nobody.
func (f *fleet) noneLeft(t *testing.T) {
	t.Helper()
	await(t, 10*time.Second, "idle", f.quiet)
	var pinned, produced, expired int
	unheard := 0
	err := poll(10*time.Second, func() error {
		pinned, produced, expired = 0, 0, 0
		for _, e := range f.engines() {
			s, err := e.stats()
			if err != nil {
				return err
			}
			pinned += s.PinnedHandoffs
			produced += s.HandoffsProduced
			expired += s.HandoffsExpired
			if e.role != prefill && s.UsedBlocks != 0 {
				return fmt.Errorf("%s: %d blocks used", e, s.UsedBlocks)
			}
		}
		m, err := f.metrics()
		if err != nil {
			return err
		}
		unheard = produced - int(m.sum("baton_handoffs_total", `outcome="produced"`))
		if pinned > unheard {
			return fmt.Errorf("of %d hand-offs %d are pinned, of which the router never heard of %d", produced, pinned, unheard)
		}
		return nil
	})
	if err != nil {
		t.Errorf("hand-offs not given back: %v", err)
	}
	if expired > unheard {
		t.Errorf("%d hand-offs expired, of which the router never heard of %d", expired, unheard)
	}
	if unheard > 0 {
		t.Logf("%d of %d hand-offs were made as the client left", unheard, produced)
	}
}

// footprint is what a process takes of the system, in its own words.
type footprint struct{ goroutines, fds, connections float64 }

func (f *fleet) footprint() (footprint, error) {
	m, err := f.metrics()
	if err != nil {
		return footprint{}, err
	}
	p := footprint{goroutines: m.sum("go_goroutines"), fds: m.sum("process_open_fds")}
	for _, e := range f.engines() {
		s, err := e.stats()
		if err != nil {
			return p, err
		}
		p.connections += float64(s.Connections)
	}
	return p, nil
}

// TestLeaveStorm has clients leave at random moments, and then wants everything
// as it was before.
func TestLeaveStorm(t *testing.T) {
	const clients = 24
	storm := 30 * time.Second
	if testing.Short() {
		storm = 5 * time.Second
	}
	f := newFleet(t, fleetConfig{
		prefill: 2, decode: 2, regular: 1,
		prefillArgs: []string{"--prefill-base", "15ms", "--prefill-per-token", "50us"},
		decodeArgs:  []string{"--decode-per-token", "3ms"},
		regularArgs: []string{"--prefill-base", "15ms", "--decode-per-token", "3ms"},
	})
	slow := func(e *engine, f enginesim.Fault, d time.Duration) {
		f.Action, f.Delay = "delay", d
		e.fault(f)
	}
	for _, e := range f.decode { // more time between the legs, and before the token
		slow(e, enginesim.Fault{Leg: "decode", Point: "accept", Every: 3}, 40*time.Millisecond)
		slow(e, enginesim.Fault{Leg: "decode", Point: "headers", Every: 4}, 30*time.Millisecond)
		slow(e, enginesim.Fault{Leg: "decode", Point: "first", Every: 4, Nth: 2}, 30*time.Millisecond)
	}
	for _, e := range f.prefill { // a slow transfer of the blocks
		slow(e, enginesim.Fault{Path: "/sim/kv/collect", Every: 3}, 30*time.Millisecond)
	}
	for _, api := range apis { // what is opened once, is open
		f.ask(question{api: api, prompt: "warm", tokens: 2})
	}
	f.client.close()
	var before footprint
	await(t, patience, "idle connections closed", func() (err error) {
		if before, err = f.footprint(); err == nil && before.connections > float64(len(f.engines())) {
			err = fmt.Errorf("%+v", before)
		}
		return err
	})

	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	until := time.Now().Add(storm)
	for n := range clients {
		r := newRand(t, uint64(1000+n))
		wg.Go(func() {
			for i := 0; time.Now().Before(until); i++ {
				what, err := f.visit(r, fmt.Sprintf("storm, client %d, request %d", n, i))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				seen[what]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	total := 0
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%-30s %6d", what, seen[what])
		total += seen[what]
	}
	for _, what := range []string{"left before the head", "left before the first byte", "left after some bytes", "stayed"} {
		if seen[what] == 0 {
			t.Errorf("no client has %s", what)
		}
	}
	began := time.Now()
	f.noneLeft(t)
	t.Logf("%d requests; all gone after %s", total, time.Since(began).Round(time.Millisecond))
	for _, outcome := range []string{"produced", "delivered", "discarded", "abandoned"} {
		t.Logf("hand-offs %s: %v", outcome, f.metric("baton_handoffs_total", `outcome="`+outcome+`"`))
	}
	for _, e := range f.engines() {
		s, err := e.stats()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: outcomes %v, hand-offs %d produced, %d collected, %d freed; %d connections in all",
			e, s.Outcomes, s.HandoffsProduced, s.HandoffsCollected, s.HandoffsFreed, s.ConnectionsTotal)
	}
	var after footprint
	await(t, patience, "goroutines, files and connections as before", func() (err error) {
		const more = 5
		after, err = f.footprint()
		if err == nil && (after.goroutines > before.goroutines+more || after.fds > before.fds+more || after.connections > before.connections+more) {
			err = fmt.Errorf("%+v, before %+v", after, before)
		}
		return err
	})
	t.Logf("footprint %+v, before %+v", after, before)
	f.ask(question{api: chat, prompt: "and now?", tokens: 9, stream: true})
}

// visit sends a request and leaves at a random moment, or stays. It returns what
// it did, and what was wrong.
func (f *fleet) visit(r *rand.Rand, prompt string) (string, error) {
	q, w, err := f.begin(r, prompt, chat, 5)
	if err != nil {
		return "send", err
	}
	defer w.Close()
	if r.IntN(4) == 0 {
		a, err := w.read()
		if err != nil {
			return "stayed", fmt.Errorf("%s: no answer: %w", q, err)
		}
		if err := checkRaw(q, a); err != nil {
			return "stayed", fmt.Errorf("%s: %w", q, err)
		}
		return "stayed", nil
	}
	// Half of the moments are in the first 40 ms, some of them at once.
	stay := time.Duration(r.ExpFloat64() * float64(60*time.Millisecond))
	_ = w.SetReadDeadline(time.Now().Add(stay))
	got, err := io.ReadAll(w.in)
	w.leave(leaves[r.IntN(len(leaves))])
	_, rest, hasHead := bytes.Cut(got, []byte("\r\n\r\n"))
	switch {
	case err == nil:
		return "", fmt.Errorf("%s: the router closed the connection: %q", q, got)
	case hasHead && !bytes.HasPrefix(got, []byte("HTTP/1.1 200 ")):
		return "", fmt.Errorf("%s: answer %q", q, got)
	case len(got) == 0:
		return "left before the head", nil
	case len(rest) == 0:
		return "left before the first byte", nil
	default:
		return "left after some bytes", nil
	}
}

// checkRaw checks an answer read without looking at events.
func checkRaw(q question, a *answer) error {
	if a.status == http.StatusOK && q.stream {
		for part := range strings.SplitSeq(strings.TrimSuffix(string(a.body), "\n\n"), "\n\n") {
			ev := event{}
			for line := range strings.SplitSeq(part, "\n") {
				if v, ok := strings.CutPrefix(line, "data: "); ok {
					ev.data += v
				}
				if v, ok := strings.CutPrefix(line, "event: "); ok {
					ev.name = v
				}
			}
			a.events = append(a.events, ev)
		}
	}
	return q.check(a)
}
