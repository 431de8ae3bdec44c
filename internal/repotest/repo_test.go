package repotest

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is the path that imports of our own packages start with.
const module = "github.com/baton-llm/baton/"

// root returns the directory of the product's go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

// files returns the slash-separated names of the repository's files, without
// those that git ignores. It walks the tree, so that the test cache notices a
// new file.
func files(t *testing.T) []string {
	t.Helper()
	dir := root(t)
	var names []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed since it was listed
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case d.Type().IsRegular():
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Logf("git ls-files: %v; looking at every file", err)
		return names
	}
	known := make(map[string]bool)
	for name := range strings.SplitSeq(string(out), "\x00") {
		known[name] = true
	}
	return slices.DeleteFunc(names, func(name string) bool { return !known[name] })
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), name))
	if errors.Is(err, fs.ErrNotExist) {
		return "" // removed since it was listed
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// goFile is a parsed source file: its package clause, comment and imports.
type goFile struct {
	name string
	ast  *ast.File
}

func (f goFile) test() bool { return strings.HasSuffix(f.name, "_test.go") }

// packages returns the product's Go files by directory.
func packages(t *testing.T) map[string][]goFile {
	t.Helper()
	found := make(map[string][]goFile)
	for _, name := range files(t) {
		if path.Ext(name) != ".go" || inTestdata(name) {
			continue
		}
		src := read(t, name)
		if src == "" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		found[path.Dir(name)] = append(found[path.Dir(name)], goFile{name, parsed})
	}
	if len(found) == 0 {
		t.Fatal("no Go files found")
	}
	return found
}

func inTestdata(name string) bool {
	return slices.Contains(strings.Split(path.Dir(name), "/"), "testdata")
}
