package pd

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/worker"
)

// MoRIIO is vLLM's MoRIIOConnector (ROCm), in one of its two transfer modes,
// which each engine announces. Both legs carry the request id that names both
// engines, and one transfer id.
//
// READ: decode follows prefill and gets the parameters of its answer verbatim;
// it reads the blocks from there. WRITE: both legs leave at once, and prefill
// writes into the blocks that decode has announced to it.
//
// An engine hands over only what ended by length, so prefill is told to ignore
// what could end it otherwise. Which of a prefill worker's data-parallel ranks
// computes is the router's choice; decode is told.
//
// Source: vllm/distributed/kv_transfer/kv_connector/v1/moriio.
type MoRIIO struct {
	mode  string
	ranks sync.Map // *worker.Worker -> *atomic.Uint64: whose turn it is among its ranks
}

var (
	_ Dialect         = (*MoRIIO)(nil)
	_ worker.Observer = (*MoRIIO)(nil)
)

// NewMoRIIO returns the dialect for a transfer mode, READ or WRITE.
func NewMoRIIO(mode string) *MoRIIO { return &MoRIIO{mode: mode} }

// Spec implements [Dialect].
func (m *MoRIIO) Spec() Spec {
	cancel, validity := AnyTime, time.Duration(0)
	if m.mode == "READ" {
		// Blocks that decode has not read stay pinned, for an hour with some
		// versions, and for defer_timeout with others.
		cancel, validity = DecodeUntilHandoff, time.Minute
	}
	return Spec{
		Name:       "moriio/" + m.mode,
		Concurrent: m.mode == "WRITE",
		PairFirst:  true,
		NeedsZMQ:   true,
		Cancel:     cancel,
		Validity:   validity,
		Routes:     []string{"chat", "completions"},
	}
}

// WorkerAdded implements [worker.Observer].
func (*MoRIIO) WorkerAdded(*worker.Worker) {}

// WorkerRemoved implements [worker.Observer].
func (m *MoRIIO) WorkerRemoved(w *worker.Worker) { m.ranks.Delete(w) }

// transferID is the same on both legs.
func transferID(p *Pair) string { return "tx-" + p.Mint }

// Prefill implements [Dialect].
func (m *MoRIIO) Prefill(p *Pair) (Leg, error) {
	peer := p.Decode.Endpoint()
	params := fmt.Appendf(nil, `{"do_remote_decode":true,"do_remote_prefill":false,`+
		`"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"%s","remote_dp_size":%d,"remote_tp_size":%d`,
		transferID(p), max(1, peer.DP), max(1, peer.TP))
	if n, ok := p.Decode.ID().Rank.Index(); ok && m.mode == "WRITE" {
		params = fmt.Appendf(params, `,"remote_dp_rank":%d`, n)
	}
	params = append(params, '}')
	edits := append(prefillEdits(p.Request), openai.Edit{Path: openai.IgnoreEOS, Raw: []byte("true")})
	for _, member := range [...]int{openai.Stop, openai.StopTokenIDs} {
		if p.Request.Doc.Value(member).Kind != openai.Missing {
			edits = append(edits, openai.Edit{Path: member})
		}
	}
	fields := append(LegFields(pairID(p), p.Prefill), identity)
	if _, pinned := p.Prefill.ID().Rank.Index(); !pinned && p.Prefill.Endpoint().DP > 1 {
		fields = append(fields, exchange.Field{Name: "X-Data-Parallel-Rank", Value: strconv.Itoa(m.rank(p))})
	}
	return Leg{Body: p.Request.Doc.Splice(nil, paramEdits(edits, p.Request, params)), Fields: fields}, nil
}

// rank is the data-parallel rank of the prefill worker that computes for this
// pair: the one it is pinned to, else each in turn. It is chosen once for the
// pair, so that both legs agree.
func (m *MoRIIO) rank(p *Pair) int {
	if n, ok := p.Prefill.ID().Rank.Index(); ok {
		return n
	}
	size := max(1, p.Prefill.Endpoint().DP)
	if size == 1 {
		return 0
	}
	if p.Turn == nil {
		v, _ := m.ranks.LoadOrStore(p.Prefill, new(atomic.Uint64))
		turn := int((v.(*atomic.Uint64).Add(1) - 1) % uint64(size))
		p.Turn = &turn
	}
	return *p.Turn
}

// Read implements [Dialect]. In WRITE mode nothing is to be handed on.
func (m *MoRIIO) Read(_ *Pair, body []byte) (Handoff, error) {
	if m.mode == "READ" {
		return readParams(body)
	}
	var d openai.Doc
	if err := readAnswer(&d, body); err != nil {
		return Handoff{}, err
	}
	return Handoff{Params: []byte{}}, nil
}

// Decode implements [Dialect].
func (m *MoRIIO) Decode(p *Pair, h Handoff) (Leg, error) {
	params := h.Params
	if m.mode == "WRITE" {
		peer := p.Prefill.Endpoint()
		params = fmt.Appendf(nil, `{"do_remote_decode":false,"do_remote_prefill":true,`+
			`"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"%s","remote_dp_size":%d,"remote_tp_size":%d,"remote_dp_rank":%d}`,
			transferID(p), max(1, peer.DP), max(1, peer.TP), m.rank(p))
	}
	edits := paramEdits(nil, p.Request, params)
	return Leg{Body: p.Request.Doc.Splice(nil, edits), Fields: LegFields(pairID(p), p.Decode)}, nil
}

// Discard implements [Dialect]: a decode of one token, read to its end. Only
// then has prefill been told that its blocks were read; else it keeps them for
// an hour.
func (m *MoRIIO) Discard(p *Pair, h Handoff) (leg Leg, read bool, err error) {
	edits := paramEdits(prefillEdits(p.Request), p.Request, h.Params)
	return Leg{
		Body:   p.Request.Doc.Splice(nil, edits),
		Fields: append(LegFields(pairID(p), p.Decode), identity),
	}, true, nil
}
