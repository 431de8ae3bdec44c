//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/baton-llm/baton/internal/zmtp"
)

// soakTime is how long TestSoak runs: SOAK_TIME, or a little.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("SOAK_TIME")
	if text == "" {
		return 15 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("SOAK_TIME: %v", err)
	}
	return d
}

// sample is what must stay flat.
type sample struct{ goroutines, fds, heap, series float64 }

func (f *fleet) sample() sample {
	f.t.Helper()
	m, err := f.metrics()
	if err != nil {
		f.t.Fatal(err)
	}
	return sample{
		goroutines: m.sum("go_goroutines"), fds: m.sum("process_open_fds"),
		heap: m.sum("go_memstats_heap_inuse_bytes"), series: float64(len(m)),
	}
}

// TestSoak churns registrations while clients come, stay and leave: workers that
// announce themselves, come back as other processes and fall silent, in numbers.
// Memory, goroutines, descriptors and series stay flat, and at the end all is as
// at the start.
func TestSoak(t *testing.T) {
	const phantoms, clients = 150, 8
	span := soakTime(t)
	discovery := "127.0.0.1:" + freePort(t)
	f := newFleet(t, fleetConfig{
		prefill: 2, decode: 2, regular: 1,
		router: []string{
			"--vllm-discovery-address", discovery, "--discovery-ttl", "2s",
			"--health-check-interval-secs", "1",
		},
		decodeArgs: []string{"--decode-per-token", "1ms"},
	})
	start := f.sample()
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { ping(ctx, t, discovery, phantoms, newRand(t, 3999)) })
	var mu sync.Mutex
	seen := map[string]int{}
	for n := range clients {
		r := newRand(t, uint64(4000+n))
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				what, err := f.brave(r, fmt.Sprintf("soak, client %d, request %d", n, i))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				seen[what]++
				mu.Unlock()
			}
		})
	}
	// What a warm router needs shows in the first third; the last third must not
	// need more.
	third := span / 3
	early, late := f.watch(ctx, third, 2*third)
	wg.Wait()
	t.Logf("start %+v", start)
	t.Logf("early %+v", early)
	t.Logf("late  %+v", late)
	t.Logf("requests: %v", seen)
	if late.goroutines > 1.2*early.goroutines+20 || late.fds > 1.2*early.fds+20 || late.heap > 1.3*early.heap+16<<20 || late.series > 1.1*early.series+50 {
		t.Errorf("grows: early %+v, late %+v", early, late)
	}
	if seen["right"] == 0 {
		t.Errorf("nothing was answered: %v", seen)
	}
	f.client.close()
	await(t, patience, "as at the start", func() error {
		if end := f.sample(); end.goroutines > start.goroutines+15 || end.fds > start.fds+15 {
			return fmt.Errorf("end %+v, start %+v", end, start)
		}
		m, err := f.metrics()
		if err != nil {
			return err
		}
		// Routes that were used have series of their own; workers that left have none.
		loads := 0
		for name := range m {
			if strings.HasPrefix(name, "baton_worker_load{") {
				loads++
			}
		}
		if loads != len(f.engines()) {
			return fmt.Errorf("%d workers have series, want %d", loads, len(f.engines()))
		}
		return f.ready(len(f.engines()))
	})
}

// watch samples until ctx is done. It returns the largest figures up to a time
// after the start, and from another one on.
func (f *fleet) watch(ctx context.Context, upTo, from time.Duration) (early, late sample) {
	begin := time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		s := f.sample()
		switch at := time.Since(begin); {
		case at <= upTo:
			early.raise(s)
		case at >= from:
			late.raise(s)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return early, late
		}
	}
}

// raise keeps the larger of each figure.
func (most *sample) raise(s sample) {
	most.goroutines, most.fds = max(most.goroutines, s.goroutines), max(most.fds, s.fds)
	most.heap, most.series = max(most.heap, s.heap), max(most.series, s.series)
}

// ping announces workers that nobody is behind, each for a while, under a new
// ZMQ address now and then, with rubbish in between.
func ping(ctx context.Context, t *testing.T, addr string, phantoms int, r *rand.Rand) {
	dealer := zmtp.NewDealer("tcp://"+addr, zmtp.DealerConfig{})
	done := make(chan error, 1)
	go func() { done <- dealer.Run(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		for range 3 {
			n := r.IntN(phantoms)
			payload := msgp.AppendMapHeader(nil, 3)
			for _, field := range [...]string{
				"type", string("PD"[n%2]), "http_address", fmt.Sprintf("127.0.0.1:%d", 1+n),
				"zmq_address", fmt.Sprintf("127.0.0.1:%d", 1000+n*10+r.IntN(3)),
			} {
				payload = msgp.AppendString(payload, field)
			}
			if r.IntN(20) == 0 {
				payload = payload[:r.IntN(len(payload))]
			}
			_ = dealer.Send(payload) // a full queue is the router's back-pressure
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	if err := <-done; err != nil {
		t.Errorf("dealer: %v", err)
	}
}
