package openai

import "cmp"

// The members that routing or a prefill leg is concerned with: their IDs in
// Request.Doc.
const (
	Model = iota
	Stream
	StreamOptions
	MaxTokens
	MaxCompletionTokens
	MaxOutputTokens
	MinTokens
	MinCompletionTokens
	N
	BestOf
	Echo
	PromptLogprobs
	PreviousResponseID
	Background
	Store
	KVTransferParams
	Prompt
	Messages
	Input
	TokenIDs
	Tools
	System
	Instructions
	SamplingMaxTokens
	SamplingMinTokens
	SamplingN
	SamplingPromptLogprobs
	SamplingKVTransferParams
)

var members = NewPaths(
	"model",
	"stream",
	"stream_options",
	"max_tokens",
	"max_completion_tokens",
	"max_output_tokens",
	"min_tokens",
	"min_completion_tokens",
	"n",
	"best_of",
	"echo",
	"prompt_logprobs",
	"previous_response_id",
	"background",
	"store",
	"kv_transfer_params",
	"prompt",
	"messages",
	"input",
	"token_ids",
	"tools",
	"system",
	"instructions",
	"sampling_params.max_tokens",
	"sampling_params.min_tokens",
	"sampling_params.n",
	"sampling_params.prompt_logprobs",
	"sampling_params.extra_args.kv_transfer_params",
)

// Request is what the router knows of one client request. Doc refers to the
// body. A request without a JSON body has an empty Doc.
type Request struct {
	Route *Route
	Doc   Doc
	Body  []byte

	Model  string // "" if the request names none
	Stream bool

	// PromptBytes is the size of the prompt's text as sent, PromptTokens the
	// number of token ids it is given in. One of them is usually 0.
	PromptBytes, PromptTokens int64
	// Limit is the most output tokens asked for, 0 if the request sets no limit.
	Limit int64

	// Whole names the first field that keeps prefill and decode from sharing the
	// work, "" if there is none.
	Whole string
}

// ParseJSON reads a JSON body into r. The error is an [*Error] for the client.
func (r *Request) ParseJSON(route *Route, body []byte) error {
	r.Route, r.Body = route, body
	if err := members.Scan(&r.Doc, body); err != nil {
		return &Error{Status: 400, Code: "invalid_json", Message: err.Error()}
	}
	d := &r.Doc
	switch v := d.Value(Model); v.Kind {
	case Missing, Null:
	case String:
		r.Model, _ = v.Text()
	default:
		return &Error{Status: 400, Code: "invalid_model", Param: "model", Message: "model must be a string, not " + v.Kind.String()}
	}
	r.Stream = d.Value(Stream).Bool()
	r.measure()
	if route.Class == Pairable {
		r.Whole = r.whole()
	}
	return nil
}

// measure finds the prompt's size and the output limit.
func (r *Request) measure() {
	for _, id := range [...]int{Prompt, Messages, Input, TokenIDs, Tools, System, Instructions} {
		v := r.Doc.Value(id)
		if v.Kind == Array && v.First == Number {
			r.PromptTokens += int64(v.Len)
		} else {
			r.PromptBytes += int64(len(v.Raw))
		}
	}
	for _, id := range [...]int{MaxCompletionTokens, MaxTokens, MaxOutputTokens, SamplingMaxTokens} {
		limit, _ := r.Doc.Value(id).Int()
		r.Limit = cmp.Or(r.Limit, max(0, limit))
	}
}

// whole names what only one worker that does both phases can serve: several
// prompts get hand-off parameters for the first alone, prompt log
// probabilities and echo need the prompt's own pass, and a stored response is
// known to its own worker only.
func (r *Request) whole() string {
	d := &r.Doc
	if v := d.Value(Prompt); v.Kind == Array && v.Len > 1 && (v.First == String || v.First == Array) {
		return "prompt"
	}
	if d.Value(Echo).Bool() {
		return "echo"
	}
	for _, id := range [...]int{PromptLogprobs, SamplingPromptLogprobs} {
		if v := d.Value(id); v.Kind != Missing && v.Kind != Null && v.Kind != False {
			return "prompt_logprobs"
		}
	}
	if v := d.Value(PreviousResponseID); v.Kind != Missing && v.Kind != Null {
		return "previous_response_id"
	}
	if d.Value(Background).Bool() {
		return "background"
	}
	return ""
}
