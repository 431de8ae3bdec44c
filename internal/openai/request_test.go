package openai_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/openai"
)

// facts are what a Request says beside its Doc.
type facts struct {
	Model                     string
	Stream                    bool
	PromptBytes, PromptTokens int64
	Limit                     int64
	Whole                     string
}

func parseJSON(t *testing.T, path, body string) (*openai.Request, error) {
	t.Helper()
	route := openai.FindRoute(path, nil)
	if route == nil {
		t.Fatalf("%s is not served", path)
	}
	r := new(openai.Request)
	return r, r.ParseJSON(route, []byte(body))
}

func TestRequestFacts(t *testing.T) {
	t.Parallel()
	const (
		chat        = "/v1/chat/completions"
		completions = "/v1/completions"
		responses   = "/v1/responses"
		generate    = "/inference/v1/generate"
	)
	size := func(raw ...string) int64 { return int64(len(strings.Join(raw, ""))) }
	for _, tt := range []struct {
		name, path, body string
		want             facts
	}{
		{"nothing", chat, `{}`, facts{}},
		{"model", chat, `{"model":"m"}`, facts{Model: "m"}},
		{"the last model", chat, `{"model":"a","model":"b"}`, facts{Model: "b"}},
		{"escaped model", chat, `{"mod\u0065l":"\u00e9\/x"}`, facts{Model: "é/x"}},
		{"model with bytes that are no text", chat, "{\"model\":\"a\xff\xfeb\"}", facts{Model: "a\uFFFDb"}},
		{"no model", chat, `{"model":null}`, facts{}},
		{"empty model", chat, `{"model":""}`, facts{}},
		{"a model further down", chat, `{"x":{"model":"a"},"Model":"b"}`, facts{}},

		{"stream", chat, `{"stream":true}`, facts{Stream: true}},
		{"no stream", chat, `{"stream":false}`, facts{}},
		{"the last stream", chat, `{"stream":true,"stream":null}`, facts{}},

		{"max_tokens", chat, `{"max_tokens":7}`, facts{Limit: 7}},
		{"max_completion_tokens", chat, `{"max_completion_tokens":8}`, facts{Limit: 8}},
		{"it goes before", chat, `{"max_tokens":7,"max_completion_tokens":8}`, facts{Limit: 8}},
		{"unless it is null", chat, `{"max_tokens":7,"max_completion_tokens":null}`, facts{Limit: 7}},
		{"max_output_tokens", responses, `{"max_output_tokens":9}`, facts{Limit: 9}},
		{"nested max_tokens", generate, `{"sampling_params":{"max_tokens":3}}`, facts{Limit: 3}},
		{"no number", chat, `{"max_tokens":"7"}`, facts{}},
		{"a fraction", chat, `{"max_tokens":7.0}`, facts{}},
		{"below 0", chat, `{"max_tokens":-7}`, facts{}},
		{"beyond all numbers", chat, `{"max_tokens":99999999999999999999}`, facts{}},

		{"a prompt", completions, `{"prompt":"hello"}`, facts{PromptBytes: 7}},
		{"token ids", completions, `{"prompt":[1, 2,3]}`, facts{PromptTokens: 3}},
		{"token ids of generate", generate, `{"token_ids":[1,2,3,4]}`, facts{PromptTokens: 4}},
		{"no token ids", generate, `{"token_ids":[]}`, facts{PromptBytes: 2}},
		{"a conversation", chat, `{"messages":[{"content":"hi"}],"tools":[1]}`, facts{PromptBytes: size(`[{"content":"hi"}]`), PromptTokens: 1}},
		{"with tools", chat, `{"messages":[{"a":"b"}],"tools":[{"c":"d"}],"x":"y"}`, facts{PromptBytes: size(`[{"a":"b"}]`, `[{"c":"d"}]`)}},
		{"a system prompt", "/v1/messages", `{"messages":[{}],"system":"abc"}`, facts{PromptBytes: 4 + 5}},
		{"input and instructions", responses, `{"input":"hi","instructions":"be good"}`, facts{PromptBytes: 4 + 9}},

		// Several prompts get one hand-off.
		{"one text in a list", completions, `{"prompt":["a"]}`, facts{PromptBytes: 5}},
		{"texts", completions, `{"prompt":["a","b"]}`, facts{PromptBytes: 9, Whole: "prompt"}},
		{"one list of ids in a list", completions, `{"prompt":[[1,2]]}`, facts{PromptBytes: 7}},
		{"lists of ids", completions, `{"prompt":[[1],[2]]}`, facts{PromptBytes: 9, Whole: "prompt"}},
		{"no prompt", completions, `{"prompt":[]}`, facts{PromptBytes: 2}},
		{"an embedding", completions, `{"prompt_embeds":"x"}`, facts{}},
		{"an embedding in a list", completions, `{"prompt_embeds":["x"],"prompt":null}`, facts{PromptBytes: 4}},
		{"embeddings", completions, `{"prompt_embeds":["x","y"]}`, facts{Whole: "prompt_embeds"}},
		{"an embedding and a prompt", completions, `{"prompt_embeds":"x","prompt":"a"}`, facts{PromptBytes: 3, Whole: "prompt_embeds"}},

		// Case 1.18: what needs the prompt's own pass.
		{"echo", completions, `{"echo":true}`, facts{Whole: "echo"}},
		{"echo, as pydantic reads it", completions, `{"echo":"on"}`, facts{Whole: "echo"}},
		{"no echo", completions, `{"echo":false}`, facts{}},
		{"echo null", completions, `{"echo":null,"logprobs":1}`, facts{}},
		{"prompt_logprobs", completions, `{"prompt_logprobs":1}`, facts{Whole: "prompt_logprobs"}},
		{"prompt_logprobs 0", chat, `{"prompt_logprobs":0}`, facts{Whole: "prompt_logprobs"}},
		{"prompt_logprobs -1", chat, `{"prompt_logprobs":-1}`, facts{Whole: "prompt_logprobs"}},
		{"prompt_logprobs false, which is 0", chat, `{"prompt_logprobs":false}`, facts{Whole: "prompt_logprobs"}},
		{"prompt_logprobs null", chat, `{"prompt_logprobs":null,"logprobs":true,"top_logprobs":3}`, facts{}},
		{"nested prompt_logprobs", generate, `{"sampling_params":{"prompt_logprobs":1}}`, facts{Whole: "prompt_logprobs"}},
		{"prompt_logprobs of another place", chat, `{"sampling_params":{"x":{"prompt_logprobs":1}}}`, facts{}},
		{"beam search", completions, `{"use_beam_search":true}`, facts{Whole: "use_beam_search"}},
		{"no beam search", completions, `{"use_beam_search":false}`, facts{}},

		// Cases 1.25 and 5.7: what is stored stays on its worker.
		{"previous_response_id", responses, `{"previous_response_id":"r"}`, facts{Whole: "previous_response_id"}},
		{"previous_response_id null", responses, `{"previous_response_id":null}`, facts{}},
		{"background", responses, `{"background":true}`, facts{Whole: "background"}},
		{"no background", responses, `{"background":false,"store":true}`, facts{}},

		{"a route that is not paired", "/v1/embeddings", `{"model":"m","input":["a","b"],"echo":true}`, facts{Model: "m", PromptBytes: 9}},
	} {
		r, err := parseJSON(t, tt.path, tt.body)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := facts{r.Model, r.Stream, r.PromptBytes, r.PromptTokens, r.Limit, r.Whole}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s (-want +got)\n%s", tt.name, tt.body, diff)
		}
		if r.Route.Path != tt.path || string(r.Body) != tt.body {
			t.Errorf("%s: route %v, body %s", tt.name, r.Route, r.Body)
		}
	}
}

// The members that edits name are the ones of that name.
func TestRequestMembers(t *testing.T) {
	t.Parallel()
	const body = `{"model":1,"stream":2,"stream_options":3,"max_tokens":4,"max_completion_tokens":5,"max_output_tokens":6,` +
		`"min_tokens":7,"min_completion_tokens":8,"n":9,"best_of":10,"echo":11,"prompt_logprobs":12,"previous_response_id":13,` +
		`"background":14,"store":15,"kv_transfer_params":16,"prompt":17,"messages":18,"input":19,"token_ids":20,"tools":21,` +
		`"system":22,"instructions":23,"use_beam_search":24,"prompt_embeds":25,"sampling_params":{"max_tokens":26,"min_tokens":27,` +
		`"n":28,"prompt_logprobs":29,"extra_args":{"kv_transfer_params":30}}}`
	r, err := parseJSON(t, "/v1/embeddings", strings.Replace(body, `"model":1`, `"model":"1"`, 1))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int]string{
		openai.Model: `"1"`, openai.Stream: "2", openai.StreamOptions: "3", openai.MaxTokens: "4", openai.MaxCompletionTokens: "5",
		openai.MaxOutputTokens: "6", openai.MinTokens: "7", openai.MinCompletionTokens: "8", openai.N: "9", openai.BestOf: "10",
		openai.Echo: "11", openai.PromptLogprobs: "12", openai.PreviousResponseID: "13", openai.Background: "14", openai.Store: "15",
		openai.KVTransferParams: "16", openai.Prompt: "17", openai.Messages: "18", openai.Input: "19", openai.TokenIDs: "20",
		openai.Tools: "21", openai.System: "22", openai.Instructions: "23", openai.UseBeamSearch: "24", openai.PromptEmbeds: "25",
		openai.SamplingMaxTokens: "26", openai.SamplingMinTokens: "27", openai.SamplingN: "28", openai.SamplingPromptLogprobs: "29",
		openai.SamplingKVTransferParams: "30",
	} {
		if got := string(r.Doc.Value(id).Raw); got != want {
			t.Errorf("member %d is %s, want %s", id, got, want)
		}
	}
}

func TestRequestErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ body, code, param string }{
		{``, "invalid_json", ""},
		{`not json`, "invalid_json", ""},
		{`[{"model":"m"}]`, "invalid_json", ""},
		{`"text"`, "invalid_json", ""},
		{`null`, "invalid_json", ""},
		{`{"model":"m"`, "invalid_json", ""},
		{`{"model":"m"} x`, "invalid_json", ""},
		{`{"x":` + strings.Repeat("[", 2000), "invalid_json", ""},
		// Case 5.4: never invent a name.
		{`{"model":5}`, "invalid_model", "model"},
		{`{"model":["m"]}`, "invalid_model", "model"},
		{`{"model":"m","model":{}}`, "invalid_model", "model"},
	} {
		r, err := parseJSON(t, "/v1/chat/completions", tt.body)
		e, ok := errors.AsType[*openai.Error](err)
		if !ok {
			t.Errorf("%.40q: %v", tt.body, err)
			continue
		}
		if e.Status != 400 || e.Code != tt.code || e.Param != tt.param || e.Message == "" {
			t.Errorf("%.40q: %+v", tt.body, e)
		}
		if r.Model != "" {
			t.Errorf("%.40q: model %q", tt.body, r.Model)
		}
	}
}
