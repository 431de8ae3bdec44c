package enginesim

import (
	"encoding/json"
	"strconv"
)

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
	j.forceMessages(r)
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
	ID           string          `json:"id"`
	Type         string          `json:"type"`
	Role         string          `json:"role"`
	Content      []any           `json:"content"`
	Model        string          `json:"model"`
	StopReason   *string         `json:"stop_reason"`
	StopSequence any             `json:"stop_sequence"`
	Usage        anthropicUsage  `json:"usage"`
	KV           json.RawMessage `json:"kv_transfer_params,omitempty"`
}

type anthropicText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type anthropicCall struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

type anthropicArguments struct {
	Type string `json:"type"`
	JSON string `json:"partial_json"`
}

func (c *toolCall) block(input string) anthropicCall {
	return anthropicCall{"tool_use", c.id, c.name, json.RawMessage(input)}
}

func (j *job) anthropicUsage() anthropicUsage {
	p, c := j.usageOf()
	return anthropicUsage{p, c}
}

func anthropicStop(s *sequence, stream bool) *string {
	switch {
	case s.chatFinish(stream) != s.finish:
		return orNull("tool_use")
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
	content := []any{}
	if s.call == nil {
		content = append(content, anthropicText{"text", string(s.text)})
	} else if args, ok := s.call.arguments(s.text); ok {
		content = append(content, s.call.block(args))
	}
	return encode(anthropicMessage{
		ID: j.id, Type: "message", Role: "assistant", Content: content,
		Model: j.model, StopReason: anthropicStop(s, false), StopSequence: s.stop, Usage: j.anthropicUsage(),
		KV: j.handoff, // what is null is left out
	})
}

// unfit: the input of a call is an object here and no text, so that vLLM fails with
// the arguments of a named one that was cut off.
func (messagesView) unfit(j *job) *apiError {
	s := j.seqs[0]
	if s.call == nil {
		return nil
	}
	if args, ok := s.call.arguments(s.text); ok && !json.Valid([]byte(args)) {
		e := internalError()
		e.message = "Expecting value: line 1 column " + strconv.Itoa(len(args)+1) + " (char " + strconv.Itoa(len(args)) + ")"
		return e
	}
	return nil
}

func named(name string, v any) []byte {
	return append([]byte("event: "+name+"\n"), data(encode(v))...)
}

func (messagesView) opening(*job) [][]byte { return nil }

func (messagesView) delta(j *job, o output) [][]byte {
	var out [][]byte
	block, delta := any(anthropicText{Type: "text"}), any(anthropicText{"text_delta", o.text})
	starts, more := o.first, o.text != ""
	if c := o.seq.call; c != nil {
		begun := c.begun
		d := c.delta(o.text)
		starts, more = d != nil && !begun, d != nil && d.Function.Arguments != ""
		if d != nil {
			block, delta = c.block("{}"), anthropicArguments{"input_json_delta", d.Function.Arguments}
		}
	}
	if o.first {
		out = append(out, named("message_start", struct {
			Type    string           `json:"type"`
			Message anthropicMessage `json:"message"`
		}{"message_start", anthropicMessage{
			ID: j.id, Type: "message", Role: "assistant", Content: []any{}, Model: j.model,
			Usage: anthropicUsage{Input: j.promptTokens()},
		}}))
	}
	if starts {
		out = append(out, named("content_block_start", struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
			Block any    `json:"content_block"`
		}{"content_block_start", 0, block}))
	}
	if more {
		out = append(out, named("content_block_delta", struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
			Delta any    `json:"delta"`
		}{"content_block_delta", 0, delta}))
	}
	return out
}

func (messagesView) closing(j *job) [][]byte {
	type delta struct {
		StopReason   *string `json:"stop_reason"`
		StopSequence any     `json:"stop_sequence,omitempty"`
	}
	s := j.seqs[0]
	var out [][]byte
	if s.call == nil || s.call.begun {
		out = append(out, named("content_block_stop", struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
		}{"content_block_stop", 0}))
	}
	return append(
		out, named("message_delta", struct {
			Type  string         `json:"type"`
			Delta delta          `json:"delta"`
			Usage anthropicUsage `json:"usage"`
		}{"message_delta", delta{anthropicStop(s, true), s.stop}, j.anthropicUsage()}),
		named("message_stop", struct {
			Type string `json:"type"`
		}{"message_stop"}))
}

func (messagesView) failure(_ *job, err *apiError) [][]byte {
	return [][]byte{append([]byte("event: error\n"), data(err.anthropic())...)}
}
