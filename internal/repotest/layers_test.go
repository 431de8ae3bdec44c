package repotest

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers gives every package below internal its layer. A package imports lower
// layers only; one below another has its parent's layer, unless it stands here
// itself, and may import its parent.
var layers = map[string]int{
	"worker":    0,
	"prefix":    0,
	"zmtp":      0,
	"sse":       0,
	"openai":    0,
	"exchange":  0,
	"blockhash": 0,
	"kvindex":   0,

	"registry":  1,
	"policy":    1,
	"breaker":   1,
	"pd":        1,
	"admission": 1,

	"health":    2,
	"discovery": 2,
	"kvevents":  2,
	"dispatch":  2,

	"server": 3,
	"admin":  3,

	"config": 4,

	"memnet":    0,
	"testlog":   0,
	"scenario":  0,
	"enginesim": 1,
	"repotest":  1,
}

// support is what only tests and the commands use.
var support = []string{"memnet", "testlog", "scenario", "enginesim", "repotest"}

// forbidden are imports that the layers would allow.
var forbidden = map[string][]string{
	"enginesim": {"openai", "pd"}, // an oracle does not share the router's code
}

// stdOnly are packages that import nothing but the standard library.
var stdOnly = []string{"worker", "memnet"}

// listed returns the entry of layers that pkg belongs to.
func listed(pkg string) (name string, layer int, ok bool) {
	for name = pkg; name != "."; name = path.Dir(name) {
		if layer, ok = layers[name]; ok {
			return name, layer, true
		}
	}
	return "", 0, false
}

// fault says what is wrong with the import of one package by another, both
// named without the "internal/" before them; "" means nothing is.
func fault(from, to string) string {
	top, layer, ok := listed(from)
	if !ok {
		return "internal/" + from + " has no layer: give it one in the table of internal/repotest/layers_test.go"
	}
	other, otherLayer, ok := listed(to)
	if !ok {
		return "internal/" + to + " has no layer: give it one in the table of internal/repotest/layers_test.go"
	}
	switch {
	case strings.HasPrefix(from, to+"/"):
		return ""
	case slices.Contains(stdOnly, top):
		return fmt.Sprintf("internal/%s imports the standard library only, not internal/%s", from, to)
	case slices.Contains(forbidden[top], other):
		return fmt.Sprintf("internal/%s must not import internal/%s", from, to)
	case slices.Contains(support, other) && !slices.Contains(support, top):
		return fmt.Sprintf("internal/%s imports internal/%s, which is for tests and commands", from, to)
	case otherLayer >= layer:
		return fmt.Sprintf("internal/%s (layer %d) imports internal/%s (layer %d)", from, layer, to, otherLayer)
	}
	return ""
}

// standard reports whether an import path is the standard library's.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func TestLayers(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		pkg, ok := strings.CutPrefix(dir, "internal/")
		if !ok {
			continue
		}
		top, _, ok := listed(pkg)
		if !ok {
			t.Error(fault(pkg, pkg))
			continue
		}
		for _, f := range files {
			if f.test() {
				continue // tests look up, at what uses them
			}
			for _, spec := range f.ast.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				switch own, ours := strings.CutPrefix(imported, module); {
				case ours && strings.HasPrefix(own, "internal/"):
					if wrong := fault(pkg, strings.TrimPrefix(own, "internal/")); wrong != "" {
						t.Errorf("%s: %s", f.name, wrong)
					}
				case ours:
					t.Errorf("%s: imports %s, which is above all of internal", f.name, own)
				case slices.Contains(stdOnly, top) && !standard(imported):
					t.Errorf("%s: internal/%s imports the standard library only, not %s", f.name, pkg, imported)
				}
			}
		}
	}
}

func TestFault(t *testing.T) {
	t.Parallel()
	tests := []struct {
		from, to string
		wrong    string // a part of the complaint
	}{
		{"registry", "worker", ""},
		{"server", "dispatch", ""},
		{"config", "admin", ""},
		{"discovery/zmq", "discovery", ""},
		{"discovery/zmq", "zmtp", ""},
		{"enginesim", "zmtp", ""},
		{"enginesim", "memnet", ""},
		{"worker", "prefix", "standard library"},
		{"prefix", "worker", "layer 0"},
		{"registry", "policy", "layer 1"},
		{"policy", "dispatch", "layer 2"},
		{"discovery", "discovery/zmq", "layer 2"},
		{"discovery/zmq", "discovery/static", "layer 2"},
		{"enginesim", "openai", "must not"},
		{"enginesim", "pd", "must not"},
		{"dispatch", "enginesim", "for tests"},
		{"novelty", "worker", "give it one"},
		{"server", "novelty/sub", "give it one"},
	}
	for _, tt := range tests {
		got := fault(tt.from, tt.to)
		if (got == "") != (tt.wrong == "") || !strings.Contains(got, tt.wrong) {
			t.Errorf("fault(%q, %q) = %q, want %q in it", tt.from, tt.to, got, tt.wrong)
		}
	}
}

func TestPackageComments(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		top, _, _ := strings.Cut(dir, "/")
		if top != "internal" && top != "cmd" && top != "scripts" {
			continue
		}
		if slices.ContainsFunc(files, func(f goFile) bool { return !f.test() }) {
			files = slices.DeleteFunc(files, goFile.test)
		}
		var documented []string
		for _, f := range files {
			if f.ast.Doc == nil {
				continue
			}
			documented = append(documented, f.name)
			want := "Package " + f.ast.Name.Name + " "
			if text := f.ast.Doc.Text(); f.ast.Name.Name != "main" && !strings.HasPrefix(text, want) {
				t.Errorf("%s: the package comment does not start with %q", f.name, want)
			}
		}
		if len(documented) != 1 {
			t.Errorf("%s has %d package comments, want one: %v", dir, len(documented), documented)
		}
	}
}
