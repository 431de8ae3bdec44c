package enginesim

import (
	"encoding/json"
	"strings"
)

// message is one turn of a conversation, as far as the template uses it.
type message struct{ role, content string }

// render is the chat template. A next turn extends what came before.
func render(tools json.RawMessage, list []message, generate bool) string {
	var b strings.Builder
	if truthy(tools) {
		b.WriteString("<|tools|>\n" + string(compact(tools)) + "\n<|end|>\n")
	}
	for _, m := range list {
		b.WriteString("<|" + m.role + "|>\n" + m.content + "\n<|end|>\n")
	}
	if generate {
		b.WriteString("<|assistant|>\n")
	}
	return b.String()
}

// messages reads a list of messages; name is its field.
func messages(r *reader, name string) []message {
	if !r.given(name) {
		r.fail(badField("missing", name, "Field required"))
		return nil
	}
	list, ok := asList(r.object[name])
	if !ok {
		r.fail(badField("list_type", name, "Input should be a valid list"))
		return nil
	}
	if len(list) == 0 {
		r.fail(badValue("", "list object has no element 0"))
	}
	var out []message
	for _, raw := range list {
		m, ok := asObject(raw)
		role, okRole := asText(m["role"])
		if name == "input" && !okRole { // such as a function's output
			out = append(out, message{"item", string(compact(raw))})
			continue
		}
		if !ok || !okRole {
			r.fail(badField("missing", name+"', 'role", "Field required"))
			return nil
		}
		out = append(out, message{role, content(m["content"]) + toolCalls(m)})
	}
	return out
}

// content flattens a message's content: a text or a list of parts. What is no
// text is part of the prompt as it is.
func content(raw json.RawMessage) string {
	if s, ok := asText(raw); ok || isNull(raw) {
		return s
	}
	parts, ok := asList(raw)
	if !ok {
		return string(compact(raw))
	}
	var b strings.Builder
	for _, raw := range parts {
		part, _ := asObject(raw)
		if s, ok := asText(part["text"]); ok {
			b.WriteString(s)
		} else {
			b.WriteString("<|media|>" + string(compact(raw)))
		}
	}
	return b.String()
}

func toolCalls(m object) string {
	if !truthy(m["tool_calls"]) {
		return ""
	}
	return "<|calls|>" + string(compact(m["tool_calls"]))
}

// chatView renders /v1/chat/completions.
type chatView struct{}

func parseChat(j *job, r *reader) {
	v := &chatView{}
	j.view = v
	j.id = "chatcmpl-" + j.requestID(r)
	j.streaming(r)
	p := chatPrompt(r)
	if ids, ok := asIDs(j.kv["prompt_token_ids"]); ok {
		p = tokenPrompt(ids)
		delete(j.kv, "prompt_token_ids")
		j.kvRaw = encode(j.kv)
	}
	j.prompts = []prompt{p}
	j.sampling(r, "max_completion_tokens", "max_tokens")
	j.forceChat(r)
	j.cacheSalt(r)
	if r.flag("logprobs", false) {
		j.logprobs = r.intOr("top_logprobs", 0)
	}
}

func chatPrompt(r *reader) prompt {
	list := messages(r, "messages")
	return newPrompt(render(r.object["tools"], list,
		r.flag("add_generation_prompt", true) && !r.flag("continue_final_message", false)))
}

type chatCompletion struct {
	ID             string          `json:"id"`
	Object         string          `json:"object"`
	Created        int64           `json:"created"`
	Model          string          `json:"model"`
	Choices        []chatChoice    `json:"choices"`
	ServiceTier    null            `json:"service_tier"`
	Fingerprint    string          `json:"system_fingerprint"`
	Usage          usage           `json:"usage"`
	PromptLogprobs null            `json:"prompt_logprobs"`
	PromptTokenIDs []int           `json:"prompt_token_ids"`
	PromptText     null            `json:"prompt_text"`
	KV             json.RawMessage `json:"kv_transfer_params,omitempty"`
	EC             null            `json:"ec_transfer_params"`
	Metrics        null            `json:"metrics"`
}

type chatChoice struct {
	Index         int           `json:"index"`
	Message       chatMessage   `json:"message"`
	Logprobs      *chatLogprobs `json:"logprobs"`
	FinishReason  *string       `json:"finish_reason"`
	StopReason    any           `json:"stop_reason"`
	TokenIDs      []int         `json:"token_ids"`
	RoutedExperts null          `json:"routed_experts"`
}

type chatMessage struct {
	Role         string     `json:"role"`
	Content      string     `json:"content"`
	Refusal      null       `json:"refusal"`
	Annotations  null       `json:"annotations"`
	Audio        null       `json:"audio"`
	FunctionCall null       `json:"function_call"`
	ToolCalls    []chatCall `json:"tool_calls,omitempty"`
	Reasoning    null       `json:"reasoning"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func (s *sequence) chatMessage() chatMessage {
	m := chatMessage{Role: "assistant", Content: string(s.text)}
	if s.call != nil {
		m.Content = ""
		if args, ok := s.call.arguments(s.text); ok {
			m.ToolCalls = []chatCall{{s.call.id, "function", chatFunction{s.call.name, args}}}
		}
	}
	return m
}

type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
}

type chatLogprob struct {
	Token   string        `json:"token"`
	Logprob float64       `json:"logprob"`
	Bytes   []int         `json:"bytes"`
	Top     []chatLogprob `json:"top_logprobs,omitempty"`
}

func (j *job) chatLogprobs(tokens []int) *chatLogprobs {
	if j.logprobs < 0 {
		return nil
	}
	l := &chatLogprobs{Content: []chatLogprob{}}
	for _, id := range tokens {
		text := detokenize([]int{id})
		p := chatLogprob{Token: text, Logprob: logprob, Bytes: []int{}}
		for i := range len(text) {
			p.Bytes = append(p.Bytes, int(text[i]))
		}
		if j.logprobs > 0 {
			p.Top = []chatLogprob{p}
		}
		l.Content = append(l.Content, p)
	}
	return l
}

func (*chatView) whole(j *job) []byte {
	a := chatCompletion{
		ID: j.id, Object: "chat.completion", Created: j.created, Model: j.model,
		Choices: []chatChoice{}, Fingerprint: j.e.fingerprint, Usage: j.wholeUsage(), KV: j.params(),
	}
	if j.ids {
		a.PromptTokenIDs = j.prompts[0].tokens
	}
	for _, s := range j.seqs {
		choice := chatChoice{
			Index: s.index, Message: s.chatMessage(),
			Logprobs: j.chatLogprobs(s.tokens), FinishReason: orNull(s.chatFinish(false)), StopReason: s.stop,
		}
		if j.ids {
			choice.TokenIDs = append([]int{}, s.tokens...)
		}
		a.Choices = append(a.Choices, choice)
	}
	return encode(a)
}

type chatChunk struct {
	ID      string            `json:"id"`
	Object  string            `json:"object"`
	Created int64             `json:"created"`
	Model   string            `json:"model"`
	Choices []json.RawMessage `json:"choices"`
	Usage   *streamUsage      `json:"usage,omitempty"`
}

// roleChunk is the first chunk of a choice.
type roleChunk struct {
	chatChunk
	PromptTokenIDs []int `json:"prompt_token_ids"`
	PromptText     null  `json:"prompt_text"`
}

type roleChoice struct {
	Index        int           `json:"index"`
	Delta        roleDelta     `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type roleDelta struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type deltaChoice struct {
	Index        int           `json:"index"`
	Delta        any           `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	TokenIDs     []int         `json:"token_ids"`
}

type contentDelta struct {
	Content string `json:"content"`
}

type callsDelta struct {
	ToolCalls []*callDelta `json:"tool_calls,omitempty"`
}

// lastChoice is the choice of the chunk with the finish reason.
type lastChoice struct {
	Index        int           `json:"index"`
	Delta        any           `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   any           `json:"stop_reason"`
	TokenIDs     []int         `json:"token_ids"`
}

func (*chatView) chunk(j *job) chatChunk {
	return chatChunk{
		ID: j.id, Object: "chat.completion.chunk", Created: j.created, Model: j.model,
		Choices: []json.RawMessage{},
	}
}

func (v *chatView) role(j *job, s *sequence) []byte {
	c := roleChunk{chatChunk: v.chunk(j)}
	c.Choices = append(c.Choices, encode(roleChoice{Index: s.index, Delta: roleDelta{Role: "assistant"}}))
	c.Usage = j.chunkUsage(s, 0)
	if j.ids {
		c.PromptTokenIDs = s.prompt.tokens
	}
	return data(encode(c))
}

func (*chatView) opening(*job) [][]byte { return nil }

func (v *chatView) delta(j *job, o output) [][]byte {
	var out [][]byte
	s := o.seq
	if o.first {
		out = append(out, v.role(j, s))
	}
	tokens := o.tokens
	if !j.ids {
		tokens = nil
	}
	delta := any(contentDelta{o.text})
	if s.call != nil {
		d := s.call.delta(o.text)
		switch {
		case d != nil:
			delta = callsDelta{[]*callDelta{d}}
		case o.finish == "" && !j.ids && j.logprobs < 0:
			return out
		default:
			delta = callsDelta{}
		}
	}
	c := v.chunk(j)
	choice := deltaChoice{s.index, delta, j.chatLogprobs(o.tokens), nil, tokens}
	if o.finish == "" {
		c.Choices = append(c.Choices, encode(choice))
	} else {
		c.Choices = append(c.Choices, encode(lastChoice{
			choice.Index, choice.Delta, choice.Logprobs, orNull(s.chatFinish(true)), s.stop, tokens,
		}))
	}
	c.Usage = j.chunkUsage(s, len(s.tokens))
	return append(out, data(encode(c)))
}

func (v *chatView) closing(j *job) [][]byte {
	if !j.usage {
		return [][]byte{doneEvent}
	}
	c := v.chunk(j)
	c.Usage = j.finalUsage()
	return [][]byte{data(encode(c)), doneEvent}
}

// failure comes after the role chunks if the engine has taken the request.
func (v *chatView) failure(j *job, err *apiError) [][]byte {
	var out [][]byte
	for _, s := range j.seqs {
		if !s.started {
			out = append(out, v.role(j, s))
		}
	}
	return append(out, data(err.spaced()), doneEvent)
}
