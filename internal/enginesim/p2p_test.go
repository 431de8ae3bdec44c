package enginesim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

const (
	zmqP = "p:9000"
	zmqD = "d:9000"
)

// pairID is a request id that names two engines. n makes it unique.
func pairID(prefill, decode string, n int) string {
	return fmt.Sprintf("___prefill_addr_%s___decode_addr_%s_%032x", prefill, decode, n)
}

func p2pID(n int) string { return pairID(zmqP, zmqD, n) }

// p2pPair starts a prefill and a decode engine.
func p2pPair(w *world, change func(p, d *enginesim.Config)) (p, d *enginesim.Engine) {
	return pair(w, func(p, d *enginesim.Config) {
		p.Connector, d.Connector = "p2p", "p2p"
		if change != nil {
			change(p, d)
		}
	})
}

// legs are a request's bodies for both engines of a pair, by path.
func plainLeg(addr, id, path, body string) request {
	return request{addr: addr, id: id, path: path, body: body}
}

func p2pPrefill(n int) request {
	return plainLeg(addrP, p2pID(n), "", string(object("prompt", prompt, "max_tokens", 1)))
}

func p2pDecode(n int) request {
	return plainLeg(addrD, p2pID(n), "", string(object("prompt", prompt, "max_tokens", 12)))
}

// streamed makes a request stream.
func (q request) streamed() request {
	q.body = strings.Replace(q.body, "{", `{"stream":true,`, 1)
	return q
}

func TestP2P(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := p2pPair(w, func(p, d *enginesim.Config) {
			p.PrefillPerToken = ms
			d.PrefillPerToken = time.Hour // would show
		})
		a := w.do(p2pPrefill(1))
		if a.status != 200 || a.handoff(t) != "null" || a.get(t, "id") != "cmpl-"+p2pID(1) {
			t.Errorf("%+v", a)
		}
		if s := d.Stats(); s.P2PUnclaimed != 1 {
			t.Errorf("%+v", s)
		}
		a = w.do(p2pDecode(1))
		if a.text(t) != plainAnswer(w) || cached(t, a) != len(prompt)-1 {
			t.Errorf("%+v", a)
		}
		if s := d.Stats(); s.P2PUnclaimed != 0 || s.UsedBlocks != 0 || s.RemoteTokens != len(prompt)-1 {
			t.Errorf("%+v", s)
		}
		if s := p.Stats(); s.HandoffsProduced != 1 || s.UsedBlocks != 0 {
			t.Errorf("%+v", s)
		}
		clean(t, p, d)
	})
}

// TestP2PForms runs requests whose internal ids differ in form.
func TestP2PForms(t *testing.T) {
	const hi = `"messages":[{"role":"user","content":"hi there, who is it?"}]`
	for _, tt := range []struct{ path, prefill, decode string }{
		{"/v1/chat/completions", `{` + hi + `,"max_tokens":1}`, `{` + hi + `,"max_tokens":5}`},
		{"/v1/chat/completions", `{` + hi + `,"max_completion_tokens":1}`, `{` + hi + `,"max_completion_tokens":5,"stream":true}`},
		{"/v1/completions", `{"prompt":["one prompt","two"],"max_tokens":1}`, `{"prompt":["one prompt","two"],"max_tokens":3}`},
		{"/v1/completions", `{"prompt":"one prompt","n":2,"max_tokens":1}`, `{"prompt":"one prompt","n":2,"max_tokens":3}`},
		{"/v1/completions", `{"prompt":"x","max_tokens":1}`, `{"prompt":"x","max_tokens":3}`}, // nothing to hand over
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			p, d := p2pPair(w, nil)
			if a := w.do(plainLeg(addrP, p2pID(1), tt.path, tt.prefill)); a.status != 200 {
				t.Errorf("%+v", a)
			}
			if a := w.do(plainLeg(addrD, p2pID(1), tt.path, tt.decode)); a.status != 200 {
				t.Errorf("%+v", a)
			}
			if s := d.Stats(); s.P2PUnclaimed != 0 || s.Halted {
				t.Errorf("%+v", s)
			}
			if strings.Contains(tt.decode, "[\"one") {
				expect(t, p, "with 2 prompts")
				expect(t, d, "with 2 prompts")
				return
			}
			clean(t, p, d)
		})
	}
}

// TestP2PDeath checks what kills an engine, and how it is dead.
func TestP2PDeath(t *testing.T) {
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	full := p2pID(1)
	for _, tt := range []struct{ name, addr, id, path, body string }{
		{"no id", addrP, "", "/v1/completions", `{"prompt":"hello","max_tokens":1}`},
		{"no id, decode", addrD, "", "/v1/completions", `{"prompt":"hello","max_tokens":9}`},
		{"no id, stream", addrD, "", "/v1/chat/completions", `{` + hi + `,"max_tokens":9,"stream":true}`},
		{"plain id", addrP, "warm-up", "/v1/chat/completions", `{` + hi + `,"max_tokens":1}`},
		{"no decode address", addrP, strings.Replace(full, "decode", "other", 1), "/v1/completions", `{"prompt":"hello","max_tokens":1}`},
		{"no port", addrP, strings.Replace(full, zmqD, "d", 1), "/v1/completions", `{"prompt":"hello","max_tokens":1}`},
		{"no prefill address", addrD, strings.Replace(full, "prefill", "other", 1), "/v1/completions", `{"prompt":"hello"}`},
		{"responses", addrP, full, "/v1/responses", `{"input":"hello","max_output_tokens":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				reg := &pings{start: time.Now()}
				defer w.router(reg)()
				p, d := p2pPair(w, func(p, d *enginesim.Config) { p.Discovery, d.Discovery = "router:30001", "router:30001" })
				victim, survivor := p, d
				if tt.addr == addrD {
					victim, survivor = d, p
				}
				defer runs(t, victim.RunPings)()
				reg.take()
				victim.Fault(enginesim.Fault{RequestID: "underway", Action: "gate", Gate: "g"})
				under := w.later(t.Context(), request{addr: tt.addr, id: "underway", body: `{"prompt":"hello","max_tokens":1}`})
				synctest.Wait()
				if a := w.do(plainLeg(tt.addr, tt.id, tt.path, tt.body)); a.err == nil {
					t.Errorf("%+v", a)
				}
				if a := <-under; a.err == nil {
					t.Errorf("under way: %+v", a)
				}
				for _, path := range []string{"/health", "/metrics", "/v1/models"} {
					if a := w.do(request{addr: tt.addr, method: "GET", path: path}); a.err == nil {
						t.Errorf("%s: %+v", path, a)
					}
				}
				expect(t, victim, "no addresses in the request id")
				clean(t, survivor)
				if s := victim.Stats(); !s.Dead || s.Running != 0 || s.UsedBlocks != 0 || s.Connections != 0 {
					t.Errorf("%+v", s)
				}
				time.Sleep(10 * time.Second)
				if got := reg.take(); got != "" {
					t.Errorf("the dead registers: %s", got)
				}
				if a := w.do(request{addr: tt.addr, path: "/sim/revive"}); a.status != 204 {
					t.Errorf("%+v", a)
				}
				if got, want := reg.take(), `10s `; !strings.HasPrefix(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
				w.do(p2pPrefill(7))
				if a := w.do(p2pDecode(7)); a.status != 200 || victim.Stats().Dead {
					t.Errorf("%+v", a)
				}
			})
		})
	}
}

// TestP2PPaths checks what old engines do not serve.
func TestP2PPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := p2pPair(w, nil)
		a := w.do(plainLeg(addrP, p2pID(1), "/v1/messages", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}`))
		b := w.do(plainLeg(addrD, p2pID(1), "/inference/v1/generate", `{"token_ids":[5,6],"sampling_params":{}}`))
		if a.status != 404 || b.status != 404 {
			t.Errorf("%+v\n%+v", a, b)
		}
		expect(t, p, "have no such path")
		expect(t, d, "have no such path")
	})
}

// TestP2PStandstill checks that a decode leg without prefill stops a whole engine.
func TestP2PStandstill(t *testing.T) {
	for _, end := range []string{"tensors", "revive", "close"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				_, d := p2pPair(w, func(_, d *enginesim.Config) { d.DecodePerToken, d.MaxSeqs = 10*ms, 3 })
				w.do(p2pPrefill(1))
				running := w.later(t.Context(), p2pDecode(1).streamed()) // takes 120 ms
				time.Sleep(55 * ms)
				ctx, leave := context.WithCancel(t.Context())
				hung := w.later(ctx, p2pDecode(2))
				time.Sleep(ms)
				w.do(p2pPrefill(3))
				third := w.later(t.Context(), p2pDecode(3))
				time.Sleep(time.Hour)
				expect(t, d, "a decode leg without prefill")
				if s := d.Stats(); !s.Halted || s.Running != 2 || s.Waiting != 1 || s.GeneratedTokens != 5 {
					t.Errorf("%+v", s)
				}
				if a := w.do(request{addr: addrD, method: "GET", path: "/health"}); a.status != 200 {
					t.Errorf("%+v", a)
				}
				leave() // does not help
				if a := <-hung; a.err == nil {
					t.Errorf("%+v", a)
				}
				time.Sleep(time.Minute)
				if s := d.Stats(); !s.Halted || s.Running != 2 || s.Outcomes[enginesim.OutcomeAbort] != 1 {
					t.Errorf("after the client has left: %+v", s)
				}
				switch end {
				case "tensors":
					w.do(p2pPrefill(2))
				case "revive":
					if a := w.do(request{addr: addrD, path: "/sim/revive"}); a.status != 204 {
						t.Errorf("%+v", a)
					}
				case "close":
					d.Close()
				}
				a, b := <-running, <-third
				synctest.Wait()
				s := d.Stats()
				if s.Halted || s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 || s.Dead {
					t.Errorf("%+v", s)
				}
				switch end {
				case "tensors":
					if a.err != nil || b.status != 200 || s.P2PUnclaimed != 0 {
						t.Errorf("%+v\n%+v\n%+v", a, b, s)
					}
				case "revive":
					if a.err == nil || b.err == nil || s.P2PUnclaimed != 0 {
						t.Errorf("%+v\n%+v\n%+v", a, b, s)
					}
					w.do(p2pPrefill(9))
					if c := w.do(p2pDecode(9)); c.status != 200 {
						t.Errorf("%+v", c)
					}
				case "close":
					if !strings.Contains(a.body, `"finish_reason":"abort"`) {
						t.Errorf("%+v\n%+v", a, b)
					}
				}
			})
		})
	}
}
