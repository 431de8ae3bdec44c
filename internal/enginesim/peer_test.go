package enginesim_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestPeerAddresses runs pairs whose ZMQ addresses have other forms.
func TestPeerAddresses(t *testing.T) {
	directory := map[string]string{"10.0.0.1:1": "[::1]:8000", "10.0.0.2:1": "[::1]:8100"}
	for _, tt := range []struct {
		name, connector   string
		prefill, decode   string // ZMQ addresses as set
		prefill2, decode2 string // as they are
		peer              func(string) string
	}{
		{"IPv6", "p2p", "", "", "[::1]:9000", "[::1]:9100", nil},
		{"IPv6 as vLLM writes it", "p2p", "::1:9000", "::1:9100", "::1:9000", "::1:9100", nil},
		{"a directory", "p2p", "10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1", "10.0.0.2:1", func(a string) string { return directory[a] }},
		{
			"moriio, IPv6", "moriio", "", "",
			"host:::1,handshake:9000,notify:10000", "host:::1,handshake:9100,notify:10100", nil,
		},
		{
			"moriio, another order", "moriio", "notify:1,handshake:9000,host:::1", "",
			"notify:1,handshake:9000,host:::1", "host:::1,handshake:9100,notify:10100", nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.start(enginesim.Config{Role: "prefill", Connector: tt.connector, Advertise: "[::1]:8000", ZMQAddress: tt.prefill, PeerHTTP: tt.peer})
				d := w.start(enginesim.Config{Role: "decode", Connector: tt.connector, Advertise: "[::1]:8100", ZMQAddress: tt.decode, PeerHTTP: tt.peer})
				q, r := moriPrefill(1), moriDecode(1)
				if tt.connector == "p2p" {
					q, r = p2pPrefill(1), p2pDecode(1)
				}
				q.addr, r.addr = "[::1]:8000", "[::1]:8100"
				id := pairID(tt.prefill2, tt.decode2, 1)
				a, b := w.do(q.named(id)), w.do(r.named(id))
				if a.status != 200 || b.text(t) != plainAnswer(w) {
					t.Errorf("%+v\n%+v", a, b)
				}
				clean(t, p, d)
			})
		})
	}
}

// TestAnyMoriioHistory runs pairs of legs with departures and faults, and checks that
// everything is given back.
func TestAnyMoriioHistory(t *testing.T) {
	for _, mode := range []string{"READ", "WRITE"} {
		for seed := range uint64(3) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, d := moriPair(w, mode, func(p, d *enginesim.Config) {
					for _, c := range []*enginesim.Config{p, d} {
						c.MaxSeqs, c.Blocks = 3, 30
						c.PrefillPerToken, c.DecodePerToken = ms, 20*ms
						c.Validity, c.TransferTimeout, c.DeferTimeout = 2*time.Second, 2*time.Second, 2*time.Second
					}
				})
				for _, e := range []*enginesim.Engine{p, d} {
					e.Fault(enginesim.Fault{Action: "reset", Every: 11})
					e.Fault(enginesim.Fault{Action: "abort", Point: "first", Every: 7})
					e.Fault(enginesim.Fault{Action: "eos", Every: 5})
					e.Fault(enginesim.Fault{Path: "/sim/kv/read", Action: "reset", Every: 9})
					e.Fault(enginesim.Fault{Path: "/sim/kv/blocks", Action: "delay", Delay: time.Second, Every: 6})
				}
				var wg sync.WaitGroup
				for n := range 40 {
					rnd := rand.New(rand.NewPCG(seed, uint64(n)))
					wg.Go(func() {
						time.Sleep(time.Duration(rnd.IntN(3000)) * ms)
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(3000))*ms)
						defer cancel()
						r := moriDecode(n)
						a := w.later(ctx, moriPrefill(n))
						if mode == "READ" {
							a := <-a
							if a.err != nil || a.status != 200 {
								return
							}
							r = decode(addrD, moriID(n), prompt, a.handoff(t))
							if strings.Contains(r.body, `"kv_transfer_params":null`) {
								return
							}
						}
						w.doContext(ctx, r)
					})
				}
				wg.Wait()
				time.Sleep(3 * time.Second)
				synctest.Wait()
				for _, e := range []*enginesim.Engine{p, d} {
					s := e.Stats()
					if over := s.HandoffsCollected + s.HandoffsFreed + s.HandoffsExpired; s.Running != 0 || s.Waiting != 0 ||
						s.UsedBlocks != 0 || s.PinnedHandoffs != 0 || s.DecodesWaiting != 0 || s.Connections != 0 || s.HandoffsProduced != over {
						t.Errorf("%s, seed %d: %+v", mode, seed, s)
					}
				}
				if s := p.Stats(); s.HandoffsCollected == 0 {
					t.Errorf("%s, seed %d: %+v", mode, seed, s)
				}
			})
		}
	}
}
