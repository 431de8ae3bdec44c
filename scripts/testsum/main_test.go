package main

import (
	"path/filepath"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    it is bad\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"skip","Package":"p","Test":"TestLater"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: nonsense\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"output","Package":"q","Output":"FAIL\tq [build failed]\n"}
{"Action":"fail","Package":"q","FailedBuild":"q"}
{"Action":"output","Package":"r","Output":"?   \tr\t[no test files]\n"}
{"Action":"skip","Package":"r"}
{"Action":"output","Package":"s","Output":"PASS\n"}
{"Action":"output","Package":"s","Output":"ok  \ts\t0.1s\n"}
{"Action":"pass","Package":"s"}
{"Action":"output","Package":"t","Output":"goleak: found unexpected goroutines\n"}
{"Action":"output","Package":"t","Output":"FAIL\tt\t0.1s\n"}
{"Action":"fail","Package":"t"}
go: a message
`

func TestOutput(t *testing.T) {
	t.Parallel()
	record := filepath.Join(t.TempDir(), "results")
	var out strings.Builder
	if err := run([]string{"-record", record}, strings.NewReader(events), &out); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"    it is bad",
		"--- FAIL: TestBad (0.00s)",
		"FAIL",
		"FAIL\tp\t0.1s",
		"q.go:1: nonsense",
		"FAIL\tq [build failed]",
		"?   \tr\t[no test files]",
		"ok  \ts\t0.1s",
		"goleak: found unexpected goroutines",
		"FAIL\tt\t0.1s",
		"go: a message",
		"",
	}, "\n")
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	out.Reset()
	if err := run([]string{"-total", record}, nil, &out); err != nil {
		t.Fatal(err)
	}
	// Failed are TestBad and the packages q and t.
	if got, want := out.String(), "1 passed, 3 failed, 1 skipped\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTotalOverRuns(t *testing.T) {
	t.Parallel()
	record := filepath.Join(t.TempDir(), "results")
	for _, action := range []string{"pass", "fail", "pass", "skip"} {
		in := `{"Action":"` + action + `","Package":"p","Test":"TestFlaky"}` + "\n" +
			`{"Action":"pass","Package":"p","Test":"TestGood"}` + "\n" +
			`{"Action":"skip","Package":"p","Test":"TestSkipped"}` + "\n"
		if err := run([]string{"-record", record}, strings.NewReader(in), &strings.Builder{}); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := run([]string{"-total", record}, nil, &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "1 passed, 1 failed, 1 skipped\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
