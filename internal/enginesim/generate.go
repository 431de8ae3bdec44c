package enginesim

import "encoding/json"

// generateView renders /inference/v1/generate.
type generateView struct{ request string }

func parseGenerate(j *job, r *reader) {
	v := &generateView{request: j.requestID(r)}
	j.view = v
	j.id = "generate-tokens-" + v.request
	j.streaming(r)
	ids, ok := asIDs(r.object["token_ids"])
	switch {
	case !r.given("token_ids"):
		r.fail(badField("missing", "token_ids", "Field required"))
	case !ok:
		r.fail(badField("list_type", "token_ids", "Input should be a valid list"))
	}
	j.prompts = []prompt{tokenPrompt(ids)}
	if !r.given("sampling_params") {
		r.fail(badField("missing", "sampling_params", "Field required"))
	}
	in := &reader{object: r.inner("sampling_params")}
	j.sampling(in, "max_tokens")
	if in.err != nil {
		r.fail(in.err)
	}
	if j.limited == "" {
		j.limit = 16
	}
	j.cacheSalt(r)
	if j.kv == nil && !isNull(r.object["kv_transfer_params"]) {
		// The Python server has no such field at the top.
		j.e.mu.Lock()
		j.e.count.ignoredKV++
		j.e.mu.Unlock()
	}
}

type generateAnswer struct {
	RequestID      string           `json:"request_id"`
	Model          string           `json:"model"`
	Created        int64            `json:"created"`
	Choices        []generateChoice `json:"choices"`
	Usage          usage            `json:"usage"`
	PromptLogprobs null             `json:"prompt_logprobs"`
	KV             json.RawMessage  `json:"kv_transfer_params,omitempty"`
	EC             null             `json:"ec_transfer_params"`
}

type generateChoice struct {
	Index         int     `json:"index"`
	Logprobs      null    `json:"logprobs"`
	FinishReason  *string `json:"finish_reason"`
	TokenIDs      []int   `json:"token_ids"`
	RoutedExperts null    `json:"routed_experts"`
	SamplingMask  null    `json:"sampling_mask"`
}

func (v *generateView) whole(j *job) []byte {
	a := generateAnswer{
		RequestID: v.request, Model: j.model, Created: j.created, Choices: []generateChoice{},
		Usage: j.wholeUsage(), KV: j.params(),
	}
	for _, s := range j.seqs {
		a.Choices = append(a.Choices, generateChoice{
			Index: s.index, FinishReason: orNull(s.finish), TokenIDs: append([]int{}, s.tokens...),
		})
	}
	return encode(a)
}

type generateChunk struct {
	RequestID string           `json:"request_id"`
	Choices   []generateChoice `json:"choices"`
	Usage     *streamUsage     `json:"usage,omitempty"`
}

func (*generateView) opening(*job) [][]byte { return nil }

// delta sends nothing for a finish without a token.
func (v *generateView) delta(j *job, o output) [][]byte {
	if len(o.tokens) == 0 {
		return nil
	}
	return [][]byte{data(encode(generateChunk{
		RequestID: v.request, Usage: j.chunkUsage(o.seq, len(o.seq.tokens)),
		Choices: []generateChoice{{Index: o.seq.index, FinishReason: orNull(o.finish), TokenIDs: o.tokens}},
	}))}
}

func (v *generateView) closing(j *job) [][]byte {
	if !j.usage {
		return [][]byte{doneEvent}
	}
	return [][]byte{data(encode(generateChunk{
		RequestID: v.request, Choices: []generateChoice{}, Usage: j.finalUsage(),
	})), doneEvent}
}

func (*generateView) failure(_ *job, err *apiError) [][]byte {
	return [][]byte{data(err.spaced()), doneEvent}
}
