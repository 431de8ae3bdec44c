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
	UseBeamSearch
	PromptLogprobs
	PreviousResponseID
	Background
	Store
	KVTransferParams
	Prompt
	PromptEmbeds
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
	IgnoreEOS
	Stop
	StopTokenIDs
	CacheSalt
	SessionParamsID
	User
	SessionID
	UserID
	PromptCacheKey
	ToolChoiceType
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
	"use_beam_search",
	"prompt_logprobs",
	"previous_response_id",
	"background",
	"store",
	"kv_transfer_params",
	"prompt",
	"prompt_embeds",
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
	"ignore_eos",
	"stop",
	"stop_token_ids",
	"cache_salt",
	"session_params.session_id",
	"user",
	"session_id",
	"user_id",
	"prompt_cache_key",
	"tool_choice.type",
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
		if limit, ok := r.Doc.Value(id).Int(); ok {
			r.Limit = cmp.Or(r.Limit, max(0, limit))
		}
	}
}

// Stored reports whether the request is about an earlier response, which only
// the worker that made it knows.
func (r *Request) Stored() bool {
	return r.Route.Class == Stored || r.Whole == "previous_response_id"
}

// whole names what only one worker that does both phases can serve: several
// prompts get hand-off parameters for the first alone, a beam search gets none,
// prompt log probabilities and echo need the prompt's own pass, and a stored
// response is known to its own worker only.
func (r *Request) whole() string {
	d := &r.Doc
	given := func(member int) bool {
		kind := d.Value(member).Kind
		return kind != Missing && kind != Null
	}
	// vLLM takes 1, "true" and "on" for true as well.
	wanted := func(member int) bool { return given(member) && d.Value(member).Kind != False }
	switch v := d.Value(Prompt); {
	case v.Kind == Array && v.Len > 1 && (v.First == String || v.First == Array):
		return "prompt"
	case given(PromptEmbeds) && (given(Prompt) || d.Value(PromptEmbeds).Len > 1):
		return "prompt_embeds"
	case wanted(Echo):
		return "echo"
	case wanted(UseBeamSearch):
		return "use_beam_search"
	case given(PromptLogprobs), given(SamplingPromptLogprobs): // 0 and false, which is 0, ask for them too
		return "prompt_logprobs"
	case given(PreviousResponseID):
		return "previous_response_id"
	case wanted(Background):
		return "background"
	default:
		return ""
	}
}
