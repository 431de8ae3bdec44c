package enginesim_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestValidation checks what vLLM refuses and what it lets pass.
func TestValidation(t *testing.T) {
	const (
		comp     = "/v1/completions"
		chat     = "/v1/chat/completions"
		resp     = "/v1/responses"
		messages = "/v1/messages"
		generate = "/inference/v1/generate"
		schema   = "Bad Request"
		value    = "BadRequestError"
	)
	long := strings.Repeat("x", 120)
	tests := []struct {
		path, body string
		kind       string // "" for 200
		param      string
		message    string // part of it
	}{
		{comp, `{"prompt":"hi","stream_options":{"include_usage":true}}`, schema, "stream_options", "Stream options can only be defined when `stream=True`."},
		{chat, `{` + hi + `,"stream":false,"stream_options":{"include_usage":true}}`, schema, "stream_options", "Stream options"},
		{chat, `{` + hi + `,"stream_options":null}`, "", "", ""},
		{chat, `{` + hi + `,"stream_options":{}}`, "", "", ""},
		{comp, `{"prompt":"hi","min_tokens":5,"max_tokens":1}`, value, "", "min_tokens must be less than or equal to max_tokens=1, got 5."},
		{comp, `{"prompt":"hi","min_tokens":1,"max_tokens":1}`, "", "", ""},
		{comp, `{"prompt":"hi","min_tokens":-1}`, value, "", "min_tokens"},
		{comp, `{"prompt":"hi","max_tokens":0}`, value, "max_tokens", "must be at least 1, got 0."},
		{chat, `{` + hi + `,"max_completion_tokens":0}`, value, "max_tokens", "must be at least 1"},
		{chat, `{` + hi + `,"max_completion_tokens":1,"max_tokens":0}`, "", "", ""},
		{resp, `{"input":"hi","max_output_tokens":0}`, value, "max_tokens", "must be at least 1"},
		{messages, `{` + hi + `,"max_tokens":0}`, value, "", "must be at least 1"},
		{generate, `{"token_ids":[4],"sampling_params":{"max_tokens":0}}`, value, "max_tokens", "must be at least 1"},
		{generate, `{"token_ids":[4],"sampling_params":{"max_tokens":1,"min_tokens":2}}`, value, "", "min_tokens"},
		{comp, `{"prompt":"hi","n":0}`, value, "n", "n must be at least 1"},
		{comp, `{}`, schema, "prompt", "Either prompt or prompt_embeds"},
		{comp, `{"prompt":""}`, schema, "prompt", "Either prompt"},
		{comp, `{"prompt":[]}`, schema, "prompt", "Either prompt"},
		{comp, `{"prompt":{"a":1}}`, schema, "", "'prompt'"},
		{comp, `{"prompt":[[3,4],[5]]}`, "", "", ""},
		{comp, `{"prompt":[9999]}`, value, "", "out of vocabulary"},
		{chat, `{}`, schema, "", "'messages'"},
		{chat, `{"messages":[]}`, value, "", "list"},
		{chat, `{"messages":"hi"}`, schema, "", "'messages'"},
		{resp, `{}`, schema, "", "'input'"},
		{resp, `{"input":[{"type":"function_call_output","output":"1"}]}`, "", "", ""},
		{resp, `{"input":"hi","background":true}`, value, "background", "background"},
		{resp, `{"input":"hi","previous_response_id":"resp_0"}`, "NotFoundError", "response_id", "resp_0"},
		{messages, `{` + hi + `}`, schema, "", "'max_tokens'"},
		{generate, `{"sampling_params":{}}`, schema, "", "'token_ids'"},
		{generate, `{"token_ids":[4]}`, schema, "", "'sampling_params'"},
		{comp, `{"prompt":"hi","cache_salt":""}`, schema, "cache_salt", "non-empty"},
		{comp, `{"prompt":"hi","cache_salt":"s"}`, "", "", ""},
		{comp, `{"prompt":"` + long + `","max_tokens":16}`, value, "input_tokens", "maximum context length is 128 tokens"},
		{comp, `{"prompt":"` + long + `","max_tokens":8}`, "", "", ""},
		{comp, `{"prompt":"hi","model":"nope"}`, "NotFoundError", "model", "The model `nope` does not exist."},
		{comp, `{"prompt":"hi","model":""}`, "", "", ""},
		{comp, `{"prompt":"hi","max_tokens":"3"}`, "", "", ""},
		{comp, `{"prompt":"hi","max_tokens":3.0}`, "", "", ""},
		{comp, `{"prompt":"hi","max_tokens":3.5}`, schema, "", "'max_tokens'"},
		{comp, `{"prompt":"hi","stream":"maybe"}`, schema, "", "'stream'"},
		{comp, `{"prompt":"hi","max_tokens":0,"max_tokens":2}`, "", "", ""}, // the last counts
		{comp, `{"prompt":"hi","temperature":NaN,"x":-Infinity,"y":"NaN \" NaN"}`, "", "", ""},
		{comp, `{"prompt":"hi","kv_transfer_params":7}`, schema, "", "'kv_transfer_params'"},
		{comp, `{"prompt":"hi","unknown":{"a":[1]}}`, "", "", ""},
		{comp, `{"prompt":`, schema, "", "json_invalid"},
		{comp, `[]`, schema, "", "valid dictionary"},
		{comp, "{\"prompt\":\"\xff\"}", schema, "", "error parsing the body"},
		{chat, `{` + hi + `,"tools":[]}`, schema, "", "`tools` must not be an empty array"},
		{chat, `{` + hi + `,"tool_choice":"none"}`, "", "", ""},
		{chat, `{` + hi + `,"tool_choice":"auto"}`, schema, "", "When using `tool_choice`, `tools` must be set."},
		{chat, `{` + hi + `,` + offer("f", "{}") + `,"tool_choice":"any"}`, schema, "", "Invalid value for `tool_choice`: any!"},
		{chat, `{` + hi + `,` + offer("f", "{}") + `,"tool_choice":{"type":"function","function":{"name":"g"}}}`, schema, "", "does not match any"},
		{chat, `{` + hi + `,` + offer("f", "{}") + `,"tool_choice":"none"}`, "", "", ""},
		{messages, `{` + hi + `,"max_tokens":99,"tool_choice":{"type":"some"}}`, schema, "", "'tool_choice'"},
		{messages, `{` + hi + `,"max_tokens":99,"tools":[{"name":"f"}],"tool_choice":{"type":"tool","name":"g"}}`, value, "", "Tool 'g' has not been passed"},
		{"/tokenize", `{}`, schema, "", "'prompt'"},
		{"/v1/embeddings", `{}`, schema, "", "'input'"},
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{MaxModelLen: 128})
		for i, tt := range tests {
			a := w.do(request{path: tt.path, body: tt.body, id: fmt.Sprint("v", i)})
			if tt.kind == "" {
				if a.status != 200 {
					t.Errorf("%s %s: %d %s", tt.path, tt.body, a.status, a.body)
				}
				continue
			}
			status := 400
			if tt.kind == "NotFoundError" {
				status = 404
			}
			message, _ := a.get(t, "error", "message").(string)
			if a.status != status || !strings.Contains(message, tt.message) {
				t.Errorf("%s %s: %d %s, want %d and %q", tt.path, tt.body, a.status, a.body, status, tt.message)
			}
			if strings.HasPrefix(tt.path, messages) {
				continue // another kind of object
			}
			param, _ := a.get(t, "error", "param").(string)
			if kind := a.get(t, "error", "type"); kind != tt.kind || param != tt.param || a.get(t, "error", "code") != status {
				t.Errorf("%s %s: %s, want type %s, param %q, code %d", tt.path, tt.body, a.body, tt.kind, tt.param, status)
			}
		}
		clean(t, e)
	})
}

// TestPythonNumbers checks that NaN in a text stays what it is.
func TestPythonNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{})
		a := w.do(request{body: `{"prompt":"NaN \" Infinity","x":[NaN,-Infinity],"echo":true,"max_tokens":0}`})
		if a.status != 200 || a.text(t) != `NaN " Infinity` {
			t.Errorf("%+v", a)
		}
	})
}

func TestContentType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{})
		for kind, want := range map[string]int{
			"application/json":                  200,
			"application/json; charset=utf-8":   200,
			"Application/JSON":                  200,
			"text/plain":                        400,
			"":                                  400,
			"application/x-www-form-urlencoded": 400,
		} {
			a := w.do(request{body: `{"prompt":"hi"}`, header: map[string]string{"Content-Type": kind}})
			if a.status != want {
				t.Errorf("%q: %d %s, want %d", kind, a.status, a.body, want)
			}
			if want == 400 && a.get(t, "error", "type") != "Bad Request" {
				t.Errorf("%q: %s", kind, a.body)
			}
		}
	})
}

func TestKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{APIKey: "secret"})
		for _, tt := range []struct {
			method, path, auth string
			want               int
		}{
			{"GET", "/v1/models", "", 401},
			{"GET", "/v1/models", "Bearer secret", 200},
			{"GET", "/v1/models", "bearer secret", 200},
			{"GET", "/v1/models", "Bearer Secret", 401},
			{"GET", "/v1/nothing", "", 401},
			{"OPTIONS", "/v1/models", "", 405},
			{"GET", "/health", "", 200},
			{"GET", "/metrics", "", 200},
			{"POST", "/inference/v1/generate", "", 401},
			{"POST", "/score", "", 400},
		} {
			a := w.do(request{method: tt.method, path: tt.path, header: map[string]string{"Authorization": tt.auth}})
			if a.status != tt.want {
				t.Errorf("%s %s with %q: %d, want %d", tt.method, tt.path, tt.auth, a.status, tt.want)
			}
		}
	})
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  enginesim.Config
		want string
	}{
		{"role", enginesim.Config{Role: "both"}, "role"},
		{"connector", enginesim.Config{Connector: "smoke"}, "connector"},
		{"policy", enginesim.Config{FailPolicy: "retry"}, "policy"},
		{"blocks", enginesim.Config{Blocks: 1}, ""},
		{"context", enginesim.Config{Blocks: 3, MaxModelLen: 33}, "cannot hold"},
		{"model", enginesim.Config{Models: []string{"a=b"}}, "base model"},
		{"advertise", enginesim.Config{Connector: "nixl", Advertise: "nohost"}, "advertised"},
		{"prefill without address", enginesim.Config{Connector: "nixl", Role: "prefill"}, "advertised"},
	} {
		if _, err := enginesim.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
