package enginesim

import "encoding/json"

// null is a value that is null in the answer.
type null = *struct{}

// usage is the usage object of completions and chat.
type usage struct {
	Prompt            int            `json:"prompt_tokens"`
	Total             int            `json:"total_tokens"`
	Completion        int            `json:"completion_tokens"`
	PromptDetails     *promptDetails `json:"prompt_tokens_details"`
	CompletionDetails null           `json:"completion_tokens_details"`
}

type promptDetails struct {
	Cached     int  `json:"cached_tokens"`
	Created    null `json:"created_cache_tokens"`
	Multimodal null `json:"multimodal_tokens"`
}

// streamUsage is usage without what is null.
type streamUsage struct {
	Prompt        int                  `json:"prompt_tokens"`
	Total         int                  `json:"total_tokens"`
	Completion    int                  `json:"completion_tokens"`
	PromptDetails *streamPromptDetails `json:"prompt_tokens_details,omitempty"`
}

type streamPromptDetails struct {
	Cached int `json:"cached_tokens"`
}

func (j *job) wholeUsage() usage {
	p, c := j.usageOf()
	u := usage{Prompt: p, Total: p + c, Completion: c}
	if !j.e.cfg.HideCached {
		u.PromptDetails = &promptDetails{Cached: j.cached}
	}
	return u
}

func (j *job) finalUsage() *streamUsage {
	p, c := j.usageOf()
	u := &streamUsage{Prompt: p, Total: p + c, Completion: c}
	if !j.e.cfg.HideCached {
		u.PromptDetails = &streamPromptDetails{Cached: j.cached}
	}
	return u
}

// chunkUsage is the usage of one chunk, nil if it is not asked for.
func (j *job) chunkUsage(s *sequence, tokens int) *streamUsage {
	if !j.everyUsage {
		return nil
	}
	p := len(s.prompt.tokens)
	return &streamUsage{Prompt: p, Total: p + tokens, Completion: tokens}
}

// params is the kv_transfer_params of a plain answer; nil leaves it out.
func (j *job) params() json.RawMessage {
	switch {
	case j.c.form("no_kv") != nil:
		return nil
	case j.handoff == nil:
		return json.RawMessage("null")
	default:
		return j.handoff
	}
}

// orNull is nil for "", so that JSON has null.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// data is an event without a name.
func data(json []byte) []byte {
	return append(append([]byte("data: "), json...), "\n\n"...)
}

var doneEvent = []byte("data: [DONE]\n\n")

// completionView renders /v1/completions.
type completionView struct{ echoOnly bool }

func parseCompletion(j *job, r *reader) {
	v := &completionView{}
	j.view = v
	j.id = "cmpl-" + j.requestID(r)
	j.streaming(r)
	j.prompts = prompts(r, "prompt")
	j.sampling(r, "max_tokens")
	j.cacheSalt(r)
	j.echo = r.flag("echo", false)
	j.logprobs = r.intOr("logprobs", -1)
	switch {
	case j.limited == "":
		j.limit = 16
	case j.limit == 0 && j.echo:
		v.echoOnly = true
		j.limit = 1
	}
}

// prompts reads a text, a list of texts, a list of ids or a list of such lists.
func prompts(r *reader, name string) []prompt {
	raw := r.object[name]
	switch {
	case truthy(raw):
	case name == "prompt":
		r.fail(badBody("prompt", "Either prompt or prompt_embeds must be provided and non-empty."))
		return nil
	case isNull(raw):
		r.fail(badField("missing", name, "Field required"))
		return nil
	}
	if s, ok := asText(raw); ok {
		return []prompt{newPrompt(s)}
	}
	if ids, ok := asIDs(raw); ok {
		return []prompt{tokenPrompt(ids)}
	}
	list, _ := asList(raw)
	var out []prompt
	for _, item := range list {
		if s, ok := asText(item); ok {
			out = append(out, newPrompt(s))
		} else if ids, ok := asIDs(item); ok {
			out = append(out, tokenPrompt(ids))
		} else {
			out = nil
			break
		}
	}
	if out == nil {
		r.fail(badField("string_type", name, "Input should be a valid string"))
	}
	return out
}

// engineID is the id of the first sub-request; there is one for each prompt.
func (*completionView) engineID(j *job) string { return j.id + "-0" }

type completion struct {
	ID          string             `json:"id"`
	Object      string             `json:"object"`
	Created     int64              `json:"created"`
	Model       string             `json:"model"`
	Choices     []completionChoice `json:"choices"`
	ServiceTier null               `json:"service_tier"`
	Fingerprint string             `json:"system_fingerprint"`
	Usage       usage              `json:"usage"`
	KV          json.RawMessage    `json:"kv_transfer_params,omitempty"`
	EC          null               `json:"ec_transfer_params"`
	Metrics     null               `json:"metrics"`
}

type completionChoice struct {
	Index          int       `json:"index"`
	Text           string    `json:"text"`
	Logprobs       *logprobs `json:"logprobs"`
	FinishReason   *string   `json:"finish_reason"`
	StopReason     any       `json:"stop_reason"`
	TokenIDs       []int     `json:"token_ids"`
	PromptLogprobs null      `json:"prompt_logprobs"`
	PromptTokenIDs []int     `json:"prompt_token_ids"`
	RoutedExperts  null      `json:"routed_experts"`
}

// logprobs is the logprobs object of completions.
type logprobs struct {
	TextOffset []int                `json:"text_offset"`
	Values     []float64            `json:"token_logprobs"`
	Tokens     []string             `json:"tokens"`
	Top        []map[string]float64 `json:"top_logprobs"`
}

// logprob is the value of any token: enough for a shape.
const logprob = -0.25

func (j *job) logprobsOf(tokens []int, offset int) *logprobs {
	if j.logprobs < 0 {
		return nil
	}
	l := &logprobs{TextOffset: []int{}, Values: []float64{}, Tokens: []string{}, Top: []map[string]float64{}}
	for _, id := range tokens {
		text := detokenize([]int{id})
		l.TextOffset = append(l.TextOffset, offset)
		l.Values = append(l.Values, logprob)
		l.Tokens = append(l.Tokens, text)
		l.Top = append(l.Top, map[string]float64{text: logprob})
		offset += len(text)
	}
	return l
}

func (v *completionView) whole(j *job) []byte {
	a := completion{
		ID: j.id, Object: "text_completion", Created: j.created, Model: j.model,
		Choices: []completionChoice{}, Fingerprint: j.e.fingerprint, Usage: j.wholeUsage(), KV: j.params(),
	}
	for _, s := range j.seqs {
		text, tokens := string(s.text), s.tokens
		if v.echoOnly {
			text, tokens = "", nil
		}
		if j.echo {
			text = s.prompt.text + text
		}
		choice := completionChoice{
			Index: s.index, Text: text, Logprobs: j.logprobsOf(tokens, 0),
			FinishReason: orNull(s.finish), StopReason: s.stop,
		}
		if j.ids {
			choice.TokenIDs, choice.PromptTokenIDs = append([]int{}, tokens...), s.prompt.tokens
		}
		a.Choices = append(a.Choices, choice)
	}
	return encode(a)
}

type completionChunk struct {
	ID          string                  `json:"id"`
	Object      string                  `json:"object"`
	Created     int64                   `json:"created"`
	Model       string                  `json:"model"`
	Choices     []completionChunkChoice `json:"choices"`
	Usage       *streamUsage            `json:"usage,omitempty"`
	Fingerprint string                  `json:"system_fingerprint,omitempty"`
}

type completionChunkChoice struct {
	Index          int       `json:"index"`
	Text           string    `json:"text"`
	Logprobs       *logprobs `json:"logprobs"`
	FinishReason   *string   `json:"finish_reason"`
	StopReason     any       `json:"stop_reason"`
	PromptTokenIDs []int     `json:"prompt_token_ids"`
	TokenIDs       []int     `json:"token_ids"`
}

func (*completionView) chunk(j *job) completionChunk {
	return completionChunk{
		ID: j.id, Object: "text_completion", Created: j.created, Model: j.model,
		Choices: []completionChunkChoice{},
	}
}

func (*completionView) opening(*job) [][]byte { return nil }

func (v *completionView) delta(j *job, o output) [][]byte {
	s := o.seq
	text := o.text
	if v.echoOnly {
		text = ""
	}
	if j.echo && o.first {
		text = s.prompt.text + text
	}
	choice := completionChunkChoice{
		Index: s.index, Text: text, FinishReason: orNull(o.finish),
		Logprobs: j.logprobsOf(o.tokens, len(s.text)-len(o.text)),
	}
	if o.finish != "" {
		choice.StopReason = s.stop
	}
	if j.ids {
		choice.TokenIDs = o.tokens
		if o.first {
			choice.PromptTokenIDs = s.prompt.tokens
		}
	}
	c := v.chunk(j)
	c.Choices = append(c.Choices, choice)
	c.Usage = j.chunkUsage(s, len(s.tokens))
	if o.finish != "" && !j.usage {
		c.Fingerprint = j.e.fingerprint
	}
	return [][]byte{data(encode(c))}
}

func (v *completionView) closing(j *job) [][]byte {
	if !j.usage {
		return [][]byte{doneEvent}
	}
	c := v.chunk(j)
	c.Usage, c.Fingerprint = j.finalUsage(), j.e.fingerprint
	return [][]byte{data(encode(c)), doneEvent}
}

func (*completionView) failure(_ *job, err *apiError) [][]byte {
	return [][]byte{data(err.spaced()), doneEvent}
}
