package pd

import (
	"slices"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
)

// P2P is vLLM's P2pNcclConnector (removed in June 2026). Everything is in the
// request id, which is the same on both legs and holds both ZMQ addresses:
// prefill sends the KV cache to the one while it computes, decode waits for it
// from the other.
//
// A decode worker that waits for a prefill that does not send stands still for
// good, with all its requests, and one that never gets its request keeps what
// was sent. So decode follows a good prefill answer, on the worker that the id
// names, or the pair is chosen anew with a new id; a prefill under way is not
// cut off; and what was sent and will not be used is fetched by a decode of one
// token.
//
// Source: vllm/distributed/kv_transfer/kv_connector/v1/p2p at v0.22.
type P2P struct{}

var _ Dialect = P2P{}

// Spec implements [Dialect].
func (P2P) Spec() Spec {
	return Spec{
		Name:      "p2p",
		PairFirst: true,
		NeedsZMQ:  true,
		Cancel:    UntilHandoff,
		Routes:    []string{"chat", "completions"},
	}
}

// pairID is the id that names both engines.
func pairID(p *Pair) string {
	return "___prefill_addr_" + p.Prefill.Endpoint().ZMQ +
		"___decode_addr_" + p.Decode.Endpoint().ZMQ + "_" + p.Mint
}

// Prefill implements [Dialect].
func (P2P) Prefill(p *Pair) (Leg, error) {
	return Leg{
		Body:   p.Request.Doc.Splice(nil, sameNames(p.Request)),
		Fields: append(LegFields(pairID(p), p.Prefill), identity),
	}, nil
}

// sameNames are the edits of a prefill leg, but for n and best_of: with several
// samples each is named by its number and the id, and decode would wait for
// those names.
func sameNames(r *openai.Request) []openai.Edit {
	edits := slices.DeleteFunc(prefillEdits(r), func(e openai.Edit) bool {
		return e.Path == openai.N || e.Path == openai.BestOf
	})
	return paramEdits(edits, r, nil)
}

// identity keeps an answer that is read here from being compressed.
var identity = exchange.Field{Name: "Accept-Encoding", Value: "identity"}

// Read implements [Dialect]: an answer that did not fail means that all was sent.
func (P2P) Read(_ *Pair, body []byte) (Handoff, error) {
	var d openai.Doc
	if err := readAnswer(&d, body); err != nil {
		return Handoff{}, err
	}
	return Handoff{Params: []byte{}}, nil
}

// Decode implements [Dialect].
func (P2P) Decode(p *Pair, _ Handoff) (Leg, error) {
	edits := paramEdits(nil, p.Request, nil)
	return Leg{Body: p.Request.Doc.Splice(nil, edits), Fields: LegFields(pairID(p), p.Decode)}, nil
}

// Discard implements [Dialect]: a decode of one token, read to its end.
func (P2P) Discard(p *Pair, _ Handoff) (leg Leg, read bool, err error) {
	return Leg{
		Body:   p.Request.Doc.Splice(nil, sameNames(p.Request)),
		Fields: append(LegFields(pairID(p), p.Decode), identity),
	}, true, nil
}
