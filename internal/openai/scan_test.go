package openai_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/openai"
)

// scan scans body for one path and returns its value.
func scan(t *testing.T, body, path string) openai.Value {
	t.Helper()
	var d openai.Doc
	if err := openai.NewPaths(path).Scan(&d, []byte(body)); err != nil {
		t.Fatalf("Scan(%.60q): %v", body, err)
	}
	return d.Value(0)
}

func TestNewPathsPanics(t *testing.T) {
	t.Parallel()
	for _, paths := range [][]string{
		{""},
		{"a."},
		{".a"},
		{"a..b"},
		{"a.b.c.d"},
		{"a", "b", "a"},
		{"a.b", "a.b"},
		{"\xff"},
		{"a\uFFFDb"},
	} {
		mustPanic(t, fmt.Sprintf("NewPaths(%q)", paths), func() { openai.NewPaths(paths...) })
	}
	openai.NewPaths() // a scan that only checks
	openai.NewPaths("a.b.c", "a", "b", "a.b")
}

// mustPanic checks that f panics with a message for a programmer.
func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if msg := fmt.Sprint(recover()); !strings.HasPrefix(msg, "BUG: ") {
			t.Errorf("%s: got panic %q, want one that begins with BUG", what, msg)
		}
	}()
	f()
}

func TestScanValue(t *testing.T) {
	t.Parallel()
	type value struct {
		Kind  openai.Kind
		Raw   string
		Len   int
		First openai.Kind
	}
	missing := value{}
	tests := []struct {
		name, body, path string
		want             value
	}{
		{"string", `{"model":"m"}`, "model", value{openai.String, `"m"`, 0, 0}},
		{"number", `{"n":-1.5e+3}`, "n", value{openai.Number, `-1.5e+3`, 0, 0}},
		{"true", `{"stream":true}`, "stream", value{openai.True, `true`, 0, 0}},
		{"false", `{"stream":false}`, "stream", value{openai.False, `false`, 0, 0}},
		{"null", `{"stream":null}`, "stream", value{openai.Null, `null`, 0, 0}},
		{"NaN", `{"a":NaN}`, "a", value{openai.Number, `NaN`, 0, 0}},
		{"Infinity", `{"a":Infinity}`, "a", value{openai.Number, `Infinity`, 0, 0}},
		{"minus Infinity", `{"a":-Infinity}`, "a", value{openai.Number, `-Infinity`, 0, 0}},
		{"number beyond 2^53", `{"a":90071992547409930001}`, "a", value{openai.Number, `90071992547409930001`, 0, 0}},
		{"empty array", `{"a":[ ]}`, "a", value{openai.Array, `[ ]`, 0, 0}},
		{"array", `{"a":[ [1,2] ,{"x":[3,4]},5]}`, "a", value{openai.Array, `[ [1,2] ,{"x":[3,4]},5]`, 3, openai.Array}},
		{"array of strings", `{"prompt":["a"]}`, "prompt", value{openai.Array, `["a"]`, 1, openai.String}},
		{"array of tokens", `{"prompt":[1, 2,3]}`, "prompt", value{openai.Array, `[1, 2,3]`, 3, openai.Number}},
		{"empty object", `{"a":{}}`, "a", value{openai.Object, `{}`, 0, 0}},
		{"object", `{"a":{"x":{"y":1,"z":2},"w":0}}`, "a", value{openai.Object, `{"x":{"y":1,"z":2},"w":0}`, 2, 0}},
		{"object counts repeated names", `{"a":{"x":1,"x":2}}`, "a", value{openai.Object, `{"x":1,"x":2}`, 2, 0}},
		{"white space", " \t\r\n{ \"a\" \n:\t1 , \"b\" : 2 } \n", "b", value{openai.Number, `2`, 0, 0}},

		{"missing", `{"a":1}`, "b", missing},
		{"in an empty object", `{}`, "b", missing},
		{"case matters", `{"MODEL":"m","Model":"m"}`, "model", missing},
		{"longer name", `{"models":1,"mode":2}`, "model", missing},
		{"empty name", `{"":1}`, "a", missing},
		{"only at its own level", `{"x":{"model":1},"y":[{"model":2}]}`, "model", missing},
		{"escaped name", `{"mod\u0065l":1}`, "model", value{openai.Number, `1`, 0, 0}},
		{"escaped name is the last", `{"model":1,"\u006d\u006f\u0064\u0065\u006c":2}`, "model", value{openai.Number, `2`, 0, 0}},
		{"escaped name that is too long", `{"model\u0065":1}`, "model", missing},
		{"escaped slash", `{"a\/b":1}`, "a/b", value{openai.Number, `1`, 0, 0}},
		{"name with a backslash", `{"a\\n":1,"a\n":2}`, `a\n`, value{openai.Number, `1`, 0, 0}},
		{"name with a line feed", `{"a\\n":1,"a\n":2}`, "a\n", value{openai.Number, `2`, 0, 0}},
		{"name beyond the basic plane", `{"\ud83d\ude00":1}`, "\U0001F600", value{openai.Number, `1`, 0, 0}},
		{"name with half a pair", `{"\ud83d":1}`, "\U0001F600", missing},
		{"name that is not UTF-8", "{\"\xff\":1}", "a", missing},

		{"last wins", `{"a":1,"b":0,"a":"x"}`, "a", value{openai.String, `"x"`, 0, 0}},
		{"last wins though it is null", `{"a":1,"a":null}`, "a", value{openai.Null, `null`, 0, 0}},
		{"two names", `{"a":{"b":1}}`, "a.b", value{openai.Number, `1`, 0, 0}},
		{"three names", `{"a":{"b":{"c":[0]}}}`, "a.b.c", value{openai.Array, `[0]`, 1, openai.Number}},
		{"deep", `{"c":1,"a":{"c":2,"b":{"b":{"c":3}}}}`, "a.b.c", missing},
		{"last parent counts", `{"a":{"b":1},"a":{"c":2}}`, "a.b", missing},
		{"last of a repeated parent", `{"a":{"b":1},"a":{"b":2,"b":3}}`, "a.b", value{openai.Number, `3`, 0, 0}},
		{"last parent is no object", `{"a":{"b":1},"a":[{"b":2}]}`, "a.b", missing},
		{"last grandparent counts", `{"a":{"b":{"c":1}},"a":{"b":{}}}`, "a.b.c", missing},
		{"parent is a string", `{"a":"b"}`, "a.b", missing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := scan(t, tt.body, tt.path)
			got := value{v.Kind, string(v.Raw), v.Len, v.First}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
			if cap(v.Raw) != len(v.Raw) {
				t.Error("an append to Raw would write into the body")
			}
		})
	}
}

func TestScanManyPaths(t *testing.T) {
	t.Parallel()
	p := openai.NewPaths("sp.max_tokens", "model", "sp", "sp.extra.kv", "kv", "sp.extra")
	body := `{"kv":1,"sp":{"kv":2,"extra":{"kv":{"a":3},"model":4},"max_tokens":5},"model":6,"extra":{"kv":7}}`
	var d openai.Doc
	if err := p.Scan(&d, []byte(body)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for id := range 6 {
		got = append(got, string(d.Value(id).Raw))
	}
	want := []string{
		"5", "6", `{"kv":2,"extra":{"kv":{"a":3},"model":4},"max_tokens":5}`, `{"a":3}`, "1", `{"kv":{"a":3},"model":4}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if got := d.Value(2).Len; got != 3 {
		t.Errorf("Len of an object that paths lead through: got %d, want 3", got)
	}
}

func TestScanErrors(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, body, want string }{
		{"empty", "", "body is not valid JSON: unexpected end at byte 0: expected '{'"},
		{"white space only", " \n", "body is not valid JSON: unexpected end at byte 2: expected '{'"},
		{"word", "hello", "body is not valid JSON: unexpected character 'h' at byte 0: expected '{'"},
		{"byte order mark", "\xef\xbb\xbf{}", "body is not valid JSON: unexpected byte 0xEF at byte 0: expected '{'"},
		{"array", `[{"a":1}]`, "body is not a JSON object"},
		{"string", ` "x"`, "body is not a JSON object"},
		{"number", "-1", "body is not a JSON object"},
		{"null", "null", "body is not a JSON object"},
		{"NaN", "NaN", "body is not a JSON object"},

		{"open object", `{`, "body is not valid JSON: unexpected end at byte 1: expected a member name in double quotes"},
		{"no colon", `{"model" "m"}`, "body is not valid JSON: unexpected character '\"' at byte 9: expected ':'"},
		{"no value", `{"a":}`, "body is not valid JSON: unexpected character '}' at byte 5: expected a value"},
		{"no comma", `{"a":1 "b":2}`, "body is not valid JSON: unexpected character '\"' at byte 7: expected ',' or '}'"},
		{"no comma in an array", `{"a":[1 2]}`, "body is not valid JSON: unexpected character '2' at byte 8: expected ',' or ']'"},
		{"trailing comma", `{"a":1,}`, "body is not valid JSON: unexpected character '}' at byte 7: expected a member name in double quotes"},
		{"trailing comma in an array", `{"a":[1,]}`, "body is not valid JSON: unexpected character ']' at byte 8: expected a value"},
		{"leading comma", `{,"a":1}`, "body is not valid JSON: unexpected character ',' at byte 1: expected a member name in double quotes"},
		{"single quotes", `{'a':1}`, "body is not valid JSON: unexpected character ''' at byte 1: expected a member name in double quotes"},
		{"name without quotes", `{"a":{b:1}}`, "body is not valid JSON: unexpected character 'b' at byte 6: expected a member name in double quotes"},
		{"wrong bracket", `{"a":[1}}`, "body is not valid JSON: unexpected character '}' at byte 7: expected ',' or ']'"},
		{"wrong brace", `{"a":{"b":1]}`, "body is not valid JSON: unexpected character ']' at byte 11: expected ',' or '}'"},
		{"cut short", `{"a":[1,2`, "body is not valid JSON: unexpected end at byte 9: expected ',' or ']'"},
		{"trailing garbage", `{"a":1} x`, "body is not valid JSON: unexpected character 'x' at byte 8: expected the end of the body"},
		{"two documents", "{}\n{}", "body is not valid JSON: unexpected character '{' at byte 3: expected the end of the body"},
		{"trailing NUL", "{}\x00", "body is not valid JSON: unexpected control character 0x00 at byte 2: expected the end of the body"},
		{"NUL for a comma", "{\"a\":1\x00}", "body is not valid JSON: unexpected control character 0x00 at byte 6: expected ',' or '}'"},
		{"form feed is no white space", "{\f}", "body is not valid JSON: unexpected control character 0x0C at byte 1: expected a member name in double quotes"},
		{"comment", `{/**/}`, "body is not valid JSON: unexpected character '/' at byte 1: expected a member name in double quotes"},

		{"leading zero", `{"a":01}`, "body is not valid JSON: unexpected character '1' at byte 6: expected ',' or '}'"},
		{"two zeros", `{"a":-00}`, "body is not valid JSON: unexpected character '0' at byte 7: expected ',' or '}'"},
		{"plus sign", `{"a":+1}`, "body is not valid JSON: unexpected character '+' at byte 5: expected a value"},
		{"minus alone", `{"a":-}`, "body is not valid JSON: unexpected character '}' at byte 6: expected a digit"},
		{"no fraction", `{"a":1.}`, "body is not valid JSON: unexpected character '}' at byte 7: expected a digit"},
		{"no whole part", `{"a":.5}`, "body is not valid JSON: unexpected character '.' at byte 5: expected a value"},
		{"no exponent", `{"a":1e+}`, "body is not valid JSON: unexpected character '}' at byte 8: expected a digit"},
		{"number at the end", `{"a":1e`, "body is not valid JSON: unexpected end at byte 7: expected a digit"},
		{"hexadecimal", `{"a":0x1}`, "body is not valid JSON: unexpected character 'x' at byte 6: expected ',' or '}'"},
		{"minus NaN", `{"a":-NaN}`, "body is not valid JSON: unexpected character 'N' at byte 6: expected a digit"},
		{"literal", `{"a":trUe}`, "body is not valid JSON: unexpected character 'U' at byte 7: expected the literal true"},
		{"literal cut short", `{"a":fals`, "body is not valid JSON: unexpected end at byte 9: expected the literal false"},
		{"name cut short", `{"a":{"x":1,"b`, "body is not valid JSON: unexpected end at byte 14: expected the end of a string"},
		{"literal goes on", `{"a":nullx}`, "body is not valid JSON: unexpected character 'x' at byte 9: expected ',' or '}'"},
		{"nan in lower case", `{"a":nan}`, "body is not valid JSON: unexpected character 'a' at byte 6: expected the literal null"},

		{"open string", `{"a":"b`, "body is not valid JSON: unexpected end at byte 7: expected the end of a string"},
		{"open long string", `{"a":"0123456789abcdef`, "body is not valid JSON: unexpected end at byte 22: expected the end of a string"},
		{"line feed in a string", "{\"a\":\"b\n\"}", "body is not valid JSON: unexpected control character 0x0A at byte 7: expected it to be escaped in a string"},
		{"control character in a long string", "{\"a\":\"0123456789\x1fabcdef\"}", "body is not valid JSON: unexpected control character 0x1F at byte 16: expected it to be escaped in a string"},
		{"control character in a name", "{\"a\t\":1}", "body is not valid JSON: unexpected control character 0x09 at byte 3: expected it to be escaped in a string"},
		{"bad escape", `{"a":"\x41"}`, `body is not valid JSON: unexpected character 'x' at byte 7: expected one of "\/bfnrtu after a backslash`},
		{"bad escape in a long string", `{"a":"0123456\'89abcdef"}`, `body is not valid JSON: unexpected character ''' at byte 14: expected one of "\/bfnrtu after a backslash`},
		{"backslash at the end", `{"a":"\`, `body is not valid JSON: unexpected end at byte 7: expected one of "\/bfnrtu after a backslash`},
		{"short \\u", `{"a":"\u12"}`, `body is not valid JSON: unexpected character '"' at byte 10: expected four hexadecimal digits after \u`},
		{"odd \\u", `{"a":"\u12g4"}`, `body is not valid JSON: unexpected character 'g' at byte 10: expected four hexadecimal digits after \u`},
		{"\\u and no letter", `{"a":"\u123@"}`, `body is not valid JSON: unexpected character '@' at byte 11: expected four hexadecimal digits after \u`},
		{"DEL outside of a string", "{\x7f}", "body is not valid JSON: unexpected control character 0x7F at byte 1: expected a member name in double quotes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// Both under a name that is wanted and under one that is not.
			for _, path := range []string{"a", "a.b", "zz"} {
				var d openai.Doc
				err := openai.NewPaths(path).Scan(&d, []byte(tt.body))
				if err == nil {
					t.Fatalf("path %s: no error", path)
				}
				if got := err.Error(); got != tt.want {
					t.Errorf("path %s:\n got %s\nwant %s", path, got, tt.want)
				}
				if got := d.Value(0); got.Kind != openai.Missing {
					t.Errorf("path %s: value after an error: %v", path, got.Kind)
				}
			}
		})
	}
}

func TestScanErrorOffset(t *testing.T) {
	t.Parallel()
	var d openai.Doc
	err := openai.NewPaths().Scan(&d, []byte(`{"a":secret}`))
	syntax, ok := errors.AsType[*openai.SyntaxError](err)
	if !ok || syntax.Offset != 5 {
		t.Errorf("got %#v, want a *SyntaxError at 5", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error quotes the body: %v", err)
	}
}

func TestScanAcceptsWhatIsSent(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"{\"a\":\"\xff\xfe\xc3\"}",
		"{\"a\":\"\x7f\u2028\"}",
		`{"a":"\ud800","b":"\udc00\ud800"}`,
		`{"a":"\"\\\/\b\f\n\r\t\u0000\uAbCd"}`,
		`{"a":[NaN,-Infinity,{"b":Infinity}]}`,
		`{"a":[0,-0,0.0,1E5,1e-5,10]}`,
		"{\"a\":[\r\n\t ]\r\n\t }",
	} {
		var d openai.Doc
		if err := openai.NewPaths("x").Scan(&d, []byte(body)); err != nil {
			t.Errorf("Scan(%q): %v", body, err)
		}
	}
}

// TestScanStringEveryByte puts every byte at every place of a string, so that
// each lane of the eight-byte steps and the steps' rest meet it.
func TestScanStringEveryByte(t *testing.T) {
	t.Parallel()
	p := openai.NewPaths()
	var d openai.Doc
	for length := range 20 {
		for at := range length {
			for c := range 256 {
				text := []byte(strings.Repeat("x", length))
				text[at] = byte(c)
				for _, body := range []string{`{"a":"` + string(text) + `"}`, `{"a":"` + string(text)} {
					got := p.Scan(&d, []byte(body)) == nil
					if want := json.Valid([]byte(body)); got != want {
						t.Fatalf("Scan(%q): accepted %t, want %t", body, got, want)
					}
				}
			}
		}
	}
}

func nested(depth int, open, inner, end string) string {
	return strings.Repeat(open, depth) + inner + strings.Repeat(end, depth)
}

func TestScanLimits(t *testing.T) {
	t.Parallel()
	members := func(n int, member string) string {
		return strings.Repeat(member+",", n-1) + member
	}
	tests := []struct {
		name, body string
		want       error
	}{
		{"1,000 arrays and objects", `{"x":` + nested(999, "[", "", "]") + `}`, nil},
		{"1,001 arrays", `{"x":` + nested(1000, "[", "", "]") + `}`, openai.ErrTooDeep},
		{"1,000 objects", nested(999, `{"x":`, "{}", "}"), nil},
		{"1,001 objects", nested(1000, `{"x":`, "{}", "}"), openai.ErrTooDeep},
		{"1,000 below a path", `{"a":{"b":` + nested(998, "[", "", "]") + `}}`, nil},
		{"1,001 below a path", `{"a":{"b":` + nested(999, "[", "", "]") + `}}`, openai.ErrTooDeep},
		{"100,000 arrays that do not close", `{"x":` + strings.Repeat("[", 100_000), openai.ErrTooDeep},
		{"100,000 objects", nested(100_000, `{"x":`, "1", "}"), openai.ErrTooDeep},

		{"4,096 members", `{` + members(4096, `"x":0`) + `}`, nil},
		{"4,097 members", `{` + members(4097, `"x":0`) + `}`, openai.ErrTooManyMembers},
		{"4,096 of a wanted name", `{` + members(4096, `"a":0`) + `}`, nil},
		{"4,097 of a wanted name", `{` + members(4097, `"a":0`) + `}`, openai.ErrTooManyMembers},
		{"4,095 of a wanted name below another", `{"a":{` + members(4095, `"b":0`) + `}}`, nil}, // the parent counts too
		{"4,096 of a wanted name in two parents", `{"a":{` + members(2047, `"b":0`) + `},"a":{` + members(2047, `"b":0`) + `}}`, nil},
		{"4,097 of a wanted name in two parents", `{"a":{` + members(2047, `"b":0`) + `},"a":{` + members(2048, `"b":0`) + `}}`, openai.ErrTooManyMembers},
		{"100,000 others below a path", `{"a":{` + members(100_000, `"x":0`) + `}}`, nil},
		{"1,000,000 of a wanted name", `{"a":{` + members(1_000_000, `"b":0`) + `}}`, openai.ErrTooManyMembers},
	}
	p := openai.NewPaths("a", "a.b", "a.b.c")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var d openai.Doc
			if got := p.Scan(&d, []byte(tt.body)); !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDocReuse(t *testing.T) {
	t.Parallel()
	small, large := openai.NewPaths("a"), openai.NewPaths("x", "y", "a.b", "a")
	var d openai.Doc
	if got := d.Value(0).Kind; got != openai.Missing {
		t.Errorf("value of a zero Doc: %v", got)
	}
	for _, step := range []struct {
		p    *openai.Paths
		body string
		id   int
		want string
	}{
		{small, `{"a":1}`, 0, "1"},
		{large, `{"a":{"b":2},"x":3}`, 2, "2"},
		{small, `{"b":2}`, 0, ""},
		{large, `{"y":1}`, 0, ""},
		{large, `{"y":1`, 1, ""},
		{small, `{"a":4}`, 0, "4"},
	} {
		_ = step.p.Scan(&d, []byte(step.body)) // one of them fails on purpose
		if got := string(d.Value(step.id).Raw); got != step.want {
			t.Errorf("%s: got %q, want %q", step.body, got, step.want)
		}
	}
	d.Reset()
	if got := d.Value(0).Kind; got != openai.Missing {
		t.Errorf("value after Reset: %v", got)
	}
}

// TestDocAllocates checks that a Doc that has seen a body allocates nothing
// for the next one.
func TestDocAllocates(t *testing.T) {
	body := chatBody(16 << 10)
	body = append(body[:len(body)-1], `,"mod\u0065l":"n","sampling_params":{"extra_args":{"max_tokens":[1,2]}}}`...)
	var d openai.Doc
	var dst []byte
	n := testing.AllocsPerRun(100, func() {
		if err := benchPaths.Scan(&d, body); err != nil {
			t.Fatal(err)
		}
		dst = d.Splice(dst[:0], benchEdits)
	})
	if n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
	n = testing.AllocsPerRun(100, func() { dst = d.Splice(nil, benchEdits) })
	if n > 2 { // one, but two under the race detector
		t.Errorf("splice into a new buffer: got %v allocations, want 1", n)
	}
}
