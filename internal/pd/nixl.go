package pd

import (
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
)

// NIXL is the pull mode of vLLM's NixlConnector (also NixlPullConnector, and
// MultiConnector with a NIXL child).
//
// Prefill answers with kv_transfer_params that say where its blocks are; decode
// gets them back verbatim, unknown keys included, and pulls. Prefill keeps the
// blocks for kv_lease_duration (30 s) after its answer unless decode, from the
// moment it has the request, renews them; a hand-off older than that may name
// blocks with other content. A decode request that is closed after its
// admission makes decode tell prefill to free them.
//
// Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl.
type NIXL struct{ spec Spec }

var _ Dialect = (*NIXL)(nil)

// NIXLValidity is the default of kv_lease_duration.
const NIXLValidity = 30 * time.Second

// NewNIXL returns the dialect for engines that keep a hand-off for the given
// time.
func NewNIXL(validity time.Duration) *NIXL {
	return &NIXL{spec: Spec{
		Name:     "nixl",
		Again:    true,
		Cancel:   AnyTime,
		Validity: validity,
		Routes:   []string{"chat", "completions", "responses", "messages", "generate"},
	}}
}

// Spec implements [Dialect].
func (n *NIXL) Spec() Spec { return n.spec }

// askNIXL asks prefill for a hand-off. Only the first flag matters to vLLM; the
// rest is what its own proxies send.
var askNIXL = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)

// Prefill implements [Dialect].
func (*NIXL) Prefill(p *Pair) (Leg, error) {
	edits := paramEdits(prefillEdits(p.Request), p.Request, askNIXL)
	return Leg{
		Body: p.Request.Doc.Splice(nil, edits),
		// The answer is read here, so it must not come compressed.
		Fields: append(LegFields(p.ID, p.Prefill), exchange.Field{Name: "Accept-Encoding", Value: "identity"}),
	}, nil
}

// Read implements [Dialect].
func (*NIXL) Read(_ *Pair, body []byte) (Handoff, error) { return readParams(body) }

// Decode implements [Dialect].
func (*NIXL) Decode(p *Pair, h Handoff) (Leg, error) {
	edits := paramEdits(nil, p.Request, h.Params)
	return Leg{Body: p.Request.Doc.Splice(nil, edits), Fields: LegFields(p.ID, p.Decode)}, nil
}

// Discard implements [Dialect]: a streamed decode request, whose head comes as
// soon as it is admitted, closed there.
func (*NIXL) Discard(p *Pair, h Handoff) (leg Leg, read bool, err error) {
	edits := paramEdits([]openai.Edit{{Path: openai.Stream, Raw: []byte("true")}}, p.Request, h.Params)
	return Leg{Body: p.Request.Doc.Splice(nil, edits), Fields: LegFields(p.ID, p.Decode)}, false, nil
}
