package openai_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/baton-llm/baton/internal/openai"
)

// splicePaths are the paths that the tests of Splice edit.
var splicePaths = []string{
	"a", "b", "p", "p.a", "p.b", "p.q", "p.q.a", "p.q.b", "r.s.t", `w"\x`, "é",
}

// parseEdits reads edits such as "a=1 p.b=- p.q.a={}"; a dash removes.
func parseEdits(t *testing.T, text string) []openai.Edit {
	t.Helper()
	var edits []openai.Edit
	for f := range strings.FieldsSeq(text) {
		path, raw, ok := strings.Cut(f, "=")
		e := openai.Edit{Path: -1, Raw: []byte(raw)}
		for id, p := range splicePaths {
			if p == path {
				e.Path = id
			}
		}
		if !ok || e.Path < 0 {
			t.Fatalf("bad edit %q", f)
		}
		if raw == "-" {
			e.Raw = nil
		}
		edits = append(edits, e)
	}
	return edits
}

func TestSplice(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, body, edits, want string }{
		{"nothing", " { \"a\" : 1.50 } \n", "", " { \"a\" : 1.50 } \n"},

		{"set", `{"a":1,"b":2}`, "a=10", `{"a":10,"b":2}`},
		{"set keeps all else", "{\n  \"x\": 1e400,\n  \"a\" :\t1 ,\n  \"b\": \"\\u0041\"\n}\n", "a=[]", "{\n  \"x\": 1e400,\n  \"a\" :\t[] ,\n  \"b\": \"\\u0041\"\n}\n"},
		{"set under an escaped name", `{"\u0061":1}`, "a=2", `{"\u0061":2}`},
		{"set a repeated name", `{"a":1,"b":2,"a":3,"x":4,"a":5}`, "a=9", `{"b":2,"x":4,"a":9}`},
		{"set a name repeated at the start", `{"a":1,"a":3,"x":4}`, "a=9", `{"a":9,"x":4}`},
		{"set another kind", `{"a":{"x":[1,2]}}`, "a=null", `{"a":null}`},
		{"set a parent", `{"p":{"a":1}}`, "p=0", `{"p":0}`},
		{"set several in any order", `{"a":1,"x":0,"b":2}`, "b=20 a=10", `{"a":10,"x":0,"b":20}`},
		{"later edit wins", `{"a":1}`, "a=2 a=- a=3", `{"a":3}`},
		{"later edit removes", `{"a":1}`, "a=2 a=-", `{}`},

		{"add", `{"x":1}`, "a=2", `{"x":1,"a":2}`},
		{"add to an empty object", `{}`, "a=2", `{"a":2}`},
		{"add to an empty object with a space", `{ }`, "a=2", `{"a":2 }`},
		{"add behind the last member", "{\n  \"x\": 1\n}", "a=2", "{\n  \"x\": 1,\"a\":2\n}"},
		{"add several", `{}`, "b=2 a=1", `{"a":1,"b":2}`},
		{"add an escaped name", `{}`, `é=1 w"\x=2`, `{"w\"\\x":2,"é":1}`},

		{"remove first", `{ "a" : 1 , "x":2}`, "a=-", `{ "x":2}`},
		{"remove middle", `{"x":1, "a":2 ,"y":3}`, "a=-", `{"x":1 ,"y":3}`},
		{"remove last", `{"x":1 , "a":2 }`, "a=-", `{"x":1  }`},
		{"remove only", `{ "a":2 }`, "a=-", `{  }`},
		{"remove all", `{ "a":2 , "b":3 }`, "a=- b=-", `{  }`},
		{"remove the first two", `{"a":1,"b":2,"x":3}`, "b=- a=-", `{"x":3}`},
		{"remove the last two", `{"x":3,"a":1,"b":2}`, "b=- a=-", `{"x":3}`},
		{"remove both ends", `{"a":1,"x":3,"b":2}`, "b=- a=-", `{"x":3}`},
		{"remove a repeated name", `{"a":1,"a":2,"x":3,"a":4,"y":5,"a":6}`, "a=-", `{"x":3,"y":5}`},
		{"remove what is not there", `{"x":1}`, "a=-", `{"x":1}`},
		{"remove below what is not there", `{"x":1}`, "p.a=- r.s.t=-", `{"x":1}`},
		{"remove below what is no object", `{"p":[1]}`, "p.a=- p.q.a=-", `{"p":[1]}`},
		{"remove a parent", `{"p":{"a":1},"x":0,"p":{}}`, "p=-", `{"x":0}`},

		{"remove and add", `{"a":1}`, "a=- b=2", `{"b":2}`},
		{"remove and add with others", `{"x":0,"a":1 }`, "a=- b=2", `{"x":0,"b":2 }`},
		{"remove first and set the next", `{"a":1,"b":2}`, "a=- b=3", `{"b":3}`},
		{"remove last and set the one before", `{"b":2,"a":1}`, "a=- b=3", `{"b":3}`},

		{"set below", `{"p":{"x":0,"a":1},"a":2}`, "p.a=5", `{"p":{"x":0,"a":5},"a":2}`},
		{"set far below", `{"p":{"q":{"a":1}}}`, "p.q.a=5", `{"p":{"q":{"a":5}}}`},
		{"add below", `{"p":{"x":0}}`, "p.a=5", `{"p":{"x":0,"a":5}}`},
		{"remove below", `{"p":{"a":0,"x":1}}`, "p.a=-", `{"p":{"x":1}}`},
		{"at all levels", `{"a":1,"p":{"b":2,"q":{"a":3}}}`, "p.q.b=6 b=4 p.a=5 a=- p.b=- p.q.a=-", `{"p":{"q":{"b":6},"a":5},"b":4}`},
		{"add a parent", `{"x":0}`, "p.a=5", `{"x":0,"p":{"a":5}}`},
		{"add two parents", `{}`, "r.s.t=5", `{"r":{"s":{"t":5}}}`},
		{"share a new parent", `{}`, "p.q.b=4 p.b=2 p.q.a=3 p.a=1", `{"p":{"a":1,"b":2,"q":{"a":3,"b":4}}}`},
		{"a removal adds no parent", `{}`, "p.b=- p.q.a=- r.s.t=1", `{"r":{"s":{"t":1}}}`},
		{"a removal is no member of a new parent", `{}`, "p.b=- p.a=1", `{"p":{"a":1}}`},
		{"add below an empty parent", `{"p":{}}`, "p.q.a=5", `{"p":{"q":{"a":5}}}`},
		{"a parent that is null", `{"p":null}`, "p.q.a=5 p.b=1", `{"p":{"b":1,"q":{"a":5}}}`},
		{"a parent that is an array", `{"p":{"q":["a"]},"x":0}`, "p.q.a=5", `{"p":{"q":{"a":5}},"x":0}`},

		{"a repeated parent", `{"p":{"a":1},"p":{"a":2,"a":3}}`, "p.a=5", `{"p":{"a":1},"p":{"a":5}}`},
		{"add below a repeated parent", `{"p":{"a":1},"p":{}}`, "p.a=5", `{"p":{"a":1},"p":{"a":5}}`},
		{"a repeated parent that is no object in the end", `{"p":{"a":1},"p":7}`, "p.a=5", `{"p":{"a":1},"p":{"a":5}}`},
		{"remove below a repeated parent", `{"p":{"a":1},"p":{"a":2}}`, "p.a=-", `{"p":{"a":1},"p":{}}`},
	}
	p := openai.NewPaths(splicePaths...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			edits := parseEdits(t, tt.edits)
			var d openai.Doc
			if err := p.Scan(&d, []byte(tt.body)); err != nil {
				t.Fatal(err)
			}
			got := string(d.Splice([]byte("> "), edits))
			if diff := cmp.Diff("> "+tt.want, got); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			checkSplice(t, []byte(tt.body), edits)
			if got := string(d.Splice(nil, nil)); got != tt.body {
				t.Errorf("a second splice without edits: got %s", got)
			}
		})
	}
}

func TestSplicePanics(t *testing.T) {
	t.Parallel()
	p := openai.NewPaths("p", "p.q", "p.q.a", "b")
	var d, empty, failed openai.Doc
	if err := p.Scan(&d, []byte(`{"p":{"q":{"a":1}}}`)); err != nil {
		t.Fatal(err)
	}
	if p.Scan(&failed, []byte(`{"p":`)) == nil {
		t.Fatal("no error")
	}
	one := []byte("1")
	mustPanic(t, "empty Doc", func() { empty.Splice(nil, nil) })
	mustPanic(t, "failed scan", func() { failed.Splice(nil, nil) })
	mustPanic(t, "empty value", func() { d.Splice(nil, []openai.Edit{{Path: 3, Raw: []byte{}}}) })
	mustPanic(t, "parent and child", func() { d.Splice(nil, []openai.Edit{{Path: 0, Raw: one}, {Path: 1, Raw: one}}) })
	mustPanic(t, "child and parent", func() { d.Splice(nil, []openai.Edit{{Path: 2}, {Path: 1, Raw: one}}) })
	mustPanic(t, "grandchild", func() { d.Splice(nil, []openai.Edit{{Path: 0}, {Path: 2, Raw: one}}) })

	got := string(d.Splice(nil, []openai.Edit{{Path: 3, Raw: one}}))
	if want := `{"p":{"q":{"a":1}},"b":1}`; got != want {
		t.Errorf("splice after a panic: got %s, want %s", got, want)
	}
}

// TestSpliceHostile feeds the bodies that would cost most if an edit's cost
// grew with the number of members or of bytes between them.
func TestSpliceHostile(t *testing.T) {
	t.Parallel()
	const repeats = 4000
	value := []byte(`"` + strings.Repeat("v", 64<<10) + `"`)
	space := strings.Repeat(" ", 100)
	tests := []struct{ name, member string }{
		{"repeated name", `"a":1`},
		{"white space", space + `"a"` + space + ":" + space + "1" + space},
		{"repeated parent", `"p":{}`},
		{"names in turn", `"a":0,"b":0`},
	}
	p := openai.NewPaths(splicePaths...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := repeats / strings.Count(tt.member, ":")
			body := []byte("{" + strings.Repeat(tt.member+",", n-1) + tt.member + "}")
			var d openai.Doc
			if err := p.Scan(&d, body); err != nil {
				t.Fatal(err)
			}
			for _, edits := range [][]openai.Edit{
				{{Path: 0, Raw: value}, {Path: 1, Raw: value}, {Path: 3, Raw: value}},
				{{Path: 0}, {Path: 1}, {Path: 2}},
			} {
				start := time.Now()
				got := d.Splice(nil, edits)
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("took %v", took)
				}
				if limit := len(body) + 3*len(value) + 100; len(got) > limit {
					t.Errorf("the body grew from %d to %d bytes", len(body), len(got))
				}
				if !json.Valid(got) {
					t.Error("the result is not valid")
				}
			}
		})
	}
}

// TestSpliceModel compares splices of made-up bodies, which repeat names and
// nest them where the paths lead, with edits of a tree.
func TestSpliceModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		body := drawObject(t, 0)
		checkSplice(t, []byte(body), drawEdits(t))
	})
}

func drawSpace(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "", " ", "\n\t"}).Draw(t, "space")
}

func drawObject(t *rapid.T, depth int) string {
	names := []string{"a", "b", "p", "q", "r", "s", "t", "x", `\u0061`, `w\"\\x`, "é", `\u00e9`}
	var b strings.Builder
	b.WriteString(drawSpace(t) + "{" + drawSpace(t))
	for i := range rapid.IntRange(0, 6).Draw(t, "members") {
		if i > 0 {
			b.WriteString("," + drawSpace(t))
		}
		b.WriteString(`"` + rapid.SampledFrom(names).Draw(t, "name") + `"` + drawSpace(t) + ":" + drawSpace(t))
		b.WriteString(drawValue(t, depth+1) + drawSpace(t))
	}
	b.WriteString("}" + drawSpace(t))
	return b.String()
}

func drawValue(t *rapid.T, depth int) string {
	kind := rapid.IntRange(0, 9).Draw(t, "kind")
	if depth < 4 && kind < 5 {
		return strings.TrimSpace(drawObject(t, depth))
	}
	scalars := []string{
		"null", "true", "9007199254740993", "-0.10", `"a\n\"b\u00e9\ud800"`, `""`, "[]", `[{"a":1}, 2 ]`, "1E400", `"{,}"`,
	}
	return rapid.SampledFrom(scalars).Draw(t, "scalar")
}

func drawEdits(t *rapid.T) []openai.Edit {
	var edits []openai.Edit
	for range rapid.IntRange(0, 6).Draw(t, "edits") {
		e := openai.Edit{Path: rapid.IntRange(0, len(splicePaths)-1).Draw(t, "path")}
		if rapid.Bool().Draw(t, "set") {
			e.Raw = []byte(rapid.SampledFrom([]string{"1", `"x"`, `{"a":[1,2]}`, "null"}).Draw(t, "raw"))
		}
		edits = append(edits, e)
	}
	return withoutConflicts(edits)
}

// withoutConflicts drops each edit whose path and one before lie on one line
// from the root, unless they are equal.
func withoutConflicts(edits []openai.Edit) []openai.Edit {
	var kept []openai.Edit
edits:
	for _, e := range edits {
		for _, k := range kept {
			a, b := splicePaths[e.Path]+".", splicePaths[k.Path]+"."
			if a != b && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)) {
				continue edits
			}
		}
		kept = append(kept, e)
	}
	return kept
}

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Fatalf(format string, args ...any)
	Helper()
}

// checkSplice checks the splice of edits into body against edits of a tree
// that encoding/json has read, and that all else is as it was.
func checkSplice(t fataler, body []byte, edits []openai.Edit) {
	t.Helper()
	p := openai.NewPaths(splicePaths...)
	var d openai.Doc
	if err := p.Scan(&d, body); err != nil {
		t.Fatalf("Scan(%q): %v", body, err)
	}
	before := bytes.Clone(body)
	if got := d.Splice(nil, nil); !bytes.Equal(got, before) {
		t.Fatalf("no edits: got %q, want %q", got, before)
	}
	got := d.Splice(nil, edits)
	if !bytes.Equal(body, before) {
		t.Fatalf("the body has changed from %q to %q", before, body)
	}

	want := readTree(t, body)
	for _, i := range effective(edits) {
		e := edits[i]
		want.edit(strings.Split(splicePaths[e.Path], "."), e.Raw)
	}
	result := readTree(t, got)
	// Members are added in the order of the paths, which the tree does not
	// know, so the order of what is new does not count.
	if diff := cmp.Diff(want.text(), result.text()); diff != "" {
		t.Fatalf("%q with %v gives %q (-want +got):\n%s", body, edits, got, diff)
	}
	checkInverse(t, body, edits)
}

// effective returns the indices of the edits that count, each path's last.
func effective(edits []openai.Edit) []int {
	var kept []int
	for i, e := range edits {
		last := true
		for _, later := range edits[i+1:] {
			last = last && later.Path != e.Path
		}
		if last {
			kept = append(kept, i)
		}
	}
	return kept
}

// checkInverse checks by single edits that bytes no edit concerns stay: a
// value that is set to itself changes nothing, and a member that is added and
// removed leaves nothing behind.
func checkInverse(t fataler, body []byte, edits []openai.Edit) {
	t.Helper()
	p := openai.NewPaths(splicePaths...)
	var d, again openai.Doc
	if err := p.Scan(&d, body); err != nil {
		t.Fatalf("Scan(%q): %v", body, err)
	}
	for _, e := range edits {
		names := strings.Split(splicePaths[e.Path], ".")
		tree := readTree(t, body)
		parent, there := tree.find(names)
		if v := d.Value(e.Path); v.Kind != openai.Missing {
			if parent.count(names[len(names)-1]) > 1 {
				continue
			}
			same := []openai.Edit{{Path: e.Path, Raw: v.Raw}}
			if got := d.Splice(nil, same); !bytes.Equal(got, body) {
				t.Fatalf("%s set to itself: got %q, want %q", splicePaths[e.Path], got, body)
			}
			continue
		}
		if !there {
			continue
		}
		added := d.Splice(nil, []openai.Edit{{Path: e.Path, Raw: []byte("[0]")}})
		if err := p.Scan(&again, added); err != nil {
			t.Fatalf("Scan(%q): %v", added, err)
		}
		if got := again.Splice(nil, []openai.Edit{{Path: e.Path}}); !bytes.Equal(got, body) {
			t.Fatalf("%s added and removed: got %q, want %q", splicePaths[e.Path], got, body)
		}
	}
}
