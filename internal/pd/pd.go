// Package pd holds the dialects of prefill/decode disaggregation, one file per
// KV connector: how a prefill leg is asked for a hand-off, what the hand-off
// is, and how it is given to a decode leg. Dialects write bodies and send
// nothing; dispatch carries the legs out.
//
// A Dialect may be used from any goroutine. State it keeps about a worker
// belongs to that lifetime: it is keyed by *worker.Worker and dropped when the
// dialect, as a worker.Observer of the pools, is told that the worker left.
package pd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/worker"
)

// ErrNoHandoff is returned by Read when a prefill worker answered well but
// handed nothing over.
var ErrNoHandoff = errors.New("no hand-off in the prefill answer")

// FailedError is returned by Read when an answer with status 200 says that the
// prefill failed after all.
type FailedError struct{ Reason string }

func (e *FailedError) Error() string { return "prefill ended with " + e.Reason }

// Cancel says until when a leg may be ended early without harm to the engines.
type Cancel uint8

// The cancel rules. The zero rule is invalid.
const (
	_                  Cancel = iota
	AnyTime                   // the leg may be ended at any time
	DecodeUntilHandoff        // prefill at any time before its answer, decode not before its first byte
	UntilHandoff              // not before the hand-off is over: prefill's answer, decode's first byte
)

// Spec is what dispatch must know of a dialect.
type Spec struct {
	Name string
	// Concurrent sends both legs at once; else decode follows prefill's answer.
	Concurrent bool
	// PairFirst chooses the decode worker before prefill is sent, because the
	// prefill leg must name it.
	PairFirst bool
	// NeedsZMQ says that a worker without a known ZMQ address cannot be paired.
	NeedsZMQ bool
	// Again allows a decode leg that was not admitted to be tried on another
	// worker with the same hand-off.
	Again bool
	// Cancel is the rule for both legs once one of them has failed.
	Cancel Cancel
	// Validity is how long the engine keeps what it handed over; 0: for ever.
	Validity time.Duration
	// Routes are the names of the routes the connector serves.
	Routes []string
}

// Serves reports whether the dialect serves the route.
func (s *Spec) Serves(r *openai.Route) bool {
	return slices.Contains(s.Routes, r.Name)
}

// Pair is one attempt at a request by one prefill and one decode worker. Decode
// is nil until it has been chosen.
type Pair struct {
	Request *openai.Request
	ID      string // request id of the next leg, unless the dialect makes one of its own
	Mint    string // 32 lower-case hex digits, new for each pair: what ids of dialects are made of
	Prefill *worker.Worker
	Decode  *worker.Worker
	Turn    *int // data-parallel rank the dialect has chosen for prefill, if it has
}

// Leg is what is sent to one worker of a pair, beyond what the client sent.
type Leg struct {
	Body   []byte
	Fields exchange.Fields // replace fields of the client
}

// Handoff is what a prefill answer gave for the decode leg, as the dialect
// wants it back. Params is nil if nothing was handed over; a dialect whose
// engines hand over without telling the router leaves it empty.
type Handoff struct {
	Params []byte
	// Engine is the id of the process that handed over, "" if it does not tell.
	Engine string
}

// Dialect writes the legs for one KV connector.
type Dialect interface {
	Spec() Spec
	// Prefill writes the prefill leg.
	Prefill(p *Pair) (Leg, error)
	// Read takes the hand-off from the body of a prefill answer with status 200.
	// ErrNoHandoff and *FailedError are errors of their own kind; any other means
	// that the body made no sense. A concurrent dialect is asked too, and its
	// result is not needed.
	Read(p *Pair, body []byte) (Handoff, error)
	// Decode writes the decode leg. A zero hand-off asks for a leg that computes
	// the prompt itself.
	Decode(p *Pair, h Handoff) (Leg, error)
	// Discard writes a leg to the decode worker that makes the engines give up
	// the hand-off, and says whether it is to be read to its end or closed at its
	// headers. If the pair was chosen first, the worker is that of the pair.
	Discard(p *Pair, h Handoff) (leg Leg, read bool, err error)
}

// limitFields are the members of each route that limit the output. The prefill
// leg sets those marked always even if the client did not.
var limitFields = map[string][]struct {
	member int
	always bool
}{
	"chat":        {{openai.MaxTokens, true}, {openai.MaxCompletionTokens, false}},
	"completions": {{openai.MaxTokens, true}},
	"responses":   {{openai.MaxOutputTokens, true}},
	"messages":    {{openai.MaxTokens, true}},
	"generate":    {{openai.SamplingMaxTokens, true}},
}

var (
	rawFalse = []byte("false")
	rawOne   = []byte("1")
	rawAny   = []byte(`"any"`)
	rawAbort = []byte("abort")
	rawError = []byte("error")
)

// prefillEdits are the edits that make any client request one for the prompt
// alone: one token, not streamed, nothing that vLLM refuses together with that.
func prefillEdits(r *openai.Request) []openai.Edit {
	present := func(member int) bool { return r.Doc.Value(member).Kind != openai.Missing }
	edits := make([]openai.Edit, 0, 16)
	for _, f := range limitFields[r.Route.Name] {
		if f.always || present(f.member) {
			edits = append(edits, openai.Edit{Path: f.member, Raw: rawOne})
		}
	}
	for _, member := range [...]int{
		openai.StreamOptions, openai.MinTokens, openai.MinCompletionTokens, openai.BestOf,
		openai.SamplingMinTokens, openai.Background,
	} {
		if present(member) {
			edits = append(edits, openai.Edit{Path: member})
		}
	}
	for _, member := range [...]int{openai.N, openai.SamplingN} {
		if present(member) {
			edits = append(edits, openai.Edit{Path: member, Raw: rawOne})
		}
	}
	if present(openai.Stream) {
		edits = append(edits, openai.Edit{Path: openai.Stream, Raw: rawFalse})
	}
	switch r.Route.Name {
	case "responses":
		edits = append(edits, openai.Edit{Path: openai.Store, Raw: rawFalse})
	case "messages":
		// vLLM parses the arguments of a call of the tool named, which one token
		// cuts off, and fails. A call of any tool that is cut off is none, and the
		// prompt is the same.
		if kind, _ := r.Doc.Value(openai.ToolChoiceType).Text(); kind == "tool" {
			edits = append(edits, openai.Edit{Path: openai.ToolChoiceType, Raw: rawAny})
		}
	}
	return edits
}

// paramEdits set kv_transfer_params, or remove what the client sent if params
// is nil: where a KV cache is fetched from is never the client's to say. The
// generate route of vLLM's Python server reads them inside
// sampling_params.extra_args only, its Rust server at the top.
func paramEdits(edits []openai.Edit, r *openai.Request, params []byte) []openai.Edit {
	set := func(member int) {
		if params != nil || r.Doc.Value(member).Kind != openai.Missing {
			edits = append(edits, openai.Edit{Path: member, Raw: params})
		}
	}
	set(openai.KVTransferParams)
	if r.Route.Name == "generate" {
		set(openai.SamplingKVTransferParams)
	}
	return edits
}

// LegFields are the fields that every leg to a worker gets, whatever its
// dialect: the leg's request id, and the rank the worker is pinned to.
func LegFields(id string, w *worker.Worker) exchange.Fields {
	fields := exchange.Fields{{Name: "X-Request-Id", Value: id}}
	if n, ok := w.ID().Rank.Index(); ok {
		fields = append(fields, exchange.Field{Name: "X-Data-Parallel-Rank", Value: strconv.Itoa(n)})
	}
	return fields
}

// answer are the members of a prefill answer that say how it went.
const (
	answerParams = iota
	answerError
	answerChoices
	answerStatus
	answerEngine
)

var answerMembers = openai.NewPaths("kv_transfer_params", "error", "choices", "status", "kv_transfer_params.remote_engine_id")

// readAnswer scans a prefill answer and finds out whether it says that the
// prefill failed after all.
func readAnswer(d *openai.Doc, body []byte) error {
	if err := answerMembers.Scan(d, body); err != nil {
		return fmt.Errorf("prefill answer: %w", err)
	}
	if v := d.Value(answerError); v.Kind != openai.Missing && v.Kind != openai.Null {
		return &FailedError{Reason: "an error object"}
	}
	if status, _ := d.Value(answerStatus).Text(); status == "failed" || status == "cancelled" {
		return &FailedError{Reason: "status " + status}
	}
	choices := d.Value(answerChoices).Raw
	// Nearly all answers have neither word, and need no parsing.
	if !bytes.Contains(choices, rawAbort) && !bytes.Contains(choices, rawError) {
		return nil
	}
	if reason := finishReason(choices); reason == "abort" || reason == "error" {
		return &FailedError{Reason: "finish_reason " + reason}
	}
	return nil
}

// dataParallel is what each data-parallel rank appends to its engine's id.
var dataParallel = regexp.MustCompile(`_dp[0-9]+$`)

// readParams returns the hand-off parameters of a prefill answer, which may be
// at its top level only.
func readParams(body []byte) (Handoff, error) {
	var d openai.Doc
	if err := readAnswer(&d, body); err != nil {
		return Handoff{}, err
	}
	v := d.Value(answerParams)
	if v.Kind != openai.Object || v.Len == 0 {
		return Handoff{}, ErrNoHandoff
	}
	engine, _ := d.Value(answerEngine).Text()
	return Handoff{Params: v.Raw, Engine: dataParallel.ReplaceAllString(engine, "")}, nil
}

// finishReason returns the finish reason of the first choice, "" if there is
// none.
func finishReason(choices []byte) string {
	var list []struct {
		FinishReason string `json:"finish_reason"`
	}
	if json.Unmarshal(choices, &list) != nil || len(list) == 0 {
		return ""
	}
	return list[0].FinishReason
}
