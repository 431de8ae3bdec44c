package openai_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/openai"
)

func TestErrorBody(t *testing.T) {
	t.Parallel()
	e := openai.Error{Status: 400, Message: `say "x" & <y>`, Param: "model", Code: "invalid_model"}
	plain := openai.Error{Status: 502, Message: "m", Code: "c"}
	typed := openai.Error{Status: 502, Message: "m", Type: "t", Code: "c"}
	for _, tt := range []struct {
		name, path string
		e          openai.Error
		want       string
	}{
		{"param", "/v1/chat/completions", e, `{"error":{"message":"say \"x\" \u0026 \u003cy\u003e","type":"invalid_request_error","param":"model","code":"invalid_model"}}`},
		{"no route", "", plain, `{"error":{"message":"m","type":"upstream_error","param":null,"code":"c"}}`},
		{"a type of its own", "/v1/responses", typed, `{"error":{"message":"m","type":"t","param":null,"code":"c"}}`},
		{"messages", "/v1/messages", plain, `{"error":{"code":"c","message":"m","type":"api_error"},"type":"error"}`},
		{"count_tokens", "/v1/messages/count_tokens", plain, `{"error":{"message":"m","type":"upstream_error","param":null,"code":"c"}}`},
	} {
		var route *openai.Route
		if tt.path != "" {
			route = openai.FindRoute(tt.path, nil)
		}
		got := tt.e.Body(route)
		if diff := cmp.Diff(tt.want+"\n", string(got)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
	if got := e.Error(); got != `400 invalid_model: say "x" & <y>` {
		t.Error(got)
	}
}

// The types are those that the SDKs of both APIs know.
func TestErrorTypes(t *testing.T) {
	t.Parallel()
	for status, want := range map[int][2]string{
		400: {"invalid_request_error", "invalid_request_error"},
		401: {"authentication_error", "authentication_error"},
		404: {"not_found_error", "not_found_error"},
		405: {"invalid_request_error", "invalid_request_error"},
		408: {"invalid_request_error", "invalid_request_error"},
		413: {"invalid_request_error", "request_too_large"},
		415: {"invalid_request_error", "invalid_request_error"},
		429: {"rate_limit_error", "rate_limit_error"},
		500: {"upstream_error", "api_error"},
		501: {"not_implemented_error", "api_error"},
		502: {"upstream_error", "api_error"},
		503: {"service_unavailable_error", "overloaded_error"},
		504: {"timeout_error", "timeout_error"},
	} {
		for i, path := range []string{"/v1/completions", "/v1/messages"} {
			var got struct{ Error struct{ Type, Code string } }
			e := openai.Error{Status: status, Code: "c"}
			if err := json.Unmarshal(e.Body(openai.FindRoute(path, nil)), &got); err != nil {
				t.Fatal(err)
			}
			if got.Error.Type != want[i] || got.Error.Code != "c" {
				t.Errorf("%d on %s: %+v, want type %s", status, path, got.Error, want[i])
			}
		}
	}
}

// Case 4.17: one well-formed event, whatever the message.
func TestErrorEvent(t *testing.T) {
	t.Parallel()
	e := openai.Error{Status: 502, Message: "line\nbreak\r\n\r\nand data: [DONE]", Code: "stream_broken"}
	const message = `line\nbreak\r\n\r\nand data: [DONE]`
	object := `data: {"error":{"message":"` + message + `","type":"upstream_error","param":null,"code":"stream_broken"}}`
	for path, want := range map[string]string{
		"/v1/chat/completions":   object,
		"/v1/completions":        object,
		"/inference/v1/generate": object,
		"/v1/responses":          "event: error\n" + `data: {"code":"stream_broken","message":"` + message + `","param":null,"type":"error"}`,
		"/v1/messages":           "event: error\n" + `data: {"error":{"code":"stream_broken","message":"` + message + `","type":"api_error"},"type":"error"}`,
	} {
		got := string(e.Event(openai.FindRoute(path, nil)))
		if diff := cmp.Diff(want+"\n\n", got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", path, diff)
		}
		if strings.Count(got, "\n\n") != 1 {
			t.Errorf("%s: not one event: %q", path, got)
		}
	}
}
