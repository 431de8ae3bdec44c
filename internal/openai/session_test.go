package openai_test

import (
	"testing"

	"github.com/baton-llm/baton/internal/openai"
)

func TestSession(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		fields map[string]string
		body   string
		key    string
		id     string
	}{
		{"none", nil, `{}`, "", ""},
		{"session header", map[string]string{"X-Session-Id": "s1", "X-User-Id": "u"}, `{"user":"b"}`, "header:x-session-id:s1", "s1"},
		{"blank header", map[string]string{"X-Session-Id": " ", "X-User-Id": "u", "X-Tenant-Id": "t"}, `{}`, "header:x-user-id:u", "u"},
		{"tenant", map[string]string{"X-Tenant-Id": "t"}, `{}`, "header:x-tenant-id:t", "t"},
		// Case 3.37: they never name a session.
		{"ids of one request", map[string]string{"X-Request-Id": "r", "X-Correlation-Id": "c", "X-Trace-Id": "t"}, `{"request_id":"r"}`, "", ""},
		{"session parameters", nil, `{"user":"u","session_id":"x","session_params":{"session_id":" s "}}`, "", "s"},
		{"user", nil, `{"session_id":"x","user":"u"}`, "user:u", "u"},
		{"session", nil, `{"user_id":"x","session_id":"s"}`, "session:s", "s"},
		{"user id", nil, `{"user_id":"u","prompt_cache_key":"x"}`, "user:u", "u"},
		{"cache key", nil, `{"prompt_cache_key":"k"}`, "session:k", "k"},
		{"number", nil, `{"user":17}`, "user:17", "17"},
		{"not a name", nil, `{"user":null,"session_id":{"user":"x"},"user_id":"","prompt_cache_key":" "}`, "", ""},
		{"escapes", nil, `{"user":"a\"b\u00e9"}`, "user:a\"bé", "a\"bé"},
		{"look-alikes", nil, `{"prompt":"\"user\": \"x\", session_id: y","metadata":{"user":"z"},"messages":[{"user":"m"}]}`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := request(t, "/v1/chat/completions", c.body).Session(func(name string) string { return c.fields[name] })
			if want := (openai.Session{Key: c.key, ID: c.id}); got != want {
				t.Errorf("session %+v, want %+v", got, want)
			}
		})
	}
}

// TestSessionOfParameters: vllm-router hashes session_params of a chat as it hashes
// a prompt, and elsewhere as a session.
func TestSessionOfParameters(t *testing.T) {
	t.Parallel()
	const body = `{"session_params":{"session_id":"s"}}`
	for path, want := range map[string]openai.Session{
		"/v1/chat/completions": {ID: "s"},
		"/v1/responses":        {Key: "session:s", ID: "s"},
		"/v1/completions":      {Key: "session:s", ID: "s"},
	} {
		if got := request(t, path, body).Session(func(string) string { return "" }); got != want {
			t.Errorf("%s: session %+v, want %+v", path, got, want)
		}
	}
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, path, body, want string }{
		{"prompt", "/v1/completions", `{"prompt":"a\nb"}`, "a\nb"},
		{"prompts", "/v1/completions", `{"prompt":["a", "b c",["x"],"d"]}`, "a b c d"},
		{"token ids", "/v1/completions", `{"prompt":[1,2]}`, "[1,2]"},
		{"embeddings", "/v1/embeddings", `{"input":["a","b"]}`, "a b"},
		{"generate", "/inference/v1/generate", `{"token_ids":[1]}`, "[1]"},
		{"chat", "/v1/chat/completions", `{"messages":[1],"prompt":"x"}`, ""},
		{"responses", "/v1/responses", `{"input":"a"}`, ""},
		{"nothing", "/v1/completions", `{"prompt":[]}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := request(t, c.path, c.body).Placement(); got != c.want {
				t.Errorf("placement of %s is %q, want %q", c.body, got, c.want)
			}
		})
	}
}
