//go:build e2e

package e2e_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"
)

// TestRoutes asks every generating route, streamed and not, of a fleet of
// regular engines and of one that shares the work between prefill and decode.
func TestRoutes(t *testing.T) {
	t.Parallel()
	const perToken = 4 * time.Millisecond
	slow := []string{"--decode-per-token", perToken.String()}
	for _, fleet := range []struct {
		name string
		cfg  fleetConfig
		legs []string
	}{
		{
			"plain",
			fleetConfig{regular: 2, regularArgs: slow},
			[]string{"plain leg on regular engine: 200 success"},
		},
		{
			"pd",
			fleetConfig{prefill: 2, decode: 2, decodeArgs: slow},
			[]string{"decode leg on decode engine: 200 success", "prefill leg on prefill engine: 200 success"},
		},
		{
			"pd_and_regular",
			fleetConfig{prefill: 1, decode: 1, regular: 1, decodeArgs: slow},
			[]string{"decode leg on decode engine: 200 success", "prefill leg on prefill engine: 200 success"},
		},
	} {
		t.Run(fleet.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, fleet.cfg)
			eachAPI(t, func(t *testing.T, q question) {
				began := time.Now()
				a := f.client.post(q.api.path, q.body())
				if err := q.check(a); err != nil {
					t.Fatal(err)
				}
				if got := f.legs(a.id); !slices.Equal(got, fleet.legs) {
					t.Errorf("legs are %q, want %q", got, fleet.legs)
				}
				if got := a.header.Get("X-Request-Id"); got != a.id {
					t.Errorf("X-Request-Id is %q, want %q", got, a.id)
				}
				if q.stream {
					checkSpread(t, q, a, began, perToken)
				}
			})
			await(t, patience, "idle after the requests", f.quiet)
		})
	}
}

// checkSpread wants the text of a stream to have come in many parts, over about
// the time that the engine took to make it.
func checkSpread(t *testing.T, q question, a *answer, began time.Time, perToken time.Duration) {
	t.Helper()
	if got := a.header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
		t.Errorf("Content-Type is %q", got)
	}
	if got := a.header.Get("Content-Length"); got != "" {
		t.Errorf("a stream has Content-Length %s", got)
	}
	var parts []event
	for _, ev := range a.events {
		if q.api.delta(ev.data) != "" {
			parts = append(parts, ev)
		}
	}
	if len(parts) != q.tokens {
		t.Fatalf("the text came in %d parts, want %d", len(parts), q.tokens)
	}
	first, last := parts[0].at, parts[len(parts)-1].at
	if took, want := last.Sub(first), time.Duration(q.tokens-1)*perToken/2; took < want {
		t.Errorf("all parts came within %s, want over %s; the first after %s", took, want, first.Sub(began))
	}
}

// TestWholeRequests sends what only one engine can do by itself.
func TestWholeRequests(t *testing.T) {
	t.Parallel()
	pair := newFleet(t, fleetConfig{prefill: 1, decode: 1})
	mixed := newFleet(t, fleetConfig{prefill: 1, decode: 1, regular: 1})
	for _, test := range []struct {
		name, path, body string
		param            string
		status           int // of a regular engine
	}{
		{"several_prompts", "/v1/completions", `{"model":"m","prompt":["a","b"],"max_tokens":3}`, "prompt", 200},
		{"several_token_prompts", "/v1/completions", `{"model":"m","prompt":[[100,101],[102]],"max_tokens":3}`, "prompt", 200},
		{"echo", "/v1/completions", `{"model":"m","prompt":"hi","echo":true,"logprobs":1,"max_tokens":1}`, "echo", 200},
		{"prompt_logprobs", "/v1/completions", `{"model":"m","prompt":"hi","prompt_logprobs":1,"max_tokens":3}`, "prompt_logprobs", 200},
		{"prompt_logprobs_chat", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}],"prompt_logprobs":0}`, "prompt_logprobs", 200},
		{"prompt_logprobs_generate", "/inference/v1/generate", `{"model":"m","token_ids":[100],"sampling_params":{"prompt_logprobs":1,"max_tokens":3}}`, "prompt_logprobs", 200},
		// A regular engine without a store does not know the response: its own 404.
		{"previous_response_id", "/v1/responses", `{"model":"m","input":"hi","previous_response_id":"resp_1"}`, "previous_response_id", 404},
		// Nor does it run anything in the background: its own 400.
		{"background", "/v1/responses", `{"model":"m","input":"hi","background":true}`, "background", 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := pair.client.post(test.path, []byte(test.body))
			var object struct {
				Error struct{ Code, Param, Message, Type string }
			}
			if err := json.Unmarshal(a.body, &object); err != nil || a.status != http.StatusBadRequest ||
				object.Error.Code != "not_in_pd" || object.Error.Param != test.param || object.Error.Message == "" {
				t.Errorf("without a regular worker: %v", a)
			}
			if legs := pair.legs(a.id); len(legs) != 0 {
				t.Errorf("a refused request reached %q", legs)
			}
			a = mixed.client.post(test.path, []byte(test.body))
			if a.status != test.status || a.err != nil {
				t.Errorf("with a regular worker: %v", a)
			}
			outcome := map[bool]string{true: "200 success", false: ""}[test.status == 200]
			if legs := mixed.legs(a.id); len(legs) != 1 || outcome != "" && legs[0] != "plain leg on regular engine: "+outcome {
				t.Errorf("legs are %q, want one plain one on the regular engine", legs)
			}
		})
	}
	// Plain log probabilities need no prompt pass.
	a := pair.client.post("/v1/completions", []byte(`{"model":"m","prompt":["only one"],"logprobs":1,"echo":false,"prompt_logprobs":null,"max_tokens":3,"n":3}`))
	if a.status != http.StatusOK || len(parseChoice(a.body).Choices) != 3 {
		t.Errorf("logprobs with n in P/D: %v", a)
	}
}

// TestUnserved asks for models and paths that are not there.
func TestUnserved(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1})
	for _, api := range apis {
		q := question{api: api, prompt: "hi", tokens: 3}
		a := f.client.post(api.path, q.body(map[string]any{"model": "unheard-of"}))
		if code, _ := a.code(); a.status != http.StatusNotFound || code != "model_not_found" {
			t.Errorf("unknown model: %v", a)
		}
		a = f.client.get(api.path)
		if code, _ := a.code(); a.status != http.StatusMethodNotAllowed || code != "method_not_allowed" {
			t.Errorf("GET: %v", a)
		}
		if a := f.client.post(api.path, q.body(map[string]any{"model": 7})); a.status != http.StatusBadRequest {
			t.Errorf("a model that is no string: %v", a)
		}
	}
	for _, path := range []string{
		"/", "/nothing", "/metrics", "/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc", "/workers", "/sim/stats",
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter/", "/v1/../sleep", "/v1/%2e%2e/sleep", "/v1//sleep", "/V1/completions",
		"/inference/v1/other", "/v1%2fcompletions", "//v1/completions",
	} {
		a := f.client.post(path, []byte(`{"model":"m"}`))
		if code, _ := a.code(); a.status != http.StatusNotFound || code != "path_not_served" {
			t.Errorf("%s: %v", path, a)
		}
	}
	// A path nobody knows below /v1/ needs an engine that does everything.
	a := f.client.post("/v1/future", []byte(`{"model":"m"}`))
	if code, _ := a.code(); a.status != http.StatusNotImplemented || code != "not_served_in_pd" {
		t.Errorf("unknown path below /v1/: %v", a)
	}
	for _, e := range f.engines() {
		if got := len(e.records()); got != 0 {
			t.Errorf("%s was sent %d requests", e, got)
		}
	}
}

// TestModels wants the union of all lists, each entry as its engine sent it.
func TestModels(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{
		prefill: 1, decode: 1, regular: 2,
		regularArgs: []string{"--model", "other", "--model", "tuned=other"},
	})
	entries := func(a *answer) map[string]string {
		t.Helper()
		var list struct {
			Object string
			Data   []json.RawMessage
		}
		if err := json.Unmarshal(a.body, &list); err != nil || a.status != 200 || list.Object != "list" {
			t.Fatalf("%v: %v", a, err)
		}
		out := map[string]string{}
		for _, raw := range list.Data {
			var card struct{ ID string }
			if err := json.Unmarshal(raw, &card); err != nil || out[card.ID] != "" {
				t.Fatalf("entry %s: %v", raw, err)
			}
			out[card.ID] = string(raw)
		}
		return out
	}
	got := entries(f.client.get("/v1/models"))
	want := map[string]string{}
	for _, e := range []*engine{f.regular[0], f.regular[1], f.prefill[0], f.decode[0]} {
		for id := range entries(newClient(t, e.url).get("/v1/models")) {
			want[id] = id
		}
	}
	if len(want) != 3 || len(got) != len(want) {
		t.Errorf("models are %v, want those of all engines, %v", got, want)
	}
	for id := range want {
		matches := false
		for _, e := range f.engines() {
			matches = matches || entries(newClient(t, e.url).get("/v1/models"))[id] == got[id]
		}
		if !matches {
			t.Errorf("the entry of %s is of no engine: %s", id, got[id])
		}
	}
	// Each model goes to who serves it.
	for name, legs := range map[string]int{model: 2, "other": 1, "tuned": 1} {
		q := question{api: chat, prompt: "hi", tokens: 3}
		a := f.client.post(chat.path, q.body(map[string]any{"model": name}))
		if got := f.legs(a.id); a.status != 200 || len(got) != legs {
			t.Errorf("model %s: legs %q; %v", name, got, a)
		}
	}
}
