package enginesim

import "encoding/json"

// messagesView renders /v1/messages, the Anthropic API.
type messagesView struct{}

func parseMessages(j *job, r *reader) {
	j.view = messagesView{}
	j.id = "chatcmpl-" + j.requestID(r)
	j.stream = r.flag("stream", false)
	j.prompts = []prompt{anthropicPrompt(r)}
	if !r.given("max_tokens") {
		r.fail(badField("missing", "max_tokens", "Field required"))
	}
	j.sampling(r, "max_tokens")
	j.n, j.minimum = 1, 0 // the API has neither
	if list, ok := asList(r.object["stop_sequences"]); ok {
		for _, item := range list {
			if s, ok := asText(item); ok && s != "" {
				j.stops = append(j.stops, s)
			}
		}
	}
	j.cacheSalt(r)
}

func anthropicPrompt(r *reader) prompt {
	var list []message
	if r.given("system") {
		list = append(list, message{"system", content(r.object["system"])})
	}
	list = append(list, messages(r, "messages")...)
	return newPrompt(render(r.object["tools"], list, true))
}

// countTokens answers POST /v1/messages/count_tokens.
func (e *Engine) countTokens(c *call) error {
	r, err := c.reader()
	if err != nil {
		return c.refuse(err)
	}
	p := anthropicPrompt(r)
	if err := e.served(r); err != nil {
		return c.refuse(err)
	}
	return c.json(struct {
		Input int `json:"input_tokens"`
	}{len(p.tokens)})
}

type anthropicUsage struct {
	Input  int `json:"input_tokens"`
	Output int `json:"output_tokens"`
}

type anthropicMessage struct {
	ID           string           `json:"id"`
	Type         string           `json:"type"`
	Role         string           `json:"role"`
	Content      []anthropicBlock `json:"content"`
	Model        string           `json:"model"`
	StopReason   *string          `json:"stop_reason"`
	StopSequence any              `json:"stop_sequence"`
	Usage        anthropicUsage   `json:"usage"`
	KV           json.RawMessage  `json:"kv_transfer_params,omitempty"`
}

type anthropicBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func (j *job) anthropicUsage() anthropicUsage {
	p, c := j.usageOf()
	return anthropicUsage{p, c}
}

func anthropicStop(s *sequence) *string {
	switch {
	case s.finish == finishLength:
		return orNull("max_tokens")
	case s.stop != nil:
		return orNull("stop_sequence")
	case s.finish == finishStop:
		return orNull("end_turn")
	default:
		return orNull(s.finish)
	}
}

func (messagesView) whole(j *job) []byte {
	s := j.seqs[0]
	return encode(anthropicMessage{
		ID: j.id, Type: "message", Role: "assistant", Content: []anthropicBlock{{"text", string(s.text)}},
		Model: j.model, StopReason: anthropicStop(s), StopSequence: s.stop, Usage: j.anthropicUsage(),
		KV: j.handoff, // what is null is left out
	})
}

func named(name string, v any) []byte {
	return append([]byte("event: "+name+"\n"), data(encode(v))...)
}

func (messagesView) opening(*job) [][]byte { return nil }

func (messagesView) delta(j *job, o output) [][]byte {
	var out [][]byte
	if o.first {
		out = append(out, named("message_start", struct {
			Type    string           `json:"type"`
			Message anthropicMessage `json:"message"`
		}{"message_start", anthropicMessage{
			ID: j.id, Type: "message", Role: "assistant", Content: []anthropicBlock{}, Model: j.model,
			Usage: anthropicUsage{Input: j.promptTokens()},
		}}), named("content_block_start", struct {
			Type  string         `json:"type"`
			Index int            `json:"index"`
			Block anthropicBlock `json:"content_block"`
		}{"content_block_start", 0, anthropicBlock{Type: "text"}}))
	}
	if o.text == "" {
		return out
	}
	return append(out, named("content_block_delta", struct {
		Type  string         `json:"type"`
		Index int            `json:"index"`
		Delta anthropicBlock `json:"delta"`
	}{"content_block_delta", 0, anthropicBlock{"text_delta", o.text}}))
}

func (messagesView) closing(j *job) [][]byte {
	type delta struct {
		StopReason   *string `json:"stop_reason"`
		StopSequence any     `json:"stop_sequence,omitempty"`
	}
	s := j.seqs[0]
	return [][]byte{
		named("content_block_stop", struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
		}{"content_block_stop", 0}),
		named("message_delta", struct {
			Type  string         `json:"type"`
			Delta delta          `json:"delta"`
			Usage anthropicUsage `json:"usage"`
		}{"message_delta", delta{anthropicStop(s), s.stop}, j.anthropicUsage()}),
		named("message_stop", struct {
			Type string `json:"type"`
		}{"message_stop"}),
	}
}

func (messagesView) failure(_ *job, err *apiError) [][]byte {
	return [][]byte{append([]byte("event: error\n"), data(err.anthropic())...)}
}
