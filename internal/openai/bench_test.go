package openai_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/openai"
)

// benchPaths is a set of about the size that a router reads.
var benchPaths = openai.NewPaths(
	"model", "stream", "max_tokens", "max_completion_tokens", "min_tokens", "n", "messages", "prompt",
	"tools", "user", "session_id", "priority", "cache_salt", "stream_options", "kv_transfer_params",
	"request_id", "lora_request", "stream_options.include_usage", "stream_options.continuous_usage_stats",
	"sampling_params.max_tokens", "sampling_params.min_tokens",
	"sampling_params.extra_args.kv_transfer_params",
)

// benchEdits are what a prefill leg needs: max_tokens is in the body, stream
// too, kv_transfer_params is not.
var benchEdits = []openai.Edit{
	{Path: 2, Raw: []byte("1")},
	{Path: 1, Raw: []byte("false")},
	{Path: 14, Raw: []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)},
}

var benchSizes = []int{2 << 10, 16 << 10, 128 << 10, 1 << 20}

// chatBody returns a chat request of about size bytes as the OpenAI client
// writes it: messages first, with escapes and text that is not ASCII.
func chatBody(size int) []byte {
	const text = `Summarise the attached report in three bullet points.\n\nThe author calls it \"a first draft\"; ` +
		`la mise en page est à revoir, and the table on page 7 is missing its last row. ` +
		`Keep every figure as it is, and name the source of each one where the report does.\n`
	var b strings.Builder
	b.WriteString(`{"messages":[{"role":"system","content":"You are a careful assistant."}`)
	perMessage := max(300, size/24)
	for i := 0; b.Len() < size-200; i++ {
		role := [...]string{"user", "assistant"}[i%2]
		n := min(perMessage, size-200-b.Len())
		content := strings.Repeat(text, n/len(text)+1)
		fmt.Fprintf(&b, `,{"role":"%s","content":"%s"}`, role, content)
	}
	b.WriteString(`],"model":"meta-llama/Llama-3.1-8B-Instruct","max_tokens":512,"stream":true,` +
		`"stream_options":{"include_usage":true},"temperature":0.7,"top_p":0.95,"user":"u-81723"}`)
	return []byte(b.String())
}

func sizeName(n int) string {
	if n < 1<<20 {
		return fmt.Sprintf("%dKB", n>>10)
	}
	return fmt.Sprintf("%dMB", n>>20)
}

func BenchmarkScan(b *testing.B) {
	for _, size := range benchSizes {
		body := chatBody(size)
		b.Run(sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var d openai.Doc
			for b.Loop() {
				if err := benchPaths.Scan(&d, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScanTokens scans a prompt of token ids, which has few strings.
func BenchmarkScanTokens(b *testing.B) {
	var sb strings.Builder
	sb.WriteString(`{"model":"m","prompt":[0`)
	for i := range 16384 {
		fmt.Fprintf(&sb, ", %d", i*7919%128256)
	}
	sb.WriteString(`],"max_tokens":16}`)
	body := []byte(sb.String())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var d openai.Doc
	for b.Loop() {
		if err := benchPaths.Scan(&d, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSplice(b *testing.B) {
	for _, size := range benchSizes {
		body := chatBody(size)
		b.Run(sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var d openai.Doc
			if err := benchPaths.Scan(&d, body); err != nil {
				b.Fatal(err)
			}
			var dst []byte
			for b.Loop() {
				dst = d.Splice(dst[:0], benchEdits)
			}
		})
	}
}

// BenchmarkScanSplice includes the allocation of the new body.
func BenchmarkScanSplice(b *testing.B) {
	for _, size := range benchSizes {
		body := chatBody(size)
		b.Run(sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var d openai.Doc
			for b.Loop() {
				if err := benchPaths.Scan(&d, body); err != nil {
					b.Fatal(err)
				}
				d.Splice(nil, benchEdits)
			}
		})
	}
}

// BenchmarkEncodingJSON is the comparison: the same reads and the same edits
// by way of encoding/json.
func BenchmarkEncodingJSON(b *testing.B) {
	for _, size := range benchSizes {
		body := chatBody(size)
		b.Run("Scan/"+sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var req struct {
					Model     string
					Stream    bool
					MaxTokens int64 `json:"max_tokens"`
					Messages  json.RawMessage
				}
				if err := json.Unmarshal(body, &req); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("ScanSplice/"+sizeName(size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var req map[string]json.RawMessage
				if err := json.Unmarshal(body, &req); err != nil {
					b.Fatal(err)
				}
				req["max_tokens"] = json.RawMessage(benchEdits[0].Raw)
				req["stream"] = json.RawMessage(benchEdits[1].Raw)
				req["kv_transfer_params"] = json.RawMessage(benchEdits[2].Raw)
				if _, err := json.Marshal(req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
