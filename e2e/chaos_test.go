//go:build e2e

package e2e_test

import (
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
)

// TestChaos kills and restarts engines at random while clients come, stay and
// leave. Whatever happens, an answer that looks whole is the right one, and in
// the end nothing is left.
func TestChaos(t *testing.T) {
	const clients = 12
	span := 10 * time.Second
	if testing.Short() {
		span = 4 * time.Second
	}
	f := newFleet(t, fleetConfig{
		prefill: 2, decode: 2, regular: 2,
		router:      []string{"--health-check-interval-secs", "1", "--health-failure-threshold", "1"},
		prefillArgs: []string{"--prefill-base", "10ms"},
		decodeArgs:  []string{"--decode-per-token", "2ms"},
		regularArgs: []string{"--decode-per-token", "2ms"},
	})
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	until := time.Now().Add(span)
	for n := range clients {
		r := newRand(t, uint64(2000+n))
		wg.Go(func() {
			for i := 0; time.Now().Before(until); i++ {
				what, err := f.brave(r, fmt.Sprintf("chaos, client %d, request %d", n, i))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				seen[what]++
				mu.Unlock()
			}
		})
	}
	r := newRand(t, 1999)
	kills := 0
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for ; time.Now().Before(until); <-tick.C {
		e := f.engines()[r.IntN(len(f.engines()))]
		e.kill()
		kills++
		<-tick.C
		e.restart()
	}
	wg.Wait()
	t.Logf("%d engines killed", kills)
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%-40s %6d", what, seen[what])
	}
	if seen["right"] == 0 || seen["left"] == 0 {
		t.Errorf("nothing was answered, or nobody has left: %v", seen)
	}
	await(t, patience, "all workers ready again", func() error { return f.ready(len(f.engines())) })
	await(t, patience, "idle", f.quiet)
	for _, api := range apis {
		f.ask(question{api: api, prompt: "Calm again?", tokens: 8, stream: true})
	}
}

// begin sends a random request and does not wait for the answer. One in oneIn of
// those to the API is for a regular worker.
func (f *fleet) begin(r *rand.Rand, prompt string, whole *api, oneIn int) (question, *wire, error) {
	q := randomQuestion(r, prompt)
	body := q.body()
	if r.IntN(oneIn) == 0 && q.api == whole {
		body = q.body(map[string]any{"prompt_logprobs": 1})
	}
	w, err := dialWire(f.addr)
	if err != nil {
		return q, nil, err
	}
	if err := w.post(q.api.path, newID(), body); err != nil {
		w.Close()
		return q, nil, err
	}
	return q, w, nil
}

// brave sends a request, and leaves or stays. It returns how that went, and an
// error if an answer says that it is whole and is not.
func (f *fleet) brave(r *rand.Rand, prompt string) (string, error) {
	q, w, err := f.begin(r, prompt, completions, 3)
	if err != nil {
		return "not sent", err
	}
	defer w.Close()
	if r.IntN(3) == 0 {
		_ = w.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(80)) * time.Millisecond))
		_, _ = io.Copy(io.Discard, w.in) // whatever comes until then
		w.leave(leaves[r.IntN(len(leaves))])
		return "left", nil
	}
	a, err := w.read()
	if err != nil {
		return "no answer", fmt.Errorf("%s: no answer: %w", q, err)
	}
	code, message := a.code()
	wrong := checkRaw(q, a)
	switch {
	case wrong == nil:
		return "right", nil
	case a.status >= http.StatusInternalServerError && a.err == nil && message != "":
		return fmt.Sprintf("%d %s", a.status, code), nil
	case a.status == http.StatusOK && errors.Is(a.err, io.ErrUnexpectedEOF):
		return "broken off", nil
	case a.status == http.StatusOK && q.stream && strings.Contains(string(a.body), `"error": {"message": "Internal server error"`):
		return "an engine's own error event", nil
	case a.status == http.StatusOK && q.stream && q.api.name == "responses" && !strings.Contains(string(a.body), q.api.last):
		return "an engine's own early end", nil // it ends such streams without a word
	case a.status == http.StatusOK && q.stream && q.api.name == "messages" && strings.Contains(string(a.body), "event: error\n"):
		return "an engine's own error event", nil
	}
	return "wrong", fmt.Errorf("%s: %w", q, wrong)
}
