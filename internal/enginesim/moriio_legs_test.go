package enginesim_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/baton-llm/baton/internal/enginesim"
)

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
