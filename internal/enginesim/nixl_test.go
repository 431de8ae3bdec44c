package enginesim_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

const (
	addrP  = "p:8000"
	addrD  = "d:8000"
	prompt = "the quick brown fox jumps over the lazy dog, twice"
)

// pair starts a prefill and a decode engine.
func pair(w *world, change func(p, d *enginesim.Config)) (p, d *enginesim.Engine) {
	w.t.Helper()
	cp := enginesim.Config{Role: "prefill", Connector: "nixl", Advertise: addrP, EngineID: "engine-p", Strict: true}
	cd := enginesim.Config{Role: "decode", Connector: "nixl", Advertise: addrD, EngineID: "engine-d", Strict: true}
	if change != nil {
		change(&cp, &cd)
	}
	return w.start(cp), w.start(cd)
}

// plainAnswer is what one engine alone says to prompt.
func plainAnswer(w *world) string {
	w.start(enginesim.Config{Advertise: "plain:1"})
	return w.do(request{addr: "plain:1", id: "plain", body: string(object("prompt", prompt, "max_tokens", 12))}).text(w.t)
}

func TestHandoff(t *testing.T) {
	for _, action := range []string{"", "old_kv", "extra_kv", "big_kv"} {
		t.Run(action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, d := pair(w, func(p, d *enginesim.Config) {
					p.PrefillPerToken = ms
					d.PrefillPerToken = time.Hour // would show
					d.DecodePerToken = ms
				})
				if action != "" {
					p.Fault(enginesim.Fault{Leg: "prefill", Action: action, Bytes: 1 << 20})
				}
				kv := w.do(prefill(addrP, "r1", prompt)).handoff(t)
				if action == "big_kv" && len(kv) != 1<<20 {
					t.Errorf("%d bytes of parameters", len(kv))
				}
				if s := p.Stats(); s.PinnedBlocks != 4 || s.UsedBlocks != 4 || s.PinnedHandoffs != 1 {
					t.Errorf("after prefill: %+v", s)
				}
				a := w.do(decode(addrD, "r1", prompt, kv))
				if a.text(t) != plainAnswer(w) || cached(t, a) != len(prompt) {
					t.Errorf("%s", a.body)
				}
				s := p.Stats()
				if s.PinnedBlocks != 0 || s.UsedBlocks != 0 || s.HandoffsProduced != 1 || s.HandoffsCollected != 1 {
					t.Errorf("after decode: %+v", s)
				}
				if s := d.Stats(); s.RemoteTokens != len(prompt) || s.FailedLoads != 0 {
					t.Errorf("decode: %+v", s)
				}
				clean(t, p, d)
			})
		})
	}
}

// TestHandoffOverTCP runs a pair on real connections, for each API.
func TestHandoffOverTCP(t *testing.T) {
	var engines [2]*enginesim.Engine
	var urls [2]string
	for i, role := range []string{"prefill", "decode"} {
		srv := httptest.NewUnstartedServer(nil)
		e, err := enginesim.New(enginesim.Config{
			Role: role, Connector: "nixl", Advertise: srv.Listener.Addr().String(), Strict: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		srv.Config = e.NewServer()
		srv.Start()
		t.Cleanup(func() { e.Close(); srv.Close() })
		engines[i], urls[i] = e, srv.Listener.Addr().String()
	}
	w := newWorld(t)
	w.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	const kv, hi = `"kv_transfer_params":`, `"messages":[{"role":"user","content":"hello, who is there?"}]`
	for i, tt := range []struct{ path, prefill, decode string }{
		{"/v1/completions", `{"prompt":"hello there","max_tokens":1,%s}`, `{"prompt":"hello there","n":2,%s}`},
		{"/v1/chat/completions", `{` + hi + `,"max_tokens":1,%s}`, `{` + hi + `,"stream":true,%s}`},
		{"/v1/responses", `{"input":"hello there","max_output_tokens":1,%s}`, `{"input":"hello there","stream":true,%s}`},
		{"/v1/messages", `{` + hi + `,"max_tokens":1,%s}`, `{` + hi + `,"max_tokens":9,"stream":true,%s}`},
		{
			"/inference/v1/generate", `{"token_ids":[5,6],"sampling_params":{"max_tokens":1,"extra_args":{%s}}}`,
			`{"token_ids":[5,6],"sampling_params":{"max_tokens":9,"extra_args":{%s}}}`,
		},
	} {
		id := fmt.Sprint("tcp", i)
		given := w.do(request{addr: urls[0], path: tt.path, id: id, body: fmt.Sprintf(tt.prefill, kv+prefillParams)}).handoff(t)
		a := w.do(request{addr: urls[1], path: tt.path, id: id, body: fmt.Sprintf(tt.decode, kv+given)})
		if a.status != 200 || a.err != nil {
			t.Errorf("%s: %+v", tt.path, a)
		}
		if s := engines[0].Stats(); s.HandoffsCollected != i+1 || s.PinnedBlocks != 0 {
			t.Errorf("%s: %+v", tt.path, s)
		}
	}
	clean(t, engines[:]...)
}

func TestChangedParams(t *testing.T) {
	for _, tt := range []struct{ from, to, want string }{
		{`"tp_size":1`, `"tp_size":2`, "tp_size was 1, is 2"},
		{`"tp_size":1,`, ``, "tp_size is missing"},
		{`"tp_size":1`, `"tp_size":1,"more":{}`, "more was added"},
		{`9007199254740993`, `9007199254740992`, "future_id was 9007199254740993"},
		{`"future_float":1.0`, `"future_float":1`, "future_float"},
		{`{"c":`, `{"d":`, "future was"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			p, d := pair(w, nil)
			p.Fault(enginesim.Fault{Action: "extra_kv"})
			kv := w.do(prefill(addrP, "r", prompt)).handoff(t)
			changed := strings.Replace(kv, tt.from, tt.to, 1)
			if changed == kv {
				t.Fatalf("no %s in %s", tt.from, kv)
			}
			w.do(decode(addrD, "r", prompt, changed))
			expect(t, d, tt.want)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, nil)
		p.Fault(enginesim.Fault{Action: "extra_kv"})
		kv := w.do(prefill(addrP, "r", prompt)).handoff(t)
		kv = strings.ReplaceAll(kv, ",", " ,\n ")          // white space is free
		kv = strings.Replace(kv, `\u00e9`, "\u00e9", 1)    // and so is the form of a text
		kv = `{"tp_size":1,` + strings.TrimPrefix(kv, "{") // and order
		kv = strings.Replace(kv, " ,\n \"tp_size\":1", "", 1)
		if a := w.do(decode(addrD, "r", prompt, kv)); a.status != 200 {
			t.Error(a)
		}
		clean(t, p, d)
	})
}

func TestWrongPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, d := pair(w, nil)
		kv := w.do(prefill(addrP, "r", prompt+"!")).handoff(t)
		a := w.do(decode(addrD, "r", prompt, kv))
		if a.status != 200 || a.text(t) == plainAnswer(w) {
			t.Errorf("the answer does not show it: %+v", a)
		}
		expect(t, d, "wrong prompt for hand-off")
	})
}

// TestExpiry checks the time of a hand-off to the millisecond.
func TestExpiry(t *testing.T) {
	for _, tt := range []struct {
		wait time.Duration
		ok   bool
	}{{30*time.Second - ms, true}, {30 * time.Second, false}, {42 * time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			p, d := pair(w, nil)
			kv := w.do(prefill(addrP, "r", prompt)).handoff(t)
			time.Sleep(tt.wait)
			s := p.Stats()
			if ok := s.PinnedBlocks == 4 && s.HandoffsExpired == 0; ok != tt.ok {
				t.Errorf("after %v: %+v", tt.wait, s)
			}
			a := w.do(decode(addrD, "r", prompt, kv))
			if tt.ok {
				if a.status != 200 {
					t.Errorf("after %v: %+v", tt.wait, a)
				}
				clean(t, p, d)
				return
			}
			if a.status != 500 || a.get(t, "error", "type") != "InternalServerError" || s.UsedBlocks != 0 {
				t.Errorf("after %v: %+v", tt.wait, a)
			}
			if tt.wait > 30*time.Second {
				expect(t, d, "hand-off used 12 s after its validity")
			}
		})
	}
}

// TestExpiryFreesBlocks checks that prefill goes on when pinned blocks expire.
func TestExpiryFreesBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, _ := pair(w, func(p, _ *enginesim.Config) { p.Blocks = 6 })
		w.do(prefill(addrP, "r1", prompt))
		start := time.Now()
		if a := w.do(prefill(addrP, "r2", "x"+prompt)); a.status != 200 || time.Since(start) != 30*time.Second {
			t.Errorf("%v %+v", time.Since(start), a)
		}
		if s := p.Stats(); s.HandoffsExpired != 1 || s.PinnedBlocks != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLoadFailure checks what a decode engine answers if it cannot get the blocks.
func TestLoadFailure(t *testing.T) {
	broken := map[string]func(w *world, kv string) string{
		"another engine": func(_ *world, kv string) string { return strings.Replace(kv, "engine-p", "engine-q", 1) },
		"unknown":        func(_ *world, kv string) string { return strings.Replace(kv, "cmpl-", "cmpl-x", 1) },
		"gone":           func(_ *world, kv string) string { return strings.Replace(kv, `"p"`, `"nowhere"`, 1) },
		"used": func(w *world, kv string) string {
			w.do(decode(addrD, "before", prompt, kv))
			return kv
		},
	}
	for name, change := range broken {
		for _, policy := range []string{"fail", "recompute"} {
			t.Run(name+" "+policy, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					_, d := pair(w, func(_, d *enginesim.Config) { d.FailPolicy = policy })
					kv := change(w, w.do(prefill(addrP, "r", prompt)).handoff(t))
					plain := w.do(decode(addrD, "r", prompt, kv))
					q := decode(addrD, "s", prompt, kv)
					q.body = strings.Replace(q.body, "{", `{"stream":true,`, 1)
					stream := w.do(q)
					q.id, q.path = "c", "/v1/chat/completions"
					q.body = strings.Replace(q.body, `"prompt":`, `"messages":[{"role":"user","content":"x"}],"prompt":`, 1)
					chat := w.do(q)
					if policy == "recompute" {
						text, done := stream.sse(t)
						if want := plainAnswer(w); plain.text(t) != want || text != want || !done || chat.status != 200 {
							t.Errorf("%+v\n%+v", plain, stream)
						}
						return
					}
					const spaced = `{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}`
					if plain.status != 500 || plain.body != strings.NewReplacer(": ", ":", ", ", ",").Replace(spaced) {
						t.Errorf("%+v", plain)
					}
					if want := "data: " + spaced + "\n\ndata: [DONE]\n\n"; stream.status != 200 || stream.body != want {
						t.Errorf("%+v", stream)
					}
					if !strings.Contains(chat.body, `"role":"assistant"`) || !strings.HasSuffix(chat.body, stream.body) ||
						strings.Count(chat.body, "data: ") != 3 {
						t.Errorf("%+v", chat)
					}
					if s := d.Stats(); s.FailedLoads != 3 || s.Finished["error"] != 3 || s.UsedBlocks != 0 {
						t.Errorf("%+v", s)
					}
				})
			})
		}
	}
}

// TestAbortedPrefill checks that an aborted prefill pins nothing.
func TestAbortedPrefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, _ := pair(w, func(p, _ *enginesim.Config) { p.PrefillBase = time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
		defer cancel()
		w.doContext(ctx, prefill(addrP, "r1", prompt))
		synctest.Wait()
		if s := p.Stats(); s.UsedBlocks != 0 || s.HandoffsProduced != 0 || s.Finished["abort"] != 1 {
			t.Errorf("%+v", s)
		}
		for _, action := range []string{"abort", "error_finish", "no_kv", "null_kv"} {
			remove := p.Fault(enginesim.Fault{Action: action, Point: "first"})
			a := w.do(prefill(addrP, action, prompt))
			if a.status != 200 || strings.Contains(a.body, "remote_host") ||
				strings.Contains(a.body, "kv_transfer_params") == (action == "no_kv") {
				t.Errorf("%s: %+v", action, a)
			}
			remove()
		}
		if s := p.Stats(); s.UsedBlocks != 0 || s.HandoffsProduced != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestDecodeLeaves checks that prefill's blocks are freed when a decode leg ends
// before it was admitted: by its client, or by a refusal.
func TestDecodeLeaves(t *testing.T) {
	tests := []struct {
		name   string
		fault  enginesim.Fault
		body   string // replaces max_tokens of the decode leg
		leave  bool
		freed  int
		pinned int
	}{
		{name: "in the queue", leave: true, freed: 1},
		{name: "at its headers", fault: enginesim.Fault{Point: "headers", Action: "gate", Gate: "g"}, leave: true, freed: 1},
		{name: "before it was accepted", fault: enginesim.Fault{Action: "gate", Gate: "g"}, leave: true, freed: 1},
		{name: "refused", body: `"max_tokens":0`, freed: 1},
		{name: "unknown model", body: `"model":"x"`, freed: 1},
		{name: "busy", fault: enginesim.Fault{Action: "status"}, pinned: 1},
		{name: "dead", fault: enginesim.Fault{Action: "reset"}, pinned: 1},
		{name: "hung", fault: enginesim.Fault{Action: "hang"}, leave: true, pinned: 1},
	}
	for _, tt := range tests {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(tt.name, " ", stream), func(t *testing.T) {
				if !stream && tt.fault.Point == "headers" {
					t.Skip("a plain answer has its headers after the load")
				}
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					p, d := pair(w, func(_, d *enginesim.Config) { d.MaxSeqs = 1 })
					if tt.name == "in the queue" {
						d.Fault(enginesim.Fault{RequestID: "first", Point: "first", Action: "gate", Gate: "g"})
						kv := w.do(prefill(addrP, "r0", "other")).handoff(t)
						q := decode(addrD, "first", "other", kv)
						q.body = strings.Replace(q.body, "{", `{"stream":true,`, 1)
						w.later(t.Context(), q)
						synctest.Wait()
					}
					if tt.fault.Action != "" {
						tt.fault.Leg = "decode"
						d.Fault(tt.fault)
					}
					kv := w.do(prefill(addrP, "r", prompt)).handoff(t)
					q := decode(addrD, "r", prompt, kv)
					q.body = strings.Replace(q.body, "{", fmt.Sprintf(`{"stream":%v,`, stream), 1)
					if tt.body != "" {
						q.body = strings.Replace(q.body, `"max_tokens":12`, tt.body, 1)
					}
					ctx, cancel := context.WithCancel(t.Context())
					ch := w.later(ctx, q)
					synctest.Wait()
					if s := p.Stats(); tt.leave && s.PinnedHandoffs != 1 {
						t.Errorf("before: %+v", s)
					}
					if tt.leave {
						cancel()
					}
					<-ch
					cancel()
					synctest.Wait()
					s := p.Stats()
					if s.HandoffsFreed != tt.freed || s.PinnedHandoffs != tt.pinned {
						t.Errorf("freed %d, pinned %d; want %d, %d", s.HandoffsFreed, s.PinnedHandoffs, tt.freed, tt.pinned)
					}
				})
			})
		}
	}
}

// TestHeartbeat checks that a decode leg in the queue keeps its hand-off alive.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, func(_, d *enginesim.Config) {
			d.MaxSeqs = 1
			d.DecodePerToken = 10 * time.Second
		})
		long := w.later(t.Context(), decode(addrD, "r0", "other", w.do(prefill(addrP, "r0", "other")).handoff(t)))
		synctest.Wait()
		kv := w.do(prefill(addrP, "r", prompt)).handoff(t)
		if a := w.do(decode(addrD, "r", prompt, kv)); a.status != 200 { // after 120 s
			t.Errorf("%+v", a)
		}
		if a := <-long; a.status != 200 {
			t.Errorf("%+v", a)
		}
		if s := p.Stats(); s.HandoffsCollected != 2 || s.HandoffsExpired != 0 {
			t.Errorf("%+v", s)
		}
		clean(t, p, d)
	})
}

// TestHeartbeatEnds checks that blocks are freed on time after the last heartbeat
// of a decode engine that died.
func TestHeartbeatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, func(p, d *enginesim.Config) {
			p.Blocks = 6
			d.MaxSeqs = 1
		})
		d.Fault(enginesim.Fault{RequestID: "r0", Point: "first", Action: "gate", Gate: "g"})
		first := decode(addrD, "r0", "other", w.do(prefill(addrP, "r0", "other")).handoff(t))
		first.body = strings.Replace(first.body, "{", `{"stream":true,`, 1)
		w.later(t.Context(), first)
		synctest.Wait()
		start := time.Now()
		w.later(t.Context(), decode(addrD, "r", prompt, w.do(prefill(addrP, "r", prompt)).handoff(t)))
		time.Sleep(24 * time.Second) // beats at 0, 5, 10, 15 and 20 s; the last one gives 20 s more
		d.Close()
		w.do(prefill(addrP, "s", "x"+prompt)) // waits for the blocks
		if got := time.Since(start); got != 40*time.Second {
			t.Errorf("freed after %v", got)
		}
		if s := p.Stats(); s.HandoffsExpired != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestSlowTransfer holds a decode leg while it waits for remote blocks.
func TestSlowTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, nil)
		p.Fault(enginesim.Fault{Path: "/sim/kv/collect", Action: "gate", Gate: "kv"})
		kv := w.do(prefill(addrP, "r", prompt)).handoff(t)
		ch := w.later(t.Context(), decode(addrD, "r", prompt, kv))
		synctest.Wait()
		if s := d.Stats(); s.Waiting != 1 || s.Running != 0 {
			t.Errorf("%+v", s)
		}
		p.Open("kv")
		if a := <-ch; a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
}

func TestNoConnector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, func(p, d *enginesim.Config) { p.Connector, d.Connector = "", "" })
		kv := w.do(prefill(addrP, "r", prompt)).handoff(t)
		if kv != "null" {
			t.Errorf("kv_transfer_params %s", kv)
		}
		if a := w.do(decode(addrD, "r", prompt, `{"do_remote_prefill":true}`)); a.status != 200 {
			t.Errorf("%+v", a)
		}
		if n := p.Stats().IgnoredKV + d.Stats().IgnoredKV; n != 2 {
			t.Errorf("%d ignored", n)
		}
	})
}

func TestRankOfHandoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, func(p, _ *enginesim.Config) { p.DPSize = 2 })
		q := prefill(addrP, "r", prompt)
		q.header = map[string]string{"X-data-parallel-rank": "1"}
		kv := w.do(q).handoff(t)
		if !strings.Contains(kv, `"remote_engine_id":"engine-p_dp1"`) {
			t.Error(kv)
		}
		if a := w.do(decode(addrD, "r", prompt, kv)); a.status != 200 {
			t.Errorf("%+v", a)
		}
		clean(t, p, d)
	})
}

// TestStreamedFailures checks how a load failure ends the streams of each API.
func TestStreamedFailures(t *testing.T) {
	const (
		kv = `"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"x",` +
			`"remote_request_id":"y","remote_host":"p","remote_port":8000,"tp_size":1,"transfer_mode":"pull"}`
		hi = `"messages":[{"role":"user","content":"hi"}]`
	)
	for _, tt := range []struct{ path, body, end string }{
		{"/v1/messages", `{` + hi + `,"max_tokens":3,"stream":true,` + kv + `}`, "event: error\ndata: " +
			`{"type":"error","error":{"type":"internal_error","message":"Internal server error"}}` + "\n\n"},
		{"/v1/messages", `{` + hi + `,"max_tokens":3,` + kv + `}`, `{"type":"error","error":{"type":"internal_error","message":"Internal server error"}}`},
		{"/v1/responses", `{"input":"hi","stream":true,` + kv + `}`, `"type":"response.in_progress"}` + "\n\n"},
		{
			"/inference/v1/generate", `{"token_ids":[5],"stream":true,"sampling_params":{"extra_args":{` + kv + `}}}`,
			`"param": null, "code": 500}}` + "\n\ndata: [DONE]\n\n",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			pair(w, nil)
			if a := w.do(request{addr: addrD, path: tt.path, body: tt.body}); !strings.HasSuffix(a.body, tt.end) || a.err != nil {
				t.Errorf("%s: %+v", tt.path, a)
			}
		})
	}
}

// TestSeveralPrompts checks that only the first prompt is handed over.
func TestSeveralPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, nil)
		two := func(q request) request {
			q.body = strings.Replace(q.body, `"prompt":"`+prompt+`"`, `"prompt":["`+prompt+`","second"]`, 1)
			return q
		}
		kv := w.do(two(prefill(addrP, "r", prompt))).handoff(t)
		a := w.do(two(decode(addrD, "r", prompt, kv)))
		if a.status != 200 || cached(t, a) != len(prompt) {
			t.Errorf("%+v", a)
		}
		expect(t, p, "with 2 prompts")
		expect(t, d, "with 2 prompts")
	})
}

// TestPromptIDs checks that a decode leg may bring the ids of its prompt along.
func TestPromptIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := pair(w, nil)
		chat := func(addr, kv string) request {
			return request{addr: addr, id: "r", path: "/v1/chat/completions", body: `{"messages":[{"role":"user","content":"hi"}],` +
				`"max_tokens":1,"return_token_ids":true,"kv_transfer_params":` + kv + `}`}
		}
		a := w.do(chat(addrP, prefillParams))
		ids, _, _ := strings.Cut(a.body[strings.Index(a.body, `"prompt_token_ids":[`):], "]")
		kv := strings.Replace(a.handoff(t), "{", "{"+ids+"],", 1)
		q := chat(addrD, kv)
		q.body = strings.Replace(q.body, `"hi"`, `"not looked at"`, 1)
		if b := w.do(q); b.status != 200 || b.get(t, "usage", "prompt_tokens") != a.get(t, "usage", "prompt_tokens") {
			t.Errorf("%+v", b)
		}
		clean(t, p, d)
	})
}
