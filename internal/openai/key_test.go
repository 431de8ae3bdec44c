package openai_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/openai"
)

// fullKey is a KeyWriter with a limit.
type fullKey struct {
	bytes.Buffer

	max    int
	writes int
}

func (k *fullKey) Write(p []byte) (int, error) {
	k.writes++
	return k.Buffer.Write(p)
}

func (k *fullKey) Full() bool { return k.max > 0 && k.Len() >= k.max }

func request(t testing.TB, path, body string) *openai.Request {
	t.Helper()
	r := new(openai.Request)
	if err := r.ParseJSON(openai.FindRoute(path, nil), []byte(body)); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

func keyOf(t testing.TB, body string) string {
	t.Helper()
	var k fullKey
	request(t, "/v1/chat/completions", body).WriteKey(&k)
	return k.String()
}

func TestKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, body, want string }{
		{"chat", `{"messages": [ {"role" : "user", "content":"a  b"} ]}`, `"messages":[{"role":"user","content":"a  b"},`},
		{"order is the engine's", `{"messages":[1],"system":"s","tools":[2],"instructions":"i"}`, `"tools":[2],"system":"s","instructions":"i","messages":[1,`},
		{"prompt", `{"prompt":"a\nb"}`, "\"prompt\":a\nb"},
		{"prompts", `{"prompt":["a","b"]}`, `"prompt":["a","b",`},
		{"token ids", `{"prompt":[1, 2,3]}`, `"prompt":[1,2,3,`},
		{"generate", `{"token_ids":[7]}`, `"token_ids":[7,`},
		{"input", `{"input":{"a":[ ]}}`, `"input":{"a":[]}`},
		{"escapes", `{"prompt":"\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t\ud83d"}`, "\"prompt\":é😀\"\\/\b\f\n\r\t\uFFFD"},
		{"escaped name", `{"messages":[{"r\u006fle":null}]}`, `"messages":[{"role":null},`},
		{"the last counts", `{"prompt":"a","prompt":"b"}`, `"prompt":b`},
		{"bytes as they are", "{\"prompt\":\"\xff\xc3\"}", "\"prompt\":\xff\xc3"},
		{"nothing", `{"model":"m","messages":null,"prompt":[]}`, ""},
		{"short link", `{"messages":[{"image_url":{"url":"http://x"}}]}`, `"messages":[{"image_url":{"url":"http://x"}},`},
		{"text like a data URL", `{"messages":["data: a, b"]}`, `"messages":["data: a, b",`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := keyOf(t, c.body); got != c.want {
				t.Errorf("key of %s\n got %q\nwant %q", c.body, got, c.want)
			}
		})
	}
}

// TestKeyOfNextTurn is what affinity rests on.
func TestKeyOfNextTurn(t *testing.T) {
	t.Parallel()
	const image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}`
	for _, c := range []struct{ name, turn, next string }{
		{
			"chat",
			`{"tools":[{"x":1}],"messages":[{"role":"user","content":"hi"}],"stream":true}`,
			`{"stream":false,"messages":[{"role":"user","content":"hi"}, {"role":"assistant","content":"yes"},{"role":"user","content":"more"}],"tools": [{"x":1}]}`,
		},
		{
			"parts",
			`{"messages":[{"role":"user","content":[` + image + `]}]}`,
			`{"messages":[{"role":"user","content":[` + image + `]},{"role":"assistant","content":""}]}`,
		},
		{"prompt", `{"prompt":"once"}`, `{"prompt":"once upon"}`},
		{"token ids", `{"prompt":[1,2]}`, `{"prompt":[1,2,34]}`},
		{"messages of Anthropic", `{"system":[{"text":"s"}],"messages":[{"a":1}]}`, `{"system":[{"text":"s"}],"messages":[{"a":1},{"b":2}]}`},
		{"responses", `{"instructions":"i","input":[{"a":1}]}`, `{"instructions":"i","input":[{"a":1},{"b":2}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			turn, next := keyOf(t, c.turn), keyOf(t, c.next)
			if !strings.HasPrefix(next, turn) || len(next) <= len(turn) {
				t.Errorf("the key of the next turn\n%q\ndoes not extend\n%q", next, turn)
			}
		})
	}
}

func TestKeyDiffers(t *testing.T) {
	t.Parallel()
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	whole := func(body string) string {
		r := request(t, "/v1/chat/completions", body)
		return strings.Join(append(r.KeyRoot(), keyOf(t, body)), "\x00")
	}
	seen := make(map[string]string)
	for _, body := range []string{
		`{"model":"m",` + messages + `}`,
		`{"model":"lora",` + messages + `}`,
		`{"model":"m","cache_salt":"s",` + messages + `}`,
		`{"model":"m","tools":[1],` + messages + `}`,
		`{"model":"m","tools":[2],` + messages + `}`,
		`{"model":"m","system":"s",` + messages + `}`,
		`{"model":"m","messages":[{"role":"user","content":"ho"}]}`,
	} {
		key := whole(body)
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have one key", body, other)
		}
		seen[key] = body
	}
}

func TestKeyOfMedia(t *testing.T) {
	t.Parallel()
	hashed := regexp.MustCompile(`"[0-9a-f]{16}"`)
	long := strings.Repeat("A/", 3000)
	body := func(part string) string { return `{"messages":[{"content":[` + part + `,{"text":"after"}]}]}` }
	keys := make(map[string]string)
	for name, part := range map[string]string{
		"data URL":     `{"image_url":{"url":"data:image/png;base64,` + long + `"}}`,
		"bare string":  `{"image_url":"data:image/png;base64,A` + long + `"}`,
		"audio":        `{"input_audio":{"data":"` + long + `","format":"wav"}}`,
		"video":        `{"video_url":{"url":"B` + long + `"}}`,
		"Anthropic":    `{"type":"image","source":{"type":"base64","data":"C` + long + `"}}`,
		"another data": `{"image_url":{"url":"data:image/png;base64,B` + long + `"}}`,
	} {
		key := keyOf(t, body(part))
		hash := hashed.FindString(key)
		if hash == "" || len(key) > 200 || !strings.Contains(key, `"text":"after"`) {
			t.Errorf("%s: key %.300q has no hash", name, key)
		}
		if other, ok := keys[hash]; ok {
			t.Errorf("%s and %s have one hash", name, other)
		}
		keys[hash] = name
		if escaped := strings.ReplaceAll(part, "/", `\/`); keyOf(t, body(escaped)) != key {
			t.Errorf("%s: escaped it has another key", name)
		}
	}
	if key := keyOf(t, body(`{"image_url":{"url":"x"},"text":"`+long+`"}`)); !strings.Contains(key, long) {
		t.Errorf("long text beside an image is hashed")
	}
	if key := keyOf(t, body(`{"input_audio":{"data":"x"}},{"text":"`+long+`"}`)); !strings.Contains(key, long) {
		t.Errorf("long text after a media part is hashed")
	}
}

func TestKeyStopsWhenFull(t *testing.T) {
	t.Parallel()
	r := request(t, "/v1/completions", `{"prompt":"`+strings.Repeat(`\n`, 1<<20)+`"}`)
	k := &fullKey{max: 5000}
	r.WriteKey(k)
	if k.Len() < 5000 || k.Len() > 8000 {
		t.Errorf("wrote %d bytes into a key of 5000", k.Len())
	}
}

func TestKeyAllocatesNothing(t *testing.T) {
	r := new(openai.Request)
	if err := r.ParseJSON(openai.FindRoute("/v1/chat/completions", nil), chatBody(64<<10)); err != nil {
		t.Fatal(err)
	}
	k := &fullKey{}
	r.WriteKey(k)
	allocs := testing.AllocsPerRun(20, func() {
		k.Reset()
		r.WriteKey(k)
	})
	if allocs > 1 { // a pool may be emptied by the collector
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkKey(b *testing.B) {
	for _, size := range benchSizes {
		body := chatBody(size)
		b.Run(sizeName(size), func(b *testing.B) {
			r := new(openai.Request)
			if err := r.ParseJSON(openai.FindRoute("/v1/chat/completions", nil), body); err != nil {
				b.Fatal(err)
			}
			k := &fullKey{}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				k.Reset()
				r.WriteKey(k)
			}
		})
	}
}

// FuzzKey checks that a key neither panics nor depends on escapes and white
// space, and that one more message extends it.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{`"a"`, `{"role":"user","content":"\ud83d\u00e9"}`, `{"image_url":{"url":"data:a/b,c"}}`, `[[],{}]`, `1`, `{"source":{"data":"x"},"y":"z"}`, "\"\xff\\\"\""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		r := new(openai.Request)
		body := slices.Concat([]byte(`{"messages":[`), message, []byte(`]}`))
		if r.ParseJSON(openai.FindRoute("/v1/chat/completions", nil), body) != nil {
			t.Skip()
		}
		var key, next, plain fullKey
		r.WriteKey(&key)
		if key.Len() > 0 {
			more := slices.Concat([]byte(`{"messages":[`), message, []byte(`,{"role":"user"}]}`))
			if err := r.ParseJSON(openai.FindRoute("/v1/chat/completions", nil), more); err == nil {
				r.WriteKey(&next)
				if !bytes.HasPrefix(next.Bytes(), key.Bytes()) {
					t.Errorf("the key of one more message\n%q\ndoes not extend\n%q", next.Bytes(), key.Bytes())
				}
			}
		}
		if !json.Valid(body) || bytes.Contains(message, []byte("\xff")) {
			return
		}
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, body, " ", "\t"); err != nil {
			t.Fatal(err)
		}
		if err := r.ParseJSON(openai.FindRoute("/v1/chat/completions", nil), spaced.Bytes()); err != nil {
			t.Fatal(err)
		}
		r.WriteKey(&plain)
		if !bytes.Equal(plain.Bytes(), key.Bytes()) {
			t.Errorf("with white space the key is\n%q\nnot\n%q", plain.Bytes(), key.Bytes())
		}
	})
}
