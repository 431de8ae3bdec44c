package enginesim

import (
	"encoding/json"
	"net/http"
	"strings"
)

// keptResponses bounds the store of answers.
const keptResponses = 256

// responsesView renders /v1/responses.
type responsesView struct {
	seq  int    // number of the next event
	item string // id of the message
	max  *int
}

func parseResponses(j *job, r *reader) {
	v := &responsesView{item: "msg_" + hex16()}
	j.view = v
	j.id = r.text("request_id") // the header does not count here
	if j.id == "" {
		j.id = "resp_" + hex16()
	}
	j.stream = r.flag("stream", false)
	j.prompts = []prompt{responsesPrompt(r)}
	v.max = r.integer("max_output_tokens")
	j.sampling(r, "max_output_tokens")
	j.n, j.minimum = 1, 0 // the API has neither
	j.cacheSalt(r)
	j.store = j.e.cfg.Store && r.flag("store", true)
	if r.flag("background", false) && !j.e.cfg.Store {
		r.fail(badValue("background", "background can only be used when `store` is true"))
	}
	if id := r.text("previous_response_id"); id != "" {
		j.e.mu.Lock()
		_, ok := j.e.stored[id]
		j.e.mu.Unlock()
		if !ok {
			r.fail(notFound("response_id", "Response with id '%s' not found.", id))
		}
	}
}

func responsesPrompt(r *reader) prompt {
	var list []message
	if r.given("instructions") {
		list = append(list, message{"system", r.text("instructions")})
	}
	if s, ok := asText(r.object["input"]); ok {
		list = append(list, message{"user", s})
	} else {
		list = append(list, messages(r, "input")...)
	}
	return newPrompt(render(r.object["tools"], list, true))
}

type response struct {
	ID                string          `json:"id"`
	CreatedAt         int64           `json:"created_at"`
	IncompleteDetails any             `json:"incomplete_details"`
	Instructions      null            `json:"instructions"`
	Metadata          null            `json:"metadata"`
	Model             string          `json:"model"`
	Object            string          `json:"object"`
	Output            []outputMessage `json:"output"`
	ParallelToolCalls bool            `json:"parallel_tool_calls"`
	Temperature       json.Number     `json:"temperature"`
	ToolChoice        string          `json:"tool_choice"`
	Tools             []null          `json:"tools"`
	TopP              json.Number     `json:"top_p"`
	Background        bool            `json:"background"`
	MaxOutputTokens   *int            `json:"max_output_tokens"`
	MaxToolCalls      null            `json:"max_tool_calls"`
	Previous          null            `json:"previous_response_id"`
	Prompt            null            `json:"prompt"`
	Reasoning         null            `json:"reasoning"`
	ServiceTier       string          `json:"service_tier"`
	Status            string          `json:"status"`
	Text              null            `json:"text"`
	TopLogprobs       null            `json:"top_logprobs"`
	Truncation        string          `json:"truncation"`
	Usage             *responsesUsage `json:"usage"`
	User              null            `json:"user"`
	KV                json.RawMessage `json:"kv_transfer_params,omitempty"`
}

type outputMessage struct {
	ID      string       `json:"id"`
	Content []outputText `json:"content"`
	Role    string       `json:"role"`
	Status  string       `json:"status"`
	Type    string       `json:"type"`
}

type outputText struct {
	Annotations []null `json:"annotations"`
	Text        string `json:"text"`
	Type        string `json:"type"`
	Logprobs    null   `json:"logprobs"`
}

type responsesUsage struct {
	Input         int `json:"input_tokens"`
	InputDetails  any `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails any `json:"output_tokens_details"`
	Total         int `json:"total_tokens"`
}

func (v *responsesView) object(j *job, status string) response {
	return response{
		ID: j.id, CreatedAt: j.created, Model: j.model, Object: "response", Output: []outputMessage{},
		ParallelToolCalls: true, Temperature: "1.0", ToolChoice: "auto", Tools: []null{}, TopP: "1.0",
		MaxOutputTokens: v.max, ServiceTier: "auto", Status: status, Truncation: "disabled",
		KV: json.RawMessage("null"),
	}
}

func (v *responsesView) message(text, status string) outputMessage {
	return outputMessage{v.item, []outputText{part(text)}, "assistant", status, "message"}
}

func part(text string) outputText {
	return outputText{Annotations: []null{}, Text: text, Type: "output_text"}
}

// final is the object of the whole answer.
func (v *responsesView) final(j *job) response {
	s := j.seqs[0]
	a := v.object(j, "completed")
	switch s.finish {
	case finishLength:
		a.Status = "incomplete"
		a.IncompleteDetails = struct {
			Reason string `json:"reason"`
		}{"max_output_tokens"}
	case finishAbort:
		a.Status = "cancelled"
	case finishError:
		a.Status = "failed"
	}
	a.Output = append(a.Output, v.message(string(s.text), "completed"))
	p, n := j.usageOf()
	type cachedTokens struct {
		Cached int `json:"cached_tokens"`
	}
	type reasoningTokens struct {
		Reasoning int `json:"reasoning_tokens"`
	}
	u := &responsesUsage{p, cachedTokens{}, n, reasoningTokens{}, p + n}
	if !j.e.cfg.HideCached {
		u.InputDetails = cachedTokens{j.cached}
	}
	a.Usage, a.KV = u, j.params()
	return a
}

func (v *responsesView) whole(j *job) []byte {
	b := encode(v.final(j))
	v.keep(j, b)
	return b
}

// keep stores the answer for GET.
func (*responsesView) keep(j *job, b []byte) {
	if !j.store {
		return
	}
	e := j.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stored[j.id] = b
	e.storeOrder = append(e.storeOrder, j.id)
	if len(e.storeOrder) > keptResponses {
		delete(e.stored, e.storeOrder[0])
		e.storeOrder = append(e.storeOrder[:0], e.storeOrder[1:]...)
	}
}

// storedResponse answers GET /v1/responses/{id} and POST .../cancel.
func (e *Engine) storedResponse(c *call) error {
	id, cancel := strings.CutSuffix(strings.TrimPrefix(c.r.URL.Path, responsePath), "/cancel")
	want := http.MethodGet
	if cancel {
		want = http.MethodPost
	}
	if c.r.Method != want {
		return c.refuse(statusError(http.StatusMethodNotAllowed))
	}
	e.mu.Lock()
	body, ok := e.stored[id]
	e.mu.Unlock()
	switch {
	case !ok:
		return c.refuse(notFound("response_id", "Response with id '%s' not found.", id))
	case cancel:
		return c.refuse(badValue("response_id", "Cannot cancel a synchronous response."))
	}
	return c.answer(http.StatusOK, "application/json", body)
}

// event numbers and renders an event whose fields follow the type.
func (v *responsesView) event(kind string, fields any) []byte {
	type head struct {
		Seq  int    `json:"sequence_number"`
		Type string `json:"type"`
	}
	b := encode(head{v.seq, kind})
	v.seq++
	if rest := encode(fields); len(rest) > 2 {
		b = append(append(rest[:len(rest)-1:len(rest)-1], ','), b[1:]...)
	}
	return append([]byte("event: "+kind+"\n"), data(b)...)
}

type responseField struct {
	Response response `json:"response"`
}

// place tells where in the output an event belongs.
type place struct {
	ContentIndex int    `json:"content_index"`
	ItemID       string `json:"item_id"`
	OutputIndex  int    `json:"output_index"`
}

type itemField struct {
	Item        outputMessage `json:"item"`
	OutputIndex int           `json:"output_index"`
}

type partField struct {
	place
	Part outputText `json:"part"`
}

func (v *responsesView) opening(j *job) [][]byte {
	r := responseField{v.object(j, "in_progress")}
	return [][]byte{v.event("response.created", r), v.event("response.in_progress", r)}
}

func (v *responsesView) delta(_ *job, o output) [][]byte {
	at := place{ItemID: v.item}
	var out [][]byte
	if o.first {
		item := v.message("", "in_progress")
		item.Content = []outputText{}
		out = append(out,
			v.event("response.output_item.added", itemField{Item: item}),
			v.event("response.content_part.added", partField{at, part("")}))
	}
	if o.text == "" {
		return out
	}
	return append(out, v.event("response.output_text.delta", struct {
		place
		Delta    string `json:"delta"`
		Logprobs []null `json:"logprobs"`
	}{at, o.text, []null{}}))
}

func (v *responsesView) closing(j *job) [][]byte {
	at, text := place{ItemID: v.item}, string(j.seqs[0].text)
	final := v.final(j)
	v.keep(j, encode(final))
	return [][]byte{
		v.event("response.output_text.done", struct {
			place
			Text     string `json:"text"`
			Logprobs []null `json:"logprobs"`
		}{at, text, []null{}}),
		v.event("response.content_part.done", partField{at, part(text)}),
		v.event("response.output_item.done", itemField{Item: v.message(text, "completed")}),
		v.event("response.completed", responseField{final}),
	}
}

// failure ends the stream without a word, as the real one does.
func (*responsesView) failure(*job, *apiError) [][]byte { return nil }
