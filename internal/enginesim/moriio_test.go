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
	moriP = "host:p,handshake:9000,notify:10000"
	moriD = "host:d,handshake:9000,notify:10000"
)

// moriPair starts a prefill and a decode engine.
func moriPair(w *world, mode string, change func(p, d *enginesim.Config)) (p, d *enginesim.Engine) {
	return pair(w, func(p, d *enginesim.Config) {
		p.Connector, d.Connector = "moriio", "moriio"
		p.TransferMode, d.TransferMode = mode, mode
		if change != nil {
			change(p, d)
		}
	})
}

func moriID(n int) string { return pairID(moriP, moriD, n) }

// moriKV are the parameters of a leg that a router makes up; n is its transfer.
func moriKV(leg string, n int) string {
	return fmt.Sprintf(`{"do_remote_decode":%v,"do_remote_prefill":%v,"remote_engine_id":null,"remote_block_ids":null,`+
		`"transfer_id":"tx-%d","remote_dp_size":1,"remote_tp_size":1}`, leg == "prefill", leg == "decode", n)
}

func moriPrefill(n int) request {
	q := prefill(addrP, moriID(n), prompt)
	q.body = strings.Replace(q.body, prefillParams, moriKV("prefill", n), 1)
	return q
}

func moriDecode(n int) request { return decode(addrD, moriID(n), prompt, moriKV("decode", n)) }

// with replaces a part of the body or of the id.
func (q request) with(t *testing.T, from, to string) request {
	if !strings.Contains(q.body+q.id, from) {
		t.Fatalf("no %s in %s %s", from, q.id, q.body)
	}
	q.body = strings.Replace(q.body, from, to, 1)
	q.id = strings.Replace(q.id, from, to, 1)
	return q
}

func (q request) pinned(rank string) request {
	q.header = map[string]string{"X-data-parallel-rank": rank}
	return q
}

func TestMoriioRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := moriPair(w, "READ", func(p, d *enginesim.Config) {
			p.DPSize, p.TPSize = 2, 8
			d.PrefillPerToken = time.Hour // would show
		})
		if id := p.Stats().EngineID; id != "p:9000" {
			t.Error(id)
		}
		kv := w.do(moriPrefill(1).pinned("1")).handoff(t)
		const want = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2,3,4],"remote_engine_id":"p:9000",` +
			`"remote_host":"p","remote_handshake_port":9000,"remote_notify_port":10000,"remote_dp_rank":1,"remote_dp_rank_override":true,` +
			`"remote_dp_size":2,"remote_dp_size_local":2,"tp_size":8,"transfer_id":"tx-1"}`
		if kv != want {
			t.Errorf("%s, want\n%s", kv, want)
		}
		if s := p.Stats(); s.PinnedHandoffs != 1 || s.PinnedBlocks != 4 {
			t.Errorf("%+v", s)
		}
		a := w.do(decode(addrD, moriID(1), prompt, kv))
		if a.text(t) != plainAnswer(w) || cached(t, a) != len(prompt)-1 {
			t.Errorf("%+v", a)
		}
		if s := p.Stats(); s.PinnedBlocks != 0 || s.UsedBlocks != 0 || s.HandoffsCollected != 1 {
			t.Errorf("%+v", s)
		}
		clean(t, p, d)
	})
}

// TestMoriioReadTimes checks how long unread blocks stay pinned, and who reads.
func TestMoriioReadTimes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		decode func(q request) request // nil for no decode leg
		leave  bool
		pinned int
	}{
		{name: "no decode leg", pinned: 1},
		{name: "refused", decode: func(q request) request { return q.with(t, `"max_tokens":12`, `"max_tokens":0`) }, pinned: 1},
		{name: "left in the queue", decode: func(q request) request { return q }, leave: true, pinned: 1},
		{name: "a discard", decode: func(q request) request { return q.with(t, `"max_tokens":12`, `"max_tokens":1`) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, d := moriPair(w, "READ", nil)
				kv := w.do(moriPrefill(1)).handoff(t)
				if tt.leave {
					d.SetSleeping(1)
				}
				if tt.decode != nil {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					w.doContext(ctx, tt.decode(decode(addrD, moriID(1), prompt, kv)))
				}
				time.Sleep(59 * time.Minute)
				if s := p.Stats(); s.PinnedHandoffs != tt.pinned {
					t.Errorf("%+v", s)
				}
				time.Sleep(time.Minute)
				if s := p.Stats(); s.PinnedHandoffs != 0 || s.UsedBlocks != 0 || s.HandoffsExpired != tt.pinned {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestMoriioReadFailures checks what a decode leg answers that cannot read.
func TestMoriioReadFailures(t *testing.T) {
	for _, tt := range []struct {
		name  string
		kv    func(kv string) string
		after time.Duration // until the 500
		want  []string      // violations
	}{
		{"unknown", func(kv string) string { return strings.Replace(kv, "tx-1", "tx-2", 1) }, 0, nil},
		{"another engine", func(kv string) string { return strings.Replace(kv, "p:9000", "q:9000", 1) }, 0, nil},
		{
			"out of reach", func(kv string) string { return strings.Replace(kv, `"p"`, `"q"`, 1) }, 30 * time.Second,
			[]string{`the request id names the prefill engine "host:p,handshake:9000,notify:10000", kv_transfer_params "host:q,`},
		},
		{"size changed", func(kv string) string { return strings.Replace(kv, `"tp_size":1`, `"tp_size":2`, 1) }, -1, []string{"tp_size was 1, is 2"}},
		{"lost", func(string) string { return `{"do_remote_prefill":true,"transfer_id":"tx-1"}` }, -1, []string{"lack remote_block_ids, remote_engine_id: decode recomputes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, d := moriPair(w, "READ", nil)
				kv := tt.kv(w.do(moriPrefill(1)).handoff(t))
				start := time.Now()
				a := w.do(decode(addrD, moriID(1), prompt, kv))
				if got := time.Since(start); (a.status == 500) != (tt.after >= 0) || got != max(tt.after, 0) {
					t.Errorf("after %v: %+v", got, a)
				}
				expect(t, d, tt.want...)
				clean(t, p)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // used twice
		w := newWorld(t)
		moriPair(w, "READ", nil)
		kv := w.do(moriPrefill(1)).handoff(t)
		w.do(decode(addrD, moriID(1), prompt, kv))
		if a := w.do(decode(addrD, moriID(1), prompt, kv)); a.status != 500 {
			t.Errorf("%+v", a)
		}
	})
}

// TestMoriioWrite sends the legs in each order.
func TestMoriioWrite(t *testing.T) {
	for _, order := range []string{"together", "prefill first", "decode first", "waiting prefill"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, d := moriPair(w, "WRITE", func(p, d *enginesim.Config) {
					p.PrefillBase, p.WriteWaits = 100*ms, order == "waiting prefill"
					d.PrefillPerToken = time.Hour // would show
				})
				var a, b <-chan answer
				if order != "decode first" {
					a = w.later(t.Context(), moriPrefill(1))
				}
				if order == "prefill first" || order == "waiting prefill" {
					time.Sleep(30 * time.Second)
					if s := p.Stats(); s.PinnedHandoffs != 1 || s.DecodesWaiting != 0 || (s.Running == 1) != (order == "waiting prefill") {
						t.Errorf("%+v", s)
					}
				}
				b = w.later(t.Context(), moriDecode(1))
				if order == "decode first" {
					time.Sleep(29 * time.Second)
					if s := d.Stats(); s.Waiting != 1 || s.Running != 0 || p.Stats().DecodesWaiting != 1 {
						t.Errorf("%+v", s)
					}
					a = w.later(t.Context(), moriPrefill(1))
				}
				if a := <-a; a.status != 200 || !strings.Contains(a.handoff(t), `"remote_block_ids":[1,2,3,4]`) {
					t.Errorf("%+v", a)
				}
				if b := <-b; b.text(t) != plainAnswer(w) {
					t.Errorf("%+v", b)
				}
				if s := p.Stats(); s.UsedBlocks != 0 || s.HandoffsCollected != 1 || s.DecodesWaiting != 0 {
					t.Errorf("%+v", s)
				}
				clean(t, p, d)
			})
		})
	}
}

// TestMoriioWriteAlone checks how long each leg waits for the other.
func TestMoriioWriteAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := moriPair(w, "WRITE", func(p, _ *enginesim.Config) { p.WriteWaits = true })
		start := time.Now()
		if a := w.do(moriDecode(1)); a.status != 500 || time.Since(start) != 30*time.Second {
			t.Errorf("after %v: %+v", time.Since(start), a)
		}
		synctest.Wait()
		if s := d.Stats(); s.FailedLoads != 1 || s.UsedBlocks != 0 || p.Stats().DecodesWaiting != 0 {
			t.Errorf("%+v", s)
		}
		start = time.Now()
		if a := w.do(moriPrefill(2)); a.status != 200 || time.Since(start) != 60*time.Second {
			t.Errorf("after %v: %+v", time.Since(start), a)
		}
		if s := p.Stats(); s.HandoffsExpired != 1 || s.UsedBlocks != 0 {
			t.Errorf("%+v", s)
		}
		clean(t, p, d)
		time.Sleep(time.Second)
		w.do(moriDecode(2))
		expect(t, p, "the decode leg comes 1s after")
		for _, q := range []request{moriPrefill(3), moriDecode(4)} { // clients that leave
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			w.doContext(ctx, q)
			cancel()
		}
		synctest.Wait()
		if s := p.Stats(); s.PinnedHandoffs != 0 || s.DecodesWaiting != 0 || s.HandoffsFreed != 1 {
			t.Errorf("%+v", s)
		}
		if s := d.Stats(); s.Finished["abort"] != 1 || s.UsedBlocks != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestMoriioPrefillComesBack lets decode wait for a prefill engine that is not there yet.
func TestMoriioPrefillComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{Role: "decode", Connector: "moriio", Advertise: addrD})
		b := w.later(t.Context(), moriDecode(1))
		time.Sleep(10500 * ms)
		w.start(enginesim.Config{Role: "prefill", Connector: "moriio", Advertise: addrP})
		w.do(moriPrefill(1))
		if b := <-b; b.status != 200 {
			t.Errorf("%+v", b)
		}
	})
}

// TestMoriioEOS checks that a prefill that ends by itself hands nothing over, other
// than with NIXL.
func TestMoriioEOS(t *testing.T) {
	for _, mode := range []string{"READ", "WRITE"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			p, _ := moriPair(w, mode, nil)
			p.Fault(enginesim.Fault{Leg: "prefill", Action: "eos"})
			a := w.do(moriPrefill(1))
			if a.handoff(t) != "null" || a.get(t, "choices", 0, "finish_reason") != "stop" || a.text(t) != "" {
				t.Errorf("%+v", a)
			}
			if s := p.Stats(); s.UsedBlocks != 0 || s.HandoffsProduced != 0 {
				t.Errorf("%+v", s)
			}
			if mode == "WRITE" {
				if b := w.do(moriDecode(1)); b.status != 500 {
					t.Errorf("%+v", b)
				}
			}
			if a := w.do(moriPrefill(2).with(t, "{", `{"ignore_eos":true,`)); a.handoff(t) == "null" {
				t.Errorf("%+v", a)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, _ := pair(w, nil)
		p.Fault(enginesim.Fault{Leg: "prefill", Action: "eos"})
		if a := w.do(prefill(addrP, "r", prompt)); a.handoff(t) == "null" || a.get(t, "choices", 0, "finish_reason") != "stop" {
			t.Errorf("%+v", a)
		}
	})
}
