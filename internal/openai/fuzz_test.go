package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/openai"
)

// fuzzSeeds are bodies that have broken other parsers.
func fuzzSeeds() []string {
	return []string{
		"", " ", "{}", "{", "[]", "null", `"a"`, "{} ", "{}{}", "{}x", "\xef\xbb\xbf{}",
		string(chatBody(1 << 10)),
		`{"a":1,"b":-1.5e+10,"p":{"a":true,"q":{"a":"x","b":[1,{"a":2}]}},"r":{"s":{"t":null}}}`,
		`{"a":1,"a":2,"p":{"a":1},"p":{"q":{"a":1},"q":{"b":2,"b":3}},"a":[]}`,
		`{"\u0061":1,"mod\u0065l":"m","w\"\\x":2,"\u00e9":3,"\ud83d\ude00":4,"\ud800":5,"\/":6}`,
		`{"a":"\ud83d\ude00\ud83d\u0041\udc00\"\\\/\b\f\n\r\t\u0000"}`,
		"{\"a\":\"\xff\xc3\xa9\xed\xa0\x80\"}",
		"{\"a\":\"\x01\"}", "{\"a\":\"0123456789\n\"}", `{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\`,
		`{"a":9007199254740993,"b":-9223372036854775809,"p":1E400}`,
		`{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"a":.1}`, `{"a":1e}`, `{"a":+1}`, `{"a":1,}`, `{"a":[1,]}`, `{"a":[1}`,
		`{"a":NaN,"b":[Infinity,-Infinity],"p":{"a":NaN}}`, `{"a":-NaN}`, `{"a":1NaN}`, `{"a":"\NaN"}`, `NaN`, `{"a":Inf`,
		"{\r\n\t\"a\" : [ ] , \"b\" : { } }\n", "{\f}", "{}\x00",
	}
}

// largeSeeds are bodies at and beyond the limits. The fuzzer does not start
// from them: it would spend its time on making them smaller.
func largeSeeds() []string {
	return []string{
		`{"a":` + strings.Repeat("[", 100_000), nested(100_000, `{"p":`, "{}", "}"),
		nested(999, `{"p":`, "{}", "}"), nested(1000, `{"p":`, "{}", "}"),
		`{"a":` + nested(999, "[", "", "]") + "}", `{"a":` + nested(1000, "[", "", "]") + "}",
		`{` + strings.Repeat(`"a":0,`, 4095) + `"a":0}`, `{` + strings.Repeat(`"a":0,`, 4096) + `"a":0}`,
		`{"p":{` + strings.Repeat(`"a":0,`, 4096) + `"a":0}}`,
		`{"p":{` + strings.Repeat(`"x":0,`, 10_000) + `"a":0}}`,
		string(chatBody(300 << 10)),
	}
}

// finite replaces the literals that Python knows and JSON does not by a value
// that makes the text valid in the same places and in no others: it cannot
// continue a number, an escape or a literal.
var finite = strings.NewReplacer("-Infinity", "{}", "Infinity", "{}", "NaN", "{}")

// depth returns how deep the brackets outside of strings are nested at most.
func depth(body []byte) int {
	deepest, now := 0, 0
	inString := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

func FuzzScan(f *testing.F) {
	for _, s := range fuzzSeeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(checkScan)
}

func TestScanLargeSeeds(t *testing.T) {
	t.Parallel()
	for _, s := range largeSeeds() {
		checkScan(t, []byte(s))
	}
}

// checkScan checks by encoding/json whether body is accepted and which values
// are found in it.
func checkScan(t *testing.T, body []byte) {
	t.Helper()
	p := openai.NewPaths(splicePaths...)
	before := bytes.Clone(body)
	var d openai.Doc
	err := p.Scan(&d, body)
	if !bytes.Equal(body, before) {
		t.Fatalf("Scan has changed the body to %q", body)
	}

	plain := []byte(finite.Replace(string(body)))
	isObject := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
	valid := isObject && json.Valid(plain)
	switch {
	case err == nil && !valid:
		t.Fatalf("accepted %q", body)
	case errors.Is(err, openai.ErrTooDeep):
		if depth(body) <= 1000 {
			t.Fatalf("too deep: %q", body)
		}
	case errors.Is(err, openai.ErrTooManyMembers):
		if bytes.Count(body, []byte(":")) <= 4096 {
			t.Fatalf("too many members: %q", body)
		}
	case errors.Is(err, openai.ErrNotObject):
		if isObject {
			t.Fatalf("not an object: %q", body)
		}
	case err != nil && valid:
		t.Fatalf("rejected %q: %v", body, err)
	case err != nil:
		syntax, ok := errors.AsType[*openai.SyntaxError](err)
		if !ok || syntax.Offset < 0 || syntax.Offset > len(body) || len(syntax.Error()) > 150 {
			t.Fatalf("%q: %v", body, err)
		}
	}
	if err != nil {
		return
	}

	for id, path := range splicePaths {
		v := d.Value(id)
		want, ok := lookUp(plain, strings.Split(path, "."))
		if ok != (v.Kind != openai.Missing) || finite.Replace(string(v.Raw)) != string(want) {
			t.Fatalf("%q: %s: got %q, want %q", body, path, v.Raw, want)
		}
		if bytes.Equal(v.Raw, want) {
			checkValue(t, v)
		}
	}
	if got := d.Splice(nil, nil); !bytes.Equal(got, body) {
		t.Fatalf("splice without edits: got %q, want %q", got, body)
	}
}

// lookUp finds the value at a path by way of encoding/json, which keeps the
// last of repeated names in a map.
func lookUp(raw []byte, names []string) (json.RawMessage, bool) {
	for _, name := range names {
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil {
			return nil, false
		}
		var ok bool
		if raw, ok = m[name]; !ok {
			return nil, false
		}
	}
	return raw, true
}

// checkValue compares what v says of its bytes with what encoding/json does.
func checkValue(t *testing.T, v openai.Value) {
	t.Helper()
	if v.Kind == openai.Missing {
		return
	}
	var n json.Number
	var s string
	var list []json.RawMessage
	bad := false
	switch v.Kind {
	case openai.Null:
		bad = string(v.Raw) != "null"
	case openai.False:
		bad = string(v.Raw) != "false" || v.Bool()
	case openai.True:
		bad = string(v.Raw) != "true" || !v.Bool()
	case openai.Number:
		bad = json.Unmarshal(v.Raw, &n) != nil
		want, err := n.Int64()
		got, ok := v.Int()
		bad = bad || ok != (err == nil) || ok && got != want
	case openai.String:
		bad = json.Unmarshal(v.Raw, &s) != nil
		text, ok := v.Text()
		appended, appendOK := v.AppendString(nil)
		bad = bad || !ok || !appendOK
		// encoding/json makes one U+FFFD of each bad byte, Text of a run.
		if bytes.Equal(bytes.ToValidUTF8(v.Raw, nil), v.Raw) {
			bad = bad || text != s || string(appended) != s
		} else {
			bad = bad || strings.ReplaceAll(text, "\uFFFD", "") != strings.ReplaceAll(s, "\uFFFD", "")
		}
	case openai.Array:
		bad = json.Unmarshal(v.Raw, &list) != nil || len(list) != v.Len
		first := openai.Missing
		if len(list) > 0 {
			first = scan(t, `{"x":`+string(list[0])+`}`, "x").Kind
		}
		bad = bad || v.First != first
	case openai.Object:
		bad = len(readTree(t, v.Raw).members) != v.Len
	default:
		bad = true
	}
	if bad {
		t.Fatalf("%v of %d elements, the first of them %v, for %q", v.Kind, v.Len, v.First, v.Raw)
	}
}

// FuzzSplice takes an edit from each byte of ops: the low six bits are the path,
// the high two the value.
func FuzzSplice(f *testing.F) {
	for i, s := range fuzzSeeds() {
		f.Add([]byte(s), []byte{byte(i), byte(7 * i), byte(i + 40), byte(200 - i)})
	}
	values := []string{"", "1", `"x\u0041"`, `{"a":[1,2],"a":{}}`}
	p := openai.NewPaths(splicePaths...)
	f.Fuzz(func(t *testing.T, body, ops []byte) {
		if bytes.Contains(body, []byte("NaN")) || bytes.Contains(body, []byte("Infinity")) {
			return // encoding/json, the judge, does not read them
		}
		if depth(body) > 50 {
			return // the judge reads each level anew
		}
		var d openai.Doc
		if p.Scan(&d, body) != nil {
			return
		}
		var edits []openai.Edit
		for _, op := range ops[:min(len(ops), 20)] {
			e := openai.Edit{Path: int(op&0x3f) % len(splicePaths)}
			if raw := values[op>>6]; raw != "" {
				e.Raw = []byte(raw)
			}
			edits = append(edits, e)
		}
		checkSplice(t, body, withoutConflicts(edits))
	})
}
