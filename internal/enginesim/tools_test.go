package enginesim_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/baton-llm/baton/internal/enginesim"
)

const hi = `"messages":[{"role":"user","content":"hi"}]`

// offer is the member "tools" of a chat request with one tool.
func offer(name, schema string) string {
	return `"tools":[{"type":"function","function":{"name":"` + name + `","parameters":` + schema + `}}]`
}

const (
	required = `"tool_choice":"required"`
	toF      = `"tool_choice":{"type":"function","function":{"name":"f"}}`
)

// TestArguments checks what is made of the schemas of arguments.
func TestArguments(t *testing.T) {
	member := func(schema string) string {
		return `{"type":"object","properties":{"a":` + schema + `,"b":{"type":"string"}},"required":["a"]}`
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{})
		for _, tt := range []struct{ schema, want string }{
			{`null`, `{}`},
			{`{}`, `{}`},
			{`{"type":"object","properties":{"a":{"type":"string"}}}`, `{}`},
			{`{"properties":{"x":{"const":"c"},"y":{"const":null}},"required":["y","x"]}`, `{"y": null, "x": "c"}`},
			{member(`{"enum":["one","two"]}`), `{"a": "one"}`},
			{member(`{"type":"boolean"}`), `{"a": true}`},
			{member(`{"type":"null"}`), `{"a": null}`},
			{member(`{"type":["null","string"]}`), `{"a": null}`},
			{member(`{"type":"integer","minimum":7,"maximum":9}`), `{"a": 7}`},
			{member(`{"type":"number","maximum":-1.5}`), `{"a": -1.5}`},
			{member(`{"type":"array","items":{"type":"boolean"}}`), `{"a": [true]}`},
			{member(`{"type":"array","items":{"type":"boolean"},"minItems":2}`), `{"a": [true, true]}`},
			{member(`{"type":"array","minItems":0}`), `{"a": []}`},
			{member(`{"anyOf":[{"type":"boolean"},{"type":"null"}]}`), `{"a": true}`},
			{member(`{"properties":{"c":{"const":1}},"required":["c"]}`), `{"a": {"c": 1}}`},
			{
				`{"$defs":{"D":{"enum":[5]}},"properties":{"größe":{"$ref":"#/$defs/D"}},"required":["größe"]}`,
				`{"größe": 5}`,
			},
		} {
			for _, choice := range []string{required, toF} {
				body := `{` + hi + `,` + offer("f", tt.schema) + `,` + choice
				a := w.do(request{path: "/v1/chat/completions", body: body + `}`})
				call := a.get(t, "choices", 0, "message", "tool_calls", 0, "function")
				if got := call.(map[string]any)["arguments"]; got != tt.want {
					t.Errorf("%s, %s: %s, want %s", tt.schema, choice, got, tt.want)
				}
				a = w.do(request{path: "/v1/chat/completions", body: body + `,"stream":true}`})
				if got := called(t, a).Arguments; got != tt.want {
					t.Errorf("%s, %s, streamed: %s, want %s", tt.schema, choice, got, tt.want)
				}
			}
		}
	})
}

// TestSchemaWithoutEnd checks that a schema that requires itself comes to an end.
func TestSchemaWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{})
		schema := `{"properties":{"a":{"$ref":"#/properties/b"},"b":{"$ref":"#/properties/a"},"c":{"properties":{"d":{"$ref":"#"}},"required":["d"]}},"required":["a","c"]}`
		a := w.do(request{path: "/v1/chat/completions", body: `{` + hi + `,` + offer("f", schema) + `,` + toF + `}`})
		call := a.get(t, "choices", 0, "message", "tool_calls", 0, "function").(map[string]any)
		if args, _ := call["arguments"].(string); !json.Valid([]byte(args)) || !strings.Contains(args, "null") {
			t.Errorf("%s", a.body)
		}
	})
}

// calledFunction is a call put together from a stream.
type calledFunction struct {
	ID, Type, Name, Arguments, Finish string
}

func called(t *testing.T, a answer) (f calledFunction) {
	t.Helper()
	for line := range strings.Lines(a.body) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {")
		if !ok {
			continue
		}
		var v struct {
			Choices []struct {
				Delta struct {
					Content   string
					ToolCalls []struct {
						ID, Type string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte("{"+line), &v); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		for _, c := range v.Choices {
			f.Finish += c.Finish
			if c.Delta.Content != "" {
				t.Errorf("content %q beside a call", c.Delta.Content)
			}
			for _, call := range c.Delta.ToolCalls {
				f.ID, f.Type = f.ID+call.ID, f.Type+call.Type
				f.Name, f.Arguments = f.Name+call.Function.Name, f.Arguments+call.Function.Arguments
			}
		}
	}
	return f
}

// TestCallOverBothLegs checks that a pair of engines makes the call that one engine
// alone makes, and that the prefill leg makes do with one token of it.
func TestCallOverBothLegs(t *testing.T) {
	schema := `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city","days"]}`
	for name, choice := range map[string]string{"required": required, "named": toF} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.start(enginesim.Config{Role: "prefill", Connector: "nixl", Advertise: "p:1", Strict: true})
				d := w.start(enginesim.Config{Role: "decode", Connector: "nixl", Advertise: "d:1", Strict: true})
				w.start(enginesim.Config{})
				chat := func(addr, more string) answer {
					return w.do(request{
						addr: addr, path: "/v1/chat/completions", id: "r",
						body: `{` + hi + `,` + offer("f", schema) + `,` + choice + more + `}`,
					})
				}
				alone := chat("", "")
				a := chat("p:1", `,"max_tokens":1,"kv_transfer_params":`+prefillParams)
				if n := a.get(t, "usage", "completion_tokens"); n != 1 {
					t.Errorf("prefill: %v tokens", n)
				}
				paired := chat("d:1", `,"stream":true,"kv_transfer_params":`+a.handoff(t))
				got := called(t, paired)
				call := alone.get(t, "choices", 0, "message", "tool_calls", 0, "function").(map[string]any)
				finish, _ := alone.get(t, "choices", 0, "finish_reason").(string)
				want := calledFunction{got.ID, "function", "f", call["arguments"].(string), finish}
				if got != want || !strings.HasPrefix(got.ID, "chatcmpl-tool-") {
					t.Errorf("got %+v, want %+v", got, want)
				}
				var args struct {
					City string
					Days int
				}
				if err := json.Unmarshal([]byte(got.Arguments), &args); err != nil || args.City == "" || args.Days == 0 {
					t.Errorf("arguments %s: %v", got.Arguments, err)
				}
				clean(t, p, d)
			})
		})
	}
}

// TestChoicesWithCalls checks that each choice has a call of its own.
func TestChoicesWithCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{})
		schema := `{"properties":{"a":{"type":"string"}},"required":["a"]}`
		a := w.do(request{path: "/v1/chat/completions", body: `{` + hi + `,"n":2,` + offer("f", schema) + `,` + toF + `}`})
		seen := map[any]bool{}
		for i := range 2 {
			call := a.get(t, "choices", i, "message", "tool_calls", 0).(map[string]any)
			seen[call["id"]] = true
			seen[call["function"].(map[string]any)["arguments"]] = true
		}
		if len(seen) != 4 {
			t.Errorf("%s", a.body)
		}
	})
}
