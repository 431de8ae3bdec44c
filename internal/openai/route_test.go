package openai_test

import (
	"slices"
	"testing"

	"github.com/baton-llm/baton/internal/openai"
)

func TestFindRoute(t *testing.T) {
	t.Parallel()
	allowed := []string{"/metrics", "/my/", "/v1/load_lora_adapter"}
	for path, want := range map[string]string{
		"/v1/chat/completions":          "chat",
		"/v1/completions":               "completions",
		"/v1/responses":                 "responses",
		"/v1/messages":                  "messages",
		"/inference/v1/generate":        "generate",
		"/v1/chat/completions/batch":    "chat_batch",
		"/v1/chat/completions/render":   "render",
		"/v1/chat/completions/derender": "derender",
		"/v1/messages/count_tokens":     "count_tokens",
		"/v1/responses/resp_1":          "responses_stored",
		"/v1/responses/resp_1/cancel":   "responses_stored",
		"/v1/embeddings":                "embeddings",
		"/v2/embed":                     "embed",
		"/tokenize":                     "tokenize",
		"/detokenize":                   "detokenize",
		"/pooling":                      "pooling",
		"/classify":                     "classify",
		"/score":                        "score",
		"/v1/score":                     "score",
		"/rerank":                       "rerank",
		"/v1/rerank":                    "rerank",
		"/v2/rerank":                    "rerank",
		"/v1/audio/transcriptions":      "transcriptions",
		"/v1/audio/translations":        "translations",
		"/cohere/v2/chat":               "cohere_chat",
		"/generative_scoring":           "generative_scoring",
		"/invocations":                  "invocations",
		"/version":                      "version",
		// Case 5.6: what is unknown below /v1/ and /v2/ is served too.
		"/v1/future":       "other",
		"/v2/future/x":     "other",
		"/v1/models/m":     "other",
		"/v1/audio/speech": "other",

		// Case 5.17: a trailing slash does not matter.
		"/v1/chat/completions/": "chat",
		"/v1/responses/":        "responses",
		"/v1/responses/r/":      "responses_stored",
		"/tokenize/":            "tokenize",
		"/v1/future/":           "other",

		// What --allow-path adds: a path, or all below one.
		"/metrics":                 "allowed",
		"/metrics/":                "allowed",
		"/my/":                     "allowed",
		"/my/path":                 "allowed",
		"/v1/load_lora_adapter":    "allowed",
		"/metrics/x":               "",
		"/my":                      "",
		"/mypath":                  "",
		"/my/../sleep":             "",
		"/my/%2e%2e/sleep":         "",
		"/my//path":                "",
		"/v1/load_lora_adapter/x":  "other",
		"/v1/unload_lora_adapter":  "",
		"/v1/unload_lora_adapter/": "",

		// Control paths of vLLM, and ways to write them.
		"/sleep":                            "",
		"/wake_up":                          "",
		"/is_sleeping":                      "",
		"/pause":                            "",
		"/resume":                           "",
		"/reset_prefix_cache":               "",
		"/reset_mm_cache":                   "",
		"/reset_encoder_cache":              "",
		"/abort_requests":                   "",
		"/collective_rpc":                   "",
		"/start_profile":                    "",
		"/stop_profile":                     "",
		"/scale_elastic_ep":                 "",
		"/is_scaling_elastic_ep":            "",
		"/fault_tolerance/apply":            "",
		"/server_info":                      "",
		"/load":                             "",
		"/ping":                             "",
		"/docs":                             "",
		"/openapi.json":                     "",
		"/tokenizer_info":                   "",
		"/inference/v1/other":               "",
		"/inference/v1":                     "",
		"/v1/../sleep":                      "",
		"/v1/./x":                           "",
		"/v1/x/..":                          "",
		"/v1/x/.":                           "",
		"/v1/..":                            "",
		"/v1//sleep":                        "",
		"//v1/completions":                  "",
		"/v1/completions//":                 "",
		"/v1/%2e%2e/sleep":                  "",
		"/v1/..%2Fsleep":                    "",
		"/v1/%2E%2E%2Fsleep":                "",
		"/v1/%75nload_lora_adapter":         "",
		"/v1/completions%00":                "",
		"/v1/completions%2F":                "",
		"/%76%31/completions":               "",
		"/tokenize/x":                       "",
		"/versions":                         "",
		"/V1/completions":                   "",
		"/v1":                               "",
		"/v1/":                              "",
		"/v2/":                              "",
		"/":                                 "",
		"":                                  "",
		"v1/completions":                    "",
		"*":                                 "",
		"/v10/completions":                  "",
		"/sleep/v1/completions":             "",
		"/v1/unload_lora_adapter/../models": "",
	} {
		got := ""
		if r := openai.FindRoute(path, allowed); r != nil {
			got = r.Name
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestRouteClasses(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]openai.Class{
		"/v1/chat/completions":     openai.Pairable,
		"/v1/chat/completions/":    openai.Pairable,
		"/v1/chat/completions/x":   openai.Whole,
		"/invocations":             openai.Whole,
		"/v1/future":               openai.Whole,
		"/v1/responses/r":          openai.Stored,
		"/v1/embeddings":           openai.Auxiliary,
		"/v1/audio/transcriptions": openai.Auxiliary,
		"/my":                      openai.Auxiliary,
	} {
		if got := openai.FindRoute(path, []string{"/my"}); got == nil || got.Class != want {
			t.Errorf("%s: %+v, want class %d", path, got, want)
		}
	}
}

// Every name that a route can have is listed, once.
func TestRouteNames(t *testing.T) {
	t.Parallel()
	names := openai.RouteNames()
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("repeated names: %v", names)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/responses/r", "/v1/future", "/my", "/rerank", "/v1/completions/render"} {
		if r := openai.FindRoute(path, []string{"/my"}); !slices.Contains(names, r.Name) {
			t.Errorf("%s is not among %v", r.Name, names)
		}
	}
}
