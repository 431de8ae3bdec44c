package pd_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/pd"
)

const (
	chat        = "/v1/chat/completions"
	completions = "/v1/completions"
	responses   = "/v1/responses"
	messages    = "/v1/messages"
	generate    = "/inference/v1/generate"
)

// legs are the bodies of both legs by the client's. ASK stands for what prefill
// is asked and KV for the hand-off.
var legs = []struct{ name, path, body, prefill, decode string }{
	// Case 1.3: all limits that the route has are 1, in prefill alone.
	{
		"chat, max_tokens", chat,
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":16}`,
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":16,"kv_transfer_params":KV}`,
	},
	{
		"chat, max_completion_tokens", chat,
		`{"max_completion_tokens":500,"messages":[]}`,
		`{"max_completion_tokens":1,"messages":[],"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"max_completion_tokens":500,"messages":[],"kv_transfer_params":KV}`,
	},
	{
		"chat, both limits", chat,
		`{"max_completion_tokens":500,"max_tokens":400,"messages":[]}`,
		`{"max_completion_tokens":1,"max_tokens":1,"messages":[],"kv_transfer_params":ASK}`,
		`{"max_completion_tokens":500,"max_tokens":400,"messages":[],"kv_transfer_params":KV}`,
	},
	{
		"chat, no limit", chat,
		`{"messages":[]}`,
		`{"messages":[],"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"messages":[],"kv_transfer_params":KV}`,
	},
	{
		"chat, limits that are null", chat,
		`{"max_completion_tokens":null,"max_tokens":null,"messages":[]}`,
		`{"max_completion_tokens":1,"max_tokens":1,"messages":[],"kv_transfer_params":ASK}`,
		`{"max_completion_tokens":null,"max_tokens":null,"messages":[],"kv_transfer_params":KV}`,
	},
	// Case 1.2: stream_options without stream are refused.
	{
		"chat, streamed", chat,
		`{"stream":true,"stream_options":{"include_usage":true},"messages":[]}`,
		`{"stream":false,"messages":[],"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"stream":true,"stream_options":{"include_usage":true},"messages":[],"kv_transfer_params":KV}`,
	},
	{
		"chat, stream_options null", chat,
		`{"messages":[],"stream_options":null,"stream":null}`,
		`{"messages":[],"stream":false,"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"messages":[],"stream_options":null,"stream":null,"kv_transfer_params":KV}`,
	},
	// Case 1.17: prefill computes one prompt, whatever becomes of it.
	{
		"chat, n", chat,
		`{"n":4,"messages":[],"best_of":5}`,
		`{"n":1,"messages":[],"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"n":4,"messages":[],"best_of":5,"kv_transfer_params":KV}`,
	},
	// Case 1.4: min_tokens above 1 would be refused.
	{
		"chat, min_tokens", chat,
		`{"min_tokens":100,"min_completion_tokens":90,"messages":[],"max_tokens":500}`,
		`{"messages":[],"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"min_tokens":100,"min_completion_tokens":90,"messages":[],"max_tokens":500,"kv_transfer_params":KV}`,
	},
	{
		"a client's own parameters are replaced", chat,
		`{"kv_transfer_params":{"remote_host":"evil"},"messages":[]}`,
		`{"kv_transfer_params":ASK,"messages":[],"max_tokens":1}`,
		`{"kv_transfer_params":KV,"messages":[]}`,
	},
	{
		"and so are all that it repeats, and escapes", chat,
		`{"kv_transfer_params":{"a":1},"messages":[],"kv_transfer_p\u0061rams":{"b":2},"kv_transfer_params":null}`,
		`{"messages":[],"kv_transfer_params":ASK,"max_tokens":1}`,
		`{"messages":[],"kv_transfer_params":KV}`,
	},
	{
		"repeated limits", chat,
		`{"max_tokens":5,"messages":[],"max_tokens":7,"stream":true,"stream":false,"min_tokens":2,"min_tokens":3}`,
		`{"messages":[],"max_tokens":1,"stream":false,"kv_transfer_params":ASK}`,
		`{"max_tokens":5,"messages":[],"max_tokens":7,"stream":true,"stream":false,"min_tokens":2,"min_tokens":3,"kv_transfer_params":KV}`,
	},
	// Cases 1.5 and 5.1: what no edit concerns stays as it was, to the byte.
	{
		"unknown fields", chat,
		"{\n \"seed\" : 9007199254740993,\t\"x_future\":[1,{\"a\":1e400}], \"vllm_xargs\":{\"max_tokens\":3},\r\n \"messages\":[{\"content\":\"\\u00e9<&>\xff\",\"n\":2}]\n, \"max_tokens\" : 16 }\n",
		"{\n \"seed\" : 9007199254740993,\t\"x_future\":[1,{\"a\":1e400}], \"vllm_xargs\":{\"max_tokens\":3},\r\n \"messages\":[{\"content\":\"\\u00e9<&>\xff\",\"n\":2}]\n, \"max_tokens\" : 1,\"kv_transfer_params\":ASK }\n",
		"{\n \"seed\" : 9007199254740993,\t\"x_future\":[1,{\"a\":1e400}], \"vllm_xargs\":{\"max_tokens\":3},\r\n \"messages\":[{\"content\":\"\\u00e9<&>\xff\",\"n\":2}]\n, \"max_tokens\" : 16,\"kv_transfer_params\":KV }\n",
	},
	{
		"what the prompt depends on", chat,
		`{"model":"lora","messages":[],"tools":[],"chat_template_kwargs":{},"cache_salt":"s","add_generation_prompt":false,"response_format":{},"logprobs":true,"top_logprobs":2,"ignore_eos":true,"priority":-1}`,
		`{"model":"lora","messages":[],"tools":[],"chat_template_kwargs":{},"cache_salt":"s","add_generation_prompt":false,"response_format":{},"logprobs":true,"top_logprobs":2,"ignore_eos":true,"priority":-1,"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"model":"lora","messages":[],"tools":[],"chat_template_kwargs":{},"cache_salt":"s","add_generation_prompt":false,"response_format":{},"logprobs":true,"top_logprobs":2,"ignore_eos":true,"priority":-1,"kv_transfer_params":KV}`,
	},
	{
		"an empty object", chat, `{ }`, `{"max_tokens":1,"kv_transfer_params":ASK }`, `{"kv_transfer_params":KV }`,
	},

	{
		"completions", completions,
		`{"prompt":"hi","max_tokens":500,"min_tokens":100,"best_of":4,"n":2,"stream":true,"stream_options":{}}`,
		`{"prompt":"hi","max_tokens":1,"n":1,"stream":false,"kv_transfer_params":ASK}`,
		`{"prompt":"hi","max_tokens":500,"min_tokens":100,"best_of":4,"n":2,"stream":true,"stream_options":{},"kv_transfer_params":KV}`,
	},
	{
		"completions, no limit", completions,
		`{"prompt":[1,2,3]}`,
		`{"prompt":[1,2,3],"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"prompt":[1,2,3],"kv_transfer_params":KV}`,
	},
	{
		// The route knows no such field: it is no business of ours.
		"completions, a chat limit", completions,
		`{"prompt":"hi","max_completion_tokens":7}`,
		`{"prompt":"hi","max_completion_tokens":7,"max_tokens":1,"kv_transfer_params":ASK}`,
		`{"prompt":"hi","max_completion_tokens":7,"kv_transfer_params":KV}`,
	},

	// Case 1.25.
	{
		"responses", responses,
		`{"input":"hi","max_output_tokens":500,"stream":true,"store":true,"background":false}`,
		`{"input":"hi","max_output_tokens":1,"stream":false,"store":false,"kv_transfer_params":ASK}`,
		`{"input":"hi","max_output_tokens":500,"stream":true,"store":true,"background":false,"kv_transfer_params":KV}`,
	},
	{
		"responses, nothing but the input", responses,
		`{"input":"hi"}`,
		`{"input":"hi","max_output_tokens":1,"store":false,"kv_transfer_params":ASK}`,
		`{"input":"hi","kv_transfer_params":KV}`,
	},
	{
		"responses, background null", responses,
		`{"background":null,"input":"hi","previous_response_id":null}`,
		`{"input":"hi","previous_response_id":null,"max_output_tokens":1,"store":false,"kv_transfer_params":ASK}`,
		`{"background":null,"input":"hi","previous_response_id":null,"kv_transfer_params":KV}`,
	},

	// vLLM parses a named call's arguments, of which one token leaves a part, and
	// fails; the prompt of any other choice is the same.
	{
		"messages, a tool named", messages,
		`{"messages":[],"max_tokens":16,"tools":[],"tool_choice":{"type":"tool","name":"t"}}`,
		`{"messages":[],"max_tokens":1,"tools":[],"tool_choice":{"type":"any","name":"t"},"kv_transfer_params":ASK}`,
		`{"messages":[],"max_tokens":16,"tools":[],"tool_choice":{"type":"tool","name":"t"},"kv_transfer_params":KV}`,
	},
	{
		"messages, a tool or none", messages,
		`{"messages":[],"max_tokens":16,"tool_choice":{"type":"none"}}`,
		`{"messages":[],"max_tokens":1,"tool_choice":{"type":"none"},"kv_transfer_params":ASK}`,
		`{"messages":[],"max_tokens":16,"tool_choice":{"type":"none"},"kv_transfer_params":KV}`,
	},
	{
		"chat, a tool named", chat,
		`{"messages":[],"max_tokens":16,"tool_choice":{"type":"tool"}}`,
		`{"messages":[],"max_tokens":1,"tool_choice":{"type":"tool"},"kv_transfer_params":ASK}`,
		`{"messages":[],"max_tokens":16,"tool_choice":{"type":"tool"},"kv_transfer_params":KV}`,
	},
	{
		"messages", messages,
		`{"max_tokens":50,"system":"s","messages":[],"stream":true}`,
		`{"max_tokens":1,"system":"s","messages":[],"stream":false,"kv_transfer_params":ASK}`,
		`{"max_tokens":50,"system":"s","messages":[],"stream":true,"kv_transfer_params":KV}`,
	},

	// The Python server reads the parameters inside extra_args only, the Rust one
	// at the top.
	{
		"generate, no sampling_params", generate,
		`{"token_ids":[1,2]}`,
		`{"token_ids":[1,2],"kv_transfer_params":ASK,"sampling_params":{"max_tokens":1,"extra_args":{"kv_transfer_params":ASK}}}`,
		`{"token_ids":[1,2],"kv_transfer_params":KV,"sampling_params":{"extra_args":{"kv_transfer_params":KV}}}`,
	},
	{
		"generate, sampling_params null", generate,
		`{"sampling_params":null,"token_ids":[1,2]}`,
		`{"sampling_params":{"max_tokens":1,"extra_args":{"kv_transfer_params":ASK}},"token_ids":[1,2],"kv_transfer_params":ASK}`,
		`{"sampling_params":{"extra_args":{"kv_transfer_params":KV}},"token_ids":[1,2],"kv_transfer_params":KV}`,
	},
	{
		"generate, empty sampling_params", generate,
		`{"sampling_params":{},"token_ids":[1,2]}`,
		`{"sampling_params":{"max_tokens":1,"extra_args":{"kv_transfer_params":ASK}},"token_ids":[1,2],"kv_transfer_params":ASK}`,
		`{"sampling_params":{"extra_args":{"kv_transfer_params":KV}},"token_ids":[1,2],"kv_transfer_params":KV}`,
	},
	{
		"generate, min_tokens and n", generate,
		`{"token_ids":[1,2],"stream":true,"stream_options":{},"sampling_params":{"min_tokens":100,"temperature":0.0,"n":3,"max_tokens":500}}`,
		`{"token_ids":[1,2],"stream":false,"sampling_params":{"temperature":0.0,"n":1,"max_tokens":1,"extra_args":{"kv_transfer_params":ASK}},"kv_transfer_params":ASK}`,
		`{"token_ids":[1,2],"stream":true,"stream_options":{},"sampling_params":{"min_tokens":100,"temperature":0.0,"n":3,"max_tokens":500,"extra_args":{"kv_transfer_params":KV}},"kv_transfer_params":KV}`,
	},
	{
		"generate, extra_args", generate,
		`{"sampling_params":{"extra_args":{"a":9007199254740993}},"token_ids":[1,2]}`,
		`{"sampling_params":{"extra_args":{"a":9007199254740993,"kv_transfer_params":ASK},"max_tokens":1},"token_ids":[1,2],"kv_transfer_params":ASK}`,
		`{"sampling_params":{"extra_args":{"a":9007199254740993,"kv_transfer_params":KV}},"token_ids":[1,2],"kv_transfer_params":KV}`,
	},
	{
		"generate, a client's own parameters", generate,
		`{"kv_transfer_params":{"a":1},"sampling_params":{"extra_args":{"kv_transfer_params":{"b":2},"c":3}},"token_ids":[1,2]}`,
		`{"kv_transfer_params":ASK,"sampling_params":{"extra_args":{"kv_transfer_params":ASK,"c":3},"max_tokens":1},"token_ids":[1,2]}`,
		`{"kv_transfer_params":KV,"sampling_params":{"extra_args":{"kv_transfer_params":KV,"c":3}},"token_ids":[1,2]}`,
	},
	{
		// The last of repeated parents counts.
		"generate, repeated sampling_params", generate,
		`{"sampling_params":{"max_tokens":5},"sampling_params":{"max_tokens":6,"max_tokens":7},"token_ids":[1]}`,
		`{"sampling_params":{"max_tokens":5},"sampling_params":{"max_tokens":1,"extra_args":{"kv_transfer_params":ASK}},"token_ids":[1],"kv_transfer_params":ASK}`,
		`{"sampling_params":{"max_tokens":5},"sampling_params":{"max_tokens":6,"max_tokens":7,"extra_args":{"kv_transfer_params":KV}},"token_ids":[1],"kv_transfer_params":KV}`,
	},
}

func TestNIXLLegs(t *testing.T) {
	t.Parallel()
	nixl := pd.NewNIXL(pd.NIXLValidity)
	for _, tt := range legs {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := pair(t, tt.path, tt.body)
			prefill, err := nixl.Prefill(p)
			if err != nil {
				t.Fatal(err)
			}
			wantFields := exchange.Fields{
				{Name: "X-Request-Id", Value: "id-1"},
				{Name: "X-Data-Parallel-Rank", Value: "3"},
				{Name: "Accept-Encoding", Value: "identity"},
			}
			want := pd.Leg{Body: []byte(golden(tt.prefill)), Fields: wantFields}
			if diff := diffLegs(want, prefill); diff != "" {
				t.Errorf("prefill (-want +got)\n%s", diff)
			}
			decode, err := nixl.Decode(p, pd.Handoff{Params: []byte(params)})
			if err != nil {
				t.Fatal(err)
			}
			want = pd.Leg{Body: []byte(golden(tt.decode)), Fields: wantFields[:1]}
			if diff := diffLegs(want, decode); diff != "" {
				t.Errorf("decode (-want +got)\n%s", diff)
			}
			if string(p.Request.Body) != tt.body {
				t.Error("the client's body has changed")
			}
		})
	}
}

// diffLegs shows bodies as text.
func diffLegs(want, got pd.Leg) string {
	return cmp.Diff(want, got, cmp.Transformer("text", func(b []byte) string { return string(b) }))
}

// Without a hand-off decode computes the prompt itself, and a client's word is
// not taken for one.
func TestNIXLDecodeAlone(t *testing.T) {
	t.Parallel()
	nixl := pd.NewNIXL(pd.NIXLValidity)
	for _, tt := range []struct{ path, body, want string }{
		{chat, `{"messages":[]}`, `{"messages":[]}`},
		{chat, `{"kv_transfer_params":{"a":1},"messages":[]}`, `{"messages":[]}`},
		{chat, `{"messages":[],"kv_transfer_params":null}`, `{"messages":[]}`},
		{generate, `{"token_ids":[1]}`, `{"token_ids":[1]}`},
		{
			generate,
			`{"token_ids":[1],"kv_transfer_params":{},"sampling_params":{"extra_args":{"a":1,"kv_transfer_params":{}}}}`,
			`{"token_ids":[1],"sampling_params":{"extra_args":{"a":1}}}`,
		},
	} {
		leg, err := nixl.Decode(pair(t, tt.path, tt.body), pd.Handoff{})
		if err != nil || string(leg.Body) != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.body, leg.Body, err, tt.want)
		}
	}
}

func TestNIXLDiscard(t *testing.T) {
	t.Parallel()
	nixl := pd.NewNIXL(pd.NIXLValidity)
	for _, tt := range []struct{ path, body, want string }{
		{chat, `{"messages":[],"max_tokens":16}`, `{"messages":[],"max_tokens":16,"stream":true,"kv_transfer_params":KV}`},
		{chat, `{"stream":true,"stream_options":{"a":1}}`, `{"stream":true,"stream_options":{"a":1},"kv_transfer_params":KV}`},
		{responses, `{"stream":false,"input":"hi"}`, `{"stream":true,"input":"hi","kv_transfer_params":KV}`},
		{messages, `{"stream":null,"messages":[]}`, `{"stream":true,"messages":[],"kv_transfer_params":KV}`},
		{
			generate, `{"token_ids":[1]}`,
			`{"token_ids":[1],"stream":true,"kv_transfer_params":KV,"sampling_params":{"extra_args":{"kv_transfer_params":KV}}}`,
		},
	} {
		leg, read, err := nixl.Discard(pair(t, tt.path, tt.body), pd.Handoff{Params: []byte(params)})
		if err != nil {
			t.Fatal(err)
		}
		if read {
			t.Error("it is to be read, want it closed at its headers")
		}
		want := pd.Leg{Body: []byte(golden(tt.want)), Fields: exchange.Fields{{Name: "X-Request-Id", Value: "id-1"}}}
		if diff := diffLegs(want, leg); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func TestNIXLRead(t *testing.T) {
	t.Parallel()
	const flat = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2],"remote_engine_id":"e","remote_host":"h","remote_port":1,"tp_size":1}`
	for _, tt := range []struct {
		name, body string
		want       string // parameters
		err        string // kind of the error: none, failed, senseless, or "" for no error
	}{
		// Case 1.5: verbatim.
		{"last", `{"id":"x","choices":[{"finish_reason":"length"}],"kv_transfer_params":` + params + `}`, params, ""},
		{"first", ` { "kv_transfer_params" : ` + params + ` , "choices":[{"finish_reason":"stop"}] } `, params, ""},
		{"the form of older engines", `{"choices":[],"kv_transfer_params":` + flat + `}`, flat, ""},
		{"repeated: the last", `{"kv_transfer_params":{"a":1},"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"choices null", `{"choices":null,"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"finish_reason null", `{"choices":[{"finish_reason":null}],"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"tool_calls", `{"choices":[{"finish_reason":"tool_calls"}],"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"error null", `{"error":null,"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"NaN in the choices", `{"choices":[{"logprobs":NaN,"finish_reason":"length"}],"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"responses, completed", `{"status":"completed","kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		// One token is all that was asked for.
		{"responses, incomplete", `{"status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"},"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"generate", `{"request_id":"x","choices":[{"index":0,"finish_reason":"length","token_ids":[1]}],"kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},
		{"messages", `{"type":"message","stop_reason":"max_tokens","kv_transfer_params":{"b":2}}`, `{"b":2}`, ""},

		// Case 1.29: a status of 200 proves nothing.
		{"missing", `{"choices":[{"finish_reason":"length"}]}`, "", "none"},
		{"null", `{"kv_transfer_params":null}`, "", "none"},
		{"empty", `{"kv_transfer_params":{ }}`, "", "none"},
		{"a list", `{"kv_transfer_params":[1]}`, "", "none"},
		{"a string", `{"kv_transfer_params":"x"}`, "", "none"},
		{"deeper", `{"choices":[{"kv_transfer_params":{"a":1}}],"x":{"kv_transfer_params":{"a":1}}}`, "", "none"},
		{"abort", `{"choices":[{"finish_reason":"abort"}],"kv_transfer_params":{"a":1}}`, "", "failed"},
		{"abort without parameters", `{"choices":[{"finish_reason":"abort"}],"kv_transfer_params":null}`, "", "failed"},
		{"error", `{"choices":[{"finish_reason":"error"}],"kv_transfer_params":{"a":1}}`, "", "failed"},
		{"error object", `{"error":{"message":"the prompt"},"kv_transfer_params":{"a":1}}`, "", "failed"},
		{"error text", `{"error":"Unauthorized"}`, "", "failed"},
		{"anthropic error", `{"type":"error","error":{"type":"x","message":"y"}}`, "", "failed"},
		{"responses, failed", `{"status":"failed","kv_transfer_params":{"a":1}}`, "", "failed"},
		{"responses, cancelled", `{"status":"cancelled"}`, "", "failed"},
		{"not JSON", `<html>`, "", "senseless"},
		{"nothing", ``, "", "senseless"},
		{"a list of answers", `[{"kv_transfer_params":{"a":1}}]`, "", "senseless"},
		{"cut off", `{"kv_transfer_params":{"a":1},"x":`, "", "senseless"},
		{"a stream", "data: {\"kv_transfer_params\":{\"a\":1}}\n\n", "", "senseless"},
	} {
		h, err := pd.NewNIXL(pd.NIXLValidity).Read(nil, []byte(tt.body))
		if string(h.Params) != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, h.Params, tt.want)
		}
		if got := kind(err); got != tt.err {
			t.Errorf("%s: error %v (%s), want %s", tt.name, err, got, tt.err)
		}
		if err != nil && strings.Contains(err.Error(), "the prompt") {
			t.Errorf("%s: the worker's words are in the error: %v", tt.name, err)
		}
	}
}

// kind names the kinds of errors that Read may return.
func kind(err error) string {
	_, failed := errors.AsType[*pd.FailedError](err)
	switch {
	case err == nil:
		return ""
	case failed:
		return "failed"
	case errors.Is(err, pd.ErrNoHandoff):
		return "none"
	default:
		return "senseless"
	}
}

func TestNIXLSpec(t *testing.T) {
	t.Parallel()
	spec := pd.NewNIXL(7 * time.Second).Spec()
	if spec.Name != "nixl" || spec.Concurrent || spec.PairFirst || !spec.Again || spec.Cancel != pd.AnyTime || spec.Validity != 7*time.Second {
		t.Errorf("%+v", spec)
	}
	// Case 1.33: every route that can be paired is.
	for path, want := range map[string]bool{
		chat: true, completions: true, responses: true, messages: true, generate: true,
		"/v1/embeddings": false, "/v1/chat/completions/batch": false, "/v1/other": false, "/tokenize": false,
	} {
		r := openai.FindRoute(path, nil)
		if got := spec.Serves(r); got != want || want != (r.Class == openai.Pairable) {
			t.Errorf("%s: served %t, want %t", path, got, want)
		}
	}
}
