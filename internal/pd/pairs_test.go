package pd_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/worker"
)

const mint = "93923d63113b4b338973f24d19d4bf11"

// named returns a pair whose workers have ZMQ addresses, as registrations give
// them.
func named(t *testing.T, path, body string, prefill, decode worker.Endpoint, prefillRank, decodeRank worker.Rank) *pd.Pair {
	t.Helper()
	p := pair(t, path, body)
	p.Mint = mint
	one := func(role worker.Role, rank worker.Rank, e worker.Endpoint) *worker.Worker {
		pool := worker.NewPool(worker.PoolConfig{Role: role, Lister: registered{{
			ID: worker.ID{Role: role, URL: "http://x:8000", Rank: rank, Generation: 1}, Endpoint: e,
		}}})
		pool.Reconcile()
		return pool.Snapshot().Workers[0]
	}
	p.Prefill, p.Decode = one(worker.Prefill, prefillRank, prefill), one(worker.Decode, decodeRank, decode)
	return p
}

// show renders a leg: its fields, then its body.
func show(l pd.Leg, err error) string {
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, f := range l.Fields {
		fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Value)
	}
	b.Write(l.Body)
	return b.String()
}

func check(t *testing.T, what, got string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(strings.Join(want, "\n"), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestP2PLegs: both legs have one id with both addresses (cases 1.20, 1.21).
func TestP2PLegs(t *testing.T) {
	p := named(t, "/v1/chat/completions",
		`{"model":"m","messages":[],"n":4,"max_completion_tokens":64,"min_tokens":9,"stream":true,"stream_options":{"include_usage":true},"kv_transfer_params":{"evil":1}}`,
		worker.Endpoint{ZMQ: "10.0.0.2:21001"}, worker.Endpoint{ZMQ: "[fd00::3]:22001"}, 0, 0)
	d := pd.P2P{}
	const id = "X-Request-Id: ___prefill_addr_10.0.0.2:21001___decode_addr_[fd00::3]:22001_" + mint
	const one = `{"model":"m","messages":[],"n":4,"max_completion_tokens":1,"stream":false,"max_tokens":1}`
	check(t, "prefill", show(d.Prefill(p)), id, "Accept-Encoding: identity", one)
	h, err := d.Read(p, []byte(`{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":null}`))
	if err != nil || h.Params == nil {
		t.Errorf("Read: %v, %v", h, err)
	}
	check(t, "decode", show(d.Decode(p, h)), id,
		`{"model":"m","messages":[],"n":4,"max_completion_tokens":64,"min_tokens":9,"stream":true,"stream_options":{"include_usage":true}}`)
	leg, read, err := d.Discard(p, h)
	check(t, "discard", show(leg, err), id, "Accept-Encoding: identity", one)
	if !read {
		t.Error("a discard must be read to its end: the engine gives up what it holds then")
	}
	if _, err := d.Read(p, []byte(`{"choices":[{"finish_reason":"abort"}]}`)); err == nil {
		t.Error("an aborted prefill counts as sent")
	}
}

// TestIDsParse matches the ids with the patterns of the engines, with what
// engines put around them (case 1.34).
func TestIDsParse(t *testing.T) {
	for _, tt := range []struct{ prefill, decode string }{
		{"10.0.0.2:21001", "10.0.0.3:22001"},
		{"host:10.0.0.2,handshake:6301,notify:61005", "host:::1,handshake:7301,notify:62005"},
	} {
		p := named(t, "/v1/completions", `{"prompt":"x"}`, worker.Endpoint{ZMQ: tt.prefill}, worker.Endpoint{ZMQ: tt.decode}, 0, 0)
		leg, err := pd.P2P{}.Prefill(p)
		if err != nil {
			t.Fatal(err)
		}
		header := leg.Fields.Get("X-Request-Id")
		for _, id := range []string{"cmpl-" + header, "chatcmpl-" + header, "cmpl-" + header + "-0", "cmpl-" + header + "-0-1a2b3c4d"} {
			for pattern, want := range map[string]string{
				`___prefill_addr_(.+?)___decode_addr_`:      tt.prefill,
				`___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$`: tt.decode,
				`___prefill_addr_(.*:\d+)___`:               tt.prefill,
				`___decode_addr_(.*:\d+)`:                   tt.decode,
			} {
				if m := regexp.MustCompile(pattern).FindStringSubmatch(id); m == nil || m[1] != want {
					t.Errorf("%s in %s: got %v, want %s", pattern, id, m, want)
				}
			}
		}
	}
}

var (
	prefillEngine = worker.Endpoint{ZMQ: "host:10.0.0.2,handshake:6301,notify:61005", DP: 2, TP: 8}
	decodeEngine  = worker.Endpoint{ZMQ: "host:10.0.0.3,handshake:7301,notify:62005", DP: 1, TP: 4}
)

const moriioID = "X-Request-Id: ___prefill_addr_host:10.0.0.2,handshake:6301,notify:61005" +
	"___decode_addr_host:10.0.0.3,handshake:7301,notify:62005_" + mint

// TestMoRIIORead: sequential, prefill's answer verbatim, prefill's ranks in
// turn, and nothing that could end prefill other than by length.
func TestMoRIIORead(t *testing.T) {
	d := pd.NewMoRIIO("READ")
	spec := d.Spec()
	if spec.Concurrent || !spec.PairFirst || spec.Name != "moriio/READ" {
		t.Errorf("spec %+v", spec)
	}
	p := named(t, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":9,"stop":["y"],"stop_token_ids":[1]}`, prefillEngine, decodeEngine, 0, 0)
	const body = `{"model":"m","prompt":"x","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
		`"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx-` + mint + `","remote_dp_size":1,"remote_tp_size":4},"ignore_eos":true}`
	check(t, "prefill", show(d.Prefill(p)), moriioID, "Accept-Encoding: identity", "X-Data-Parallel-Rank: 0", body)
	p.Turn = nil
	check(t, "the next rank", show(d.Prefill(p)), moriioID, "Accept-Encoding: identity", "X-Data-Parallel-Rank: 1", body)

	h, err := d.Read(p, []byte(`{"choices":[{"finish_reason":"length"}],"kv_transfer_params":`+params+`}`))
	if err != nil {
		t.Fatal(err)
	}
	check(t, "decode", show(d.Decode(p, h)), moriioID,
		`{"model":"m","prompt":"x","max_tokens":9,"stop":["y"],"stop_token_ids":[1],"kv_transfer_params":`+params+`}`)
	leg, read, err := d.Discard(p, h)
	check(t, "discard", show(leg, err), moriioID, "Accept-Encoding: identity",
		`{"model":"m","prompt":"x","max_tokens":1,"stop":["y"],"stop_token_ids":[1],"kv_transfer_params":`+params+`}`)
	if !read {
		t.Error("a discard must be read to its end")
	}
	if _, err := d.Read(p, []byte(`{"choices":[{"finish_reason":"stop"}],"kv_transfer_params":null}`)); !errors.Is(err, pd.ErrNoHandoff) {
		t.Errorf("an answer without parameters: %v", err)
	}
}

// TestMoRIIOWrite: concurrent, both legs name each other's sizes, and decode the
// rank that prefill was sent to.
func TestMoRIIOWrite(t *testing.T) {
	d := pd.NewMoRIIO("WRITE")
	if spec := d.Spec(); !spec.Concurrent || spec.Name != "moriio/WRITE" {
		t.Errorf("spec %+v", spec)
	}
	for _, tt := range []struct {
		name                    string
		prefillRank, decodeRank worker.Rank
		header, prefill, decode string
	}{
		{"free ranks", 0, 0, "X-Data-Parallel-Rank: 0", ``, `0`},
		{"the next one", 0, 0, "X-Data-Parallel-Rank: 1", ``, `1`},
		{"pinned", worker.AtRank(1), worker.AtRank(3), "X-Data-Parallel-Rank: 1", `,"remote_dp_rank":3`, `1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := prefillEngine
			if tt.name != "the next one" {
				d = pd.NewMoRIIO("WRITE")
			}
			p := named(t, "/v1/chat/completions", `{"messages":[]}`, e, decodeEngine, tt.prefillRank, tt.decodeRank)
			if tt.name == "the next one" {
				q := named(t, "/v1/chat/completions", `{"messages":[]}`, e, decodeEngine, 0, 0)
				q.Prefill = p.Prefill
				if _, err := d.Prefill(q); err != nil {
					t.Fatal(err)
				}
			}
			head := []string{moriioID}
			tail := []string{"Accept-Encoding: identity"}
			if tt.prefillRank != 0 {
				head = append(head, tt.header)
			} else {
				tail = append(tail, tt.header)
			}
			body := `{"messages":[],"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
				`"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx-` + mint + `","remote_dp_size":1,"remote_tp_size":4` + tt.prefill + `},"ignore_eos":true}`
			check(t, "prefill", show(d.Prefill(p)), append(append(head, tail...), body)...)
			want := []string{moriioID}
			if n, ok := tt.decodeRank.Index(); ok {
				want = append(want, fmt.Sprintf("X-Data-Parallel-Rank: %d", n))
			}
			check(t, "decode", show(d.Decode(p, pd.Handoff{})), append(want,
				`{"messages":[],"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":null,`+
					`"remote_block_ids":null,"transfer_id":"tx-`+mint+`","remote_dp_size":2,"remote_tp_size":8,"remote_dp_rank":`+tt.decode+`}}`)...)
		})
	}
}

// TestSet: a worker that lacks what its dialect needs cannot be paired.
func TestSet(t *testing.T) {
	set := pd.Set{pd.NewNIXL(pd.NIXLValidity), pd.P2P{}, pd.NewMoRIIO("READ"), pd.NewMoRIIO("WRITE")}
	for _, tt := range []struct {
		e    worker.Endpoint
		want uint64
	}{
		{worker.Endpoint{Dialect: "nixl"}, 1},
		{worker.Endpoint{Dialect: "p2p", ZMQ: "z"}, 2},
		{worker.Endpoint{Dialect: "p2p"}, 0},
		{worker.Endpoint{Dialect: "moriio", ZMQ: "z", Mode: "READ"}, 4},
		{worker.Endpoint{Dialect: "moriio", ZMQ: "z", Mode: "WRITE"}, 8},
		{worker.Endpoint{Dialect: "moriio", ZMQ: "z"}, 0},
		{worker.Endpoint{Dialect: "mooncake"}, 0},
		{worker.Endpoint{}, 0},
	} {
		if got := set.Bits(tt.e); got != tt.want {
			t.Errorf("%+v: got %b, want %b", tt.e, got, tt.want)
		}
	}
}
