package enginesim_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/enginesim"
)

var update = flag.Bool("update", false, "write what the engine answers into testdata")

var random = regexp.MustCompile(`(msg_|tool-)[0-9a-f]{16}|-[0-9a-f]{8}"`)

// TestShapes compares whole answers with those in testdata. Each file is a list
// of exchanges with one engine: "== METHOD path [header: value]...", the body,
// "--", and the answer. What is random is replaced by X.
func TestShapes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no testdata", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got string
			synctest.Test(t, func(t *testing.T) { got = replay(t, string(want)) })
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

func replay(t *testing.T, script string) string {
	w := newWorld(t)
	w.start(enginesim.Config{
		Connector: "nixl", EngineID: "11111111-2222-4333-8444-555555555555", Advertise: "10.0.0.1:8000",
		Models: []string{"m", "also-m", "lora=m"}, APIKey: "k1", Store: true, DefaultTokens: 4,
	})
	head, rest, _ := strings.Cut(script, "== ")
	var b strings.Builder
	b.WriteString(head)
	for i, part := range strings.Split("== "+rest, "\n== ") {
		part = strings.TrimPrefix(part, "== ")
		line, rest, _ := strings.Cut(part, "\n")
		body, _, _ := strings.Cut("\n"+rest+"\n", "\n--\n")
		body = strings.TrimSpace(body)
		fields := strings.Split(line, " | ")
		method, path, _ := strings.Cut(fields[0], " ")
		q := request{addr: "10.0.0.1:8000", method: method, path: path, body: body, id: fmt.Sprintf("a%d", i)}
		q.header = map[string]string{"Authorization": "bearer k1"}
		for _, f := range fields[1:] {
			k, v, _ := strings.Cut(f, ": ")
			q.header[k] = v
		}
		a := w.do(q)
		if a.err != nil {
			t.Fatalf("%s: %v", line, a.err)
		}
		fmt.Fprintf(&b, "== %s\n", line)
		if body != "" {
			fmt.Fprintln(&b, body)
		}
		text := random.ReplaceAllStringFunc(a.body, func(s string) string {
			for _, prefix := range []string{"msg_", "tool-"} {
				if strings.HasPrefix(s, prefix) {
					return prefix + "X"
				}
			}
			return `-X"`
		})
		fmt.Fprintf(&b, "--\n%d %s\n%s\n", a.status, a.header.Get("Content-Type"), strings.TrimSuffix(text, "\n"))
	}
	return b.String()
}
