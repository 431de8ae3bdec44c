package main

import (
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestFixture(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go test a dozen times")
	}
	t.Parallel()
	var out strings.Builder
	err := run(t.Context(), []string{"-root", filepath.Join("testdata", "fixture")}, &out)
	if err == nil {
		t.Error("a list with survivors is accepted")
	}
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^(\S+)\s+(\S+) \(`).FindAllStringSubmatch(out.String(), -1) {
		got = append(got, m[1]+" "+m[2])
	}
	want := []string{
		"killed lock-ignored", "killed lock-hangs", "SURVIVED count-lost", "STALE twice", "STALE gone",
		"BROKEN no-build", "BROKEN no-test", "BROKEN red-before", "BROKEN no-package",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if want := "9 mutants: 2 killed, 1 survived, 2 stale, 4 broken"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q", want)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestOnlyKilledIsSuccess(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go test")
	}
	t.Parallel()
	var out strings.Builder
	err := run(t.Context(), []string{"-root", filepath.Join("testdata", "fixture"), "-run", "^lock-ignored$"}, &out)
	if err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := run(t.Context(), []string{"-root", filepath.Join("testdata", "fixture"), "-run", "^$"}, &out); err == nil {
		t.Error("no mutants at all is success")
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := parse("Words: on the list.\n\n" +
		"name: one\nfile: a.go\ntest: ./a -run 'A b'\nwhy: x\nold:\n\tif a {\n\n\t\tb()\nnew:\n\n" +
		"# between\nname: two\nwhy: first\n  second\nfile: b.go\ntest: ./b\nnew: y\nold: x: z\n")
	want := []mutant{
		{name: "one", file: "a.go", old: "\tif a {\n\n\t\tb()", test: []string{"./a", "-run", "A b"}, why: "x"},
		{name: "two", file: "b.go", old: "x: z", new: "y", test: []string{"./b"}, why: "first\n  second"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	const good = "name: one\nfile: a.go\ntest: ./a\nwhy: x\nold: a\nnew: b\n"
	if _, err := parse(good); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"no file":        strings.Replace(good, "file: a.go\n", "", 1),
		"no test":        strings.Replace(good, "test: ./a\n", "", 1),
		"no reason":      strings.Replace(good, "why: x\n", "", 1),
		"no new":         strings.Replace(good, "new: b\n", "", 1),
		"empty old":      strings.Replace(good, "old: a\n", "old:\n", 1),
		"no change":      strings.Replace(good, "new: b\n", "new: a\n", 1),
		"open quote":     strings.Replace(good, "./a", "./a '", 1),
		"the same twice": good + good,
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
