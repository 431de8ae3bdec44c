package enginesim

import (
	"encoding/json"
	"unicode/utf8"
)

// forced is the call that a request forces upon the model: that of the tool which
// its tool_choice names, or some call, which is then one of the first tool. A model
// that may choose never calls.
type forced struct {
	name   string
	schema json.RawMessage // of the arguments; nil for none
	named  bool
}

// forceChat reads tools and tool_choice of a chat request.
func (j *job) forceChat(r *reader) {
	tools, given := asList(r.object["tools"])
	if given && len(tools) == 0 {
		r.fail(badBody("", "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."))
	}
	choice := r.object["tool_choice"]
	name, isText := asText(choice)
	if isNull(choice) || name == "none" {
		return
	}
	if !given {
		r.fail(badBody("", "When using `tool_choice`, `tools` must be set."))
		return
	}
	var want string
	switch {
	case name == "auto":
		return
	case name == "required":
	case isText:
		r.fail(badBody("", "Invalid value for `tool_choice`: "+name+"! Only named tools, \"none\", \"auto\" or \"required\" are supported."))
		return
	default:
		o, _ := asObject(choice)
		f, _ := asObject(o["function"])
		want, _ = asText(f["name"])
	}
	for _, raw := range tools {
		o, _ := asObject(raw)
		f, _ := asObject(o["function"])
		if has, _ := asText(f["name"]); has == want || name == "required" {
			j.force = &forced{has, f["parameters"], name != "required"}
			return
		}
	}
	r.fail(badBody("", "The tool specified in `tool_choice` does not match any of the specified `tools`"))
}

// forceMessages reads tools and tool_choice of the Anthropic API.
func (j *job) forceMessages(r *reader) {
	choice := r.inner("tool_choice")
	kind, _ := asText(choice["type"])
	switch kind {
	case "any", "tool":
	case "auto", "none":
		return
	default:
		if choice != nil {
			r.fail(badField("literal_error", "tool_choice", "Input should be \\'auto\\', \\'any\\', \\'tool\\' or \\'none\\'"))
		}
		return
	}
	want, _ := asText(choice["name"])
	tools, _ := asList(r.object["tools"])
	for _, raw := range tools {
		o, _ := asObject(raw)
		if has, _ := asText(o["name"]); has == want || kind == "any" {
			j.force = &forced{has, o["input_schema"], kind == "tool"}
			return
		}
	}
	if kind == "tool" {
		r.fail(badValue("", "Tool '%s' has not been passed in `tools`.", want))
	}
}

// toolCall is the call that a sequence spells out. The text of a named call is its
// arguments; that of a required one is a list of one object that holds them.
type toolCall struct {
	id    string
	name  string
	named bool
	from  int // where the arguments begin in the text
	to    int // where they end
	size  int // of the whole text
	read  int // bytes of the text that delta has seen
	begun bool
}

// force makes s spell the call that j forces.
func (s *sequence) force(j *job) {
	f := j.force
	args := example(f.schema, s.story)
	head, tail := "", ""
	if !f.named {
		head, tail = `[{"name": `+string(encode(f.name))+`, "parameters": `, "}]"
	}
	text := head + args + tail
	s.call = &toolCall{
		id: "chatcmpl-tool-" + hex16(), name: f.name, named: f.named,
		from: len(head), to: len(head) + len(args), size: len(text),
	}
	s.story = &story{buf: []byte(text)}
	room := j.limit
	if j.limited == "" {
		room = j.e.cfg.MaxModelLen - len(s.prompt.tokens)
	}
	s.total, s.shown = room, room
	if room > len(text) { // the last token is the end of text
		s.total, s.shown, s.reason = len(text)+1, len(text), finishStop
	}
}

// arguments returns those of the call that text spells, ok is false if it spells
// none: a required one that was cut off is no list of calls.
func (c *toolCall) arguments(text []byte) (args string, ok bool) {
	if c.named {
		return string(text), len(text) > 0
	}
	if len(text) < c.size {
		return "", false
	}
	return string(text[c.from:c.to]), true
}

// callDelta is what a chunk adds to a call.
type callDelta struct {
	ID       string        `json:"id,omitempty"`
	Type     string        `json:"type,omitempty"`
	Index    int           `json:"index"`
	Function functionDelta `json:"function"`
}

type functionDelta struct {
	Name      json.RawMessage `json:"name,omitempty"`
	Arguments string          `json:"arguments"`
}

// delta returns what further text adds, nil for nothing.
func (c *toolCall) delta(text string) *callDelta {
	within := func(at int) int { return min(max(at-c.read, 0), len(text)) }
	args := text[within(c.from):within(c.to)]
	c.read += len(text)
	if args == "" && !c.named {
		return nil
	}
	d := &callDelta{Function: functionDelta{Arguments: args}}
	switch {
	case !c.begun:
		c.begun = true
		d.ID, d.Type, d.Function.Name = c.id, "function", encode(c.name)
	case !c.named:
		d.Function.Name = json.RawMessage("null")
	}
	return d
}

// chatFinish is the finish reason that a chat answer gives: that of a named call is
// the engine's own.
func (s *sequence) chatFinish(stream bool) string {
	if s.call == nil || s.call.named || s.finish != finishStop || stream && !s.call.begun {
		return s.finish
	}
	return "tool_calls"
}

// complete cuts off the bytes of a character that has not come whole: a detokenizer
// holds them back.
func complete(text string) (whole, rest string) {
	for at := len(text) - 1; at >= max(0, len(text)-utf8.UTFMax); at-- {
		if utf8.RuneStart(text[at]) {
			if !utf8.FullRuneInString(text[at:]) {
				return text[:at], text[at:]
			}
			break
		}
	}
	return text, ""
}
