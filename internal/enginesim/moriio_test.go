package enginesim_test

import (
	"context"
	"encoding/json"
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

// TestMoriioViolations checks what each leg must look like.
func TestMoriioViolations(t *testing.T) {
	const missing = "the %s leg's kv_transfer_params lack %s"
	for _, tt := range []struct {
		mode     string
		from, to string // of the prefill leg
		want     []string
		decode   string // the same for the decode leg, "from=>to"
		wantD    []string
	}{
		{mode: "READ", from: `,"remote_tp_size":1`, want: []string{fmt.Sprintf(missing, "prefill", "remote_tp_size")}},
		{mode: "READ", from: `,"remote_dp_size":1`, want: []string{fmt.Sprintf(missing, "prefill", "remote_dp_size")}},
		{mode: "WRITE", from: `,"do_remote_prefill":false`, want: []string{fmt.Sprintf(missing, "prefill", "do_remote_prefill")}},
		{mode: "WRITE", from: `"remote_engine_id":null,`, want: []string{fmt.Sprintf(missing, "prefill", "remote_engine_id")}},
		{mode: "READ", from: `"remote_block_ids":null`, to: `"remote_block_ids":[1]`, want: []string{"remote_block_ids that is not null"}},
		{mode: "READ", from: `"remote_tp_size":1`, to: `"remote_tp_size":1,"remote_port":null`, want: []string{"have remote_port"}},
		{
			mode: "READ", from: `"remote_tp_size":1`, to: `"remote_tp_size":4`,
			wantD: []string{"prefill was told remote_dp_size 1 and remote_tp_size 4, decode has 1 and 1"},
		},
		{
			mode: "WRITE", from: `"remote_dp_size":1`, to: `"remote_dp_size":2`,
			wantD: []string{"prefill was told remote_dp_size 2 and remote_tp_size 1, decode has 1 and 1"},
		},
		{
			mode: "WRITE", decode: `"remote_tp_size":1=>"remote_tp_size":2`,
			wantD: []string{"decode was told remote_dp_size 1 and remote_tp_size 2, prefill has 1 and 1"},
		},
		{mode: "WRITE", decode: `,"remote_tp_size":1=>`, wantD: []string{fmt.Sprintf(missing, "decode", "remote_tp_size")}},
		{mode: "WRITE", decode: `,"do_remote_decode":false=>`, wantD: nil},
		{mode: "READ", from: `"tx-1"`, to: `"id-1"`, want: []string{"does not begin with tx"}, wantD: []string{"does not begin with tx"}},
		{mode: "READ", from: "prefill_addr_host:p", to: "prefill_addr_host:y", want: []string{`names the prefill engine "host:y,`}},
		{mode: "WRITE", decode: "decode_addr_host:d=>decode_addr_host:y", wantD: []string{`names the decode engine "host:y,`}},
		{mode: "READ", decode: "00000001=>00000002", wantD: []string{"the request ids of the legs end differently"}},
		{mode: "READ", decode: "00000001=>00000001-2"},
		{mode: "READ", from: "00000001", to: "00000001-2"},
	} {
		t.Run(tt.mode+" "+tt.from+tt.to+tt.decode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, d := moriPair(w, tt.mode, nil)
				q := moriPrefill(1).with(t, tt.from, tt.to)
				a := w.do(q)
				r := moriDecode(1)
				if tt.mode == "READ" {
					r = decode(addrD, moriID(1), prompt, a.handoff(t))
				}
				from, to, _ := strings.Cut(tt.decode, "=>")
				if from == `,"do_remote_decode":false` {
					from, to = `"do_remote_decode":false`, `"do_remote_decode":null`
				}
				if b := w.do(r.with(t, from, to)); a.status != 200 || b.status != 200 {
					t.Errorf("%+v\n%+v", a, b)
				}
				expect(t, p, tt.want...)
				expect(t, d, tt.wantD...)
			})
		})
	}
}

// TestMoriioMeeting sends legs that do not meet.
func TestMoriioMeeting(t *testing.T) {
	for _, first := range []string{"prefill", "decode"} {
		for _, tt := range []struct{ decode, want string }{
			{`"tx-1"=>"tx-2"`, "the legs do not meet: rank and transfer_id of prefill are 1 tx-1, of decode 1 tx-2"},
			{`"remote_dp_rank":1=>"remote_dp_rank":0`, "the legs do not meet: rank and transfer_id of prefill are 1 tx-1, of decode 0 tx-1"},
			{`,"remote_dp_rank":1=>`, "the legs do not meet: rank and transfer_id of prefill are 1 tx-1, of decode 0 tx-1"},
			{`"remote_dp_rank":1=>"remote_dp_rank":2`, ""},
		} {
			t.Run(first+" "+tt.decode, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					p, d := moriPair(w, "WRITE", func(p, _ *enginesim.Config) { p.DPSize = 2 })
					from, to, _ := strings.Cut(tt.decode, "=>")
					q, r := moriPrefill(1).pinned("1"), moriDecode(1)
					r = r.with(t, `"remote_dp_size":1`, `"remote_dp_size":2,"remote_dp_rank":1`).with(t, from, to)
					var b <-chan answer
					if first == "decode" {
						b = w.later(t.Context(), r)
						synctest.Wait()
					}
					if a := w.do(q); a.status != 200 {
						t.Errorf("%+v", a)
					}
					if first == "prefill" {
						b = w.later(t.Context(), r)
					}
					if b := <-b; b.status != 500 {
						t.Errorf("%+v", b)
					}
					want := []string{tt.want}
					if tt.want == "" {
						want = []string{"there are 2 ranks, nobody listens"}
						if first == "decode" {
							want = append(want, "the legs do not meet")
						}
					}
					expect(t, p, want...)
					if from == `,"remote_dp_rank":1` {
						expect(t, d, "does not name one of 2 prefill ranks")
					} else {
						clean(t, d)
					}
				})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, _ := moriPair(w, "WRITE", func(p, _ *enginesim.Config) { p.DPSize = 2 })
		w.do(moriPrefill(1))
		expect(t, p, "not pinned to one of 2 ranks")
	})
	synctest.Test(t, func(t *testing.T) { // of each leg once
		w := newWorld(t)
		p, d := moriPair(w, "WRITE", nil)
		for n := range 2 {
			w.do(moriPrefill(n).with(t, fmt.Sprintf("tx-%d", n), "tx-7"))
			w.do(moriDecode(n).with(t, fmt.Sprintf("tx-%d", n), "tx-7"))
		}
		expect(t, p, "a second prefill leg with the transfer_id tx-7")
		expect(t, d, "a second decode leg with the transfer_id tx-7")
	})
}

// TestMoriioAddresses checks what a leg without addresses in its id does.
func TestMoriioAddresses(t *testing.T) {
	const address = `"remote_host":"p","remote_handshake_port":9000,"remote_notify_port":10000,`
	for _, tt := range []struct {
		name string
		q    request
		dead bool
		want []string
	}{
		{"prefill", moriPrefill(1).named("r"), true, []string{"names the prefill engine", "does not name the other", "the engine dies"}},
		{"decode", moriDecode(1).named("r"), true, []string{"names the decode engine", "does not name the other", "the engine dies"}},
		{"upper case", moriPrefill(1).named(pairID(moriP, moriD, 0)[:110] + strings.Repeat("A", 32)), true, []string{"does not name", "the engine dies"}},
		{"malformed", moriPrefill(1).named(pairID(moriP, "d:9000", 1)), true, []string{"does not name", "the engine dies"}},
		{"in the parameters", moriDecode(1).named("r").with(t, `"do_remote_decode"`, address+`"do_remote_decode"`), false, []string{"names the decode engine", "does not name the other", "end differently"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p, d := moriPair(w, "WRITE", nil)
				e := p
				if tt.q.addr == addrD {
					e = d
					w.do(moriPrefill(1))
				}
				if a := w.do(tt.q); (a.err != nil) != tt.dead {
					t.Errorf("%+v", a)
				}
				expect(t, e, tt.want...)
				if s := e.Stats(); s.Dead != tt.dead || s.Running != 0 || s.UsedBlocks != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // a plain request harms nobody
		w := newWorld(t)
		w.start(enginesim.Config{Connector: "moriio"})
		if a := w.do(comp("r", "hello", 3)); a.status != 200 || a.handoff(t) != "null" {
			t.Errorf("%+v", a)
		}
	})
}

func (q request) named(id string) request {
	q.id = id
	return q
}

// TestMoriioDeath checks that a prefill engine's hand-offs die with it.
func TestMoriioDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, _ := moriPair(w, "READ", nil)
		kv := w.do(moriPrefill(1)).handoff(t)
		w.do(moriPrefill(2).named("r"))
		if s := p.Stats(); !s.Dead || s.PinnedHandoffs != 0 || s.UsedBlocks != 0 {
			t.Errorf("%+v", s)
		}
		p.Revive()
		if a := w.do(decode(addrD, moriID(1), prompt, kv)); a.status != 500 {
			t.Errorf("%+v", a)
		}
		if !json.Valid([]byte(kv)) {
			t.Error(kv)
		}
	})
}
