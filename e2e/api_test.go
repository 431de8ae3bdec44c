//go:build e2e

package e2e_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/baton-llm/baton/internal/enginesim"
)

// question is what a client asks, whatever the API.
type question struct {
	api    *api
	prompt string
	tokens int // length of the answer, in tokens and bytes
	stream bool
	model  string // "" for the one that all engines serve
}

func (q question) String() string {
	return fmt.Sprintf("%s, stream %t, %d tokens for %.40q", q.api.name, q.stream, q.tokens, q.prompt)
}

// api is one of the routes that generate.
type api struct {
	name, path string
	// ask fills in the body.
	ask func(q question, body map[string]any)
	// text returns the text of a whole answer, delta that of one event.
	text  func(body []byte) string
	delta func(data string) string
	// last is the data of the event that ends a stream, or its name.
	last string
}

// choice is a part of an answer of completions, chat and generate.
type choice struct {
	Choices []struct {
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		TokenIDs []int `json:"token_ids"`
	} `json:"choices"`
}

func parseChoice[T string | []byte](data T) (c choice) {
	_ = json.Unmarshal([]byte(data), &c) // what is none has no choices
	return c
}

func choiceText(c choice) string {
	var b strings.Builder
	for _, part := range c.Choices {
		b.WriteString(part.Text + part.Message.Content + part.Delta.Content)
	}
	return b.String()
}

// tokenText is the text of token ids, as the engines number them.
func tokenText(c choice) string {
	var b strings.Builder
	for _, part := range c.Choices {
		for _, id := range part.TokenIDs {
			b.WriteByte(byte(id - 3))
		}
	}
	return b.String()
}

func tokenIDs(s string) []int {
	ids := make([]int, len(s))
	for i := range len(s) {
		ids[i] = int(s[i]) + 3
	}
	return ids
}

var apis = []*api{
	{
		name: "chat", path: "/v1/chat/completions", last: "[DONE]",
		ask: func(q question, body map[string]any) {
			body["messages"] = []any{map[string]any{"role": "user", "content": q.prompt}}
			body["max_tokens"] = q.tokens
			streamOptions(q, body)
		},
		text:  func(b []byte) string { return choiceText(parseChoice(b)) },
		delta: func(s string) string { return choiceText(parseChoice(s)) },
	},
	{
		name: "completions", path: "/v1/completions", last: "[DONE]",
		ask: func(q question, body map[string]any) {
			body["prompt"], body["max_tokens"], body["min_tokens"] = q.prompt, q.tokens, min(2, q.tokens)
			streamOptions(q, body)
		},
		text:  func(b []byte) string { return choiceText(parseChoice(b)) },
		delta: func(s string) string { return choiceText(parseChoice(s)) },
	},
	{
		name: "responses", path: "/v1/responses", last: "response.completed",
		ask: func(q question, body map[string]any) {
			body["input"], body["max_output_tokens"] = q.prompt, q.tokens
		},
		text: func(b []byte) string {
			var r struct {
				Output []struct {
					Content []struct{ Text string } `json:"content"`
				} `json:"output"`
			}
			if json.Unmarshal(b, &r) != nil || len(r.Output) == 0 || len(r.Output[0].Content) == 0 {
				return ""
			}
			return r.Output[0].Content[0].Text
		},
		delta: func(s string) string {
			var d struct{ Type, Delta string }
			if json.Unmarshal([]byte(s), &d) != nil || d.Type != "response.output_text.delta" {
				return ""
			}
			return d.Delta
		},
	},
	{
		name: "messages", path: "/v1/messages", last: "message_stop",
		ask: func(q question, body map[string]any) {
			body["messages"] = []any{map[string]any{"role": "user", "content": q.prompt}}
			body["max_tokens"] = q.tokens
		},
		text: func(b []byte) string {
			var m struct {
				Content []struct{ Text string } `json:"content"`
			}
			if json.Unmarshal(b, &m) != nil || len(m.Content) == 0 {
				return ""
			}
			return m.Content[0].Text
		},
		delta: func(s string) string {
			var d struct {
				Type  string
				Delta struct{ Text string }
			}
			if json.Unmarshal([]byte(s), &d) != nil || d.Type != "content_block_delta" {
				return ""
			}
			return d.Delta.Text
		},
	},
	{
		name: "generate", path: "/inference/v1/generate", last: "[DONE]",
		ask: func(q question, body map[string]any) {
			body["token_ids"] = tokenIDs(q.prompt)
			body["sampling_params"] = map[string]any{"max_tokens": q.tokens, "min_tokens": min(2, q.tokens)}
			streamOptions(q, body)
		},
		text:  func(b []byte) string { return tokenText(parseChoice(b)) },
		delta: func(s string) string { return tokenText(parseChoice(s)) },
	},
}

var chat, completions = apis[0], apis[1]

// streamOptions are what vLLM refuses on a leg that does not stream.
func streamOptions(q question, body map[string]any) {
	if q.stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
}

// body is the request of the question, with more members if some are given.
func (q question) body(more ...map[string]any) []byte {
	body := map[string]any{"model": cmp.Or(q.model, model)}
	if q.stream {
		body["stream"] = true
	}
	q.api.ask(q, body)
	for _, members := range more {
		maps.Copy(body, members)
	}
	return encode(body)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a test's own mistake
	}
	return b
}

// text returns the text of an answer, and why the answer is not whole.
func (q question) text(a *answer) (string, error) {
	switch {
	case a.status != http.StatusOK:
		return "", fmt.Errorf("not answered: %v", a)
	case a.err != nil:
		return "", fmt.Errorf("broken off: %v", a)
	case !q.stream:
		return q.api.text(a.body), nil
	case len(a.events) == 0:
		return "", fmt.Errorf("no events: %v", a)
	}
	var b strings.Builder
	for i, ev := range a.events {
		b.WriteString(q.api.delta(ev.data))
		if isLast := ev.data == q.api.last || ev.name == q.api.last; isLast != (i == len(a.events)-1) {
			return "", fmt.Errorf("event %d of %d is %q", i+1, len(a.events), ev.data)
		}
	}
	if rest := bytes.TrimRight(a.body, "\n"); len(a.body)-len(rest) < 2 {
		return "", fmt.Errorf("the last event is open: %v", a)
	}
	return b.String(), nil
}

// check returns what is wrong with an answer, nil if it is the right one.
func (q question) check(a *answer) error {
	got, err := q.text(a)
	if err != nil {
		return err
	}
	if want := q.want(); got != want {
		return fmt.Errorf("%s: text is %q, want %q: %v", a.id, got, want, a)
	}
	return nil
}

// oracle is an engine in this process that no router stands before.
var oracle = sync.OnceValue(func() http.Handler {
	e, err := enginesim.New(enginesim.Config{Models: []string{model}})
	if err != nil {
		panic(err)
	}
	return e.Handler()
})

// want is the text that one regular engine answers with.
func (q question) want() string {
	whole := q
	whole.stream, whole.model = false, ""
	r := httptest.NewRequest(http.MethodPost, q.api.path, bytes.NewReader(whole.body()))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	oracle().ServeHTTP(w, r)
	text, err := whole.text(&answer{id: "oracle", status: w.Code, body: w.Body.Bytes()})
	if err == nil && len(text) != q.tokens {
		err = errors.New("wrong length")
	}
	if err != nil {
		panic(fmt.Sprintf("the oracle answers %s with %q: %v", q, text, err))
	}
	return text
}

// ask sends a question and fails the test if the answer is not right.
func (f *fleet) ask(q question, fields ...header) *answer {
	f.t.Helper()
	a := f.client.post(q.api.path, q.body(), fields...)
	if err := q.check(a); err != nil {
		f.t.Errorf("%s: %v", q, err)
	}
	return a
}

func eachAPI(t *testing.T, do func(t *testing.T, q question)) {
	t.Helper()
	for _, api := range apis {
		for _, stream := range []bool{false, true} {
			name := api.name
			if stream {
				name += "_stream"
			}
			t.Run(name, func(t *testing.T) {
				do(t, question{api: api, prompt: "Tell me about relay races, " + name + ".", tokens: 24, stream: stream})
			})
		}
	}
}
