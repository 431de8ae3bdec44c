package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// verdict is what became of a mutant.
type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "SURVIVED" // the tests pass: they guard nothing here
	stale    verdict = "STALE"    // the source has moved on; the list has not
	broken   verdict = "BROKEN"   // does not build, or the tests do not run
)

// outcome is a verdict and what to say about it.
type outcome struct {
	verdict verdict
	note    string
}

// report is a line about the mutant, and more if it was not killed.
func (o outcome) report(m mutant) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%-8s  %s (%s)\n", o.verdict, m.name, m.file)
	if o.verdict == killed {
		return text.String()
	}
	more := fmt.Sprintf("guards: %s\ngo test %s\n%s", m.why, strings.Join(m.test, " "), o.note)
	for line := range strings.Lines(more) {
		text.WriteString("          " + strings.TrimRight(line, "\n") + "\n")
	}
	return text.String()
}

// buildTime is what a test run may take beyond the time of its tests.
const buildTime = 5 * time.Minute

type runner struct {
	dir     string // the module
	tmp     string // for overlays
	timeout time.Duration
	workers int
	out     io.Writer
}

// run tries all mutants and prints one line for each, in the list's order.
func (r *runner) run(ctx context.Context, mutants []mutant) error {
	start := time.Now()
	clean := r.cleanRuns(ctx, mutants)
	outcomes := make([]chan outcome, len(mutants))
	for i := range outcomes {
		outcomes[i] = make(chan outcome, 1)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, r.workers)
	wg.Go(func() {
		for i, m := range mutants {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				outcomes[i] <- r.try(ctx, i, m, clean[command(m)])
			})
		}
	})
	count := make(map[verdict]int)
	for i, m := range mutants {
		o := <-outcomes[i]
		count[o.verdict]++
		io.WriteString(r.out, o.report(m))
	}
	io.WriteString(r.out, fmt.Sprintf("%d mutants: %d killed, %d survived, %d stale, %d broken, in %v\n", len(mutants),
		count[killed], count[survived], count[stale], count[broken], time.Since(start).Round(time.Second)))
	if count[killed] < len(mutants) {
		return errors.New("not every mutant was killed")
	}
	return ctx.Err()
}

// command is what two mutants have in common if they run the same tests.
func command(m mutant) string { return strings.Join(m.test, "\x00") }

// cleanRuns runs each distinct test command on the source as it is. The errors
// are nil where the tests pass.
func (r *runner) cleanRuns(ctx context.Context, mutants []mutant) map[string]error {
	clean := make(map[string]error)
	for _, m := range mutants {
		if _, ok := clean[command(m)]; ok {
			continue
		}
		res := r.goTest(ctx, m.test)
		var err error
		switch {
		case res.err != nil:
			err = res.err
		case res.failed:
			err = fmt.Errorf("the tests fail without the mutant\n%s", res.tail())
		case res.passes == 0:
			err = errors.New("no test runs")
		}
		clean[command(m)] = err
	}
	return clean
}

// try applies one mutant and runs its tests. clean is what they did without it.
func (r *runner) try(ctx context.Context, i int, m mutant, clean error) outcome {
	if clean != nil {
		return outcome{broken, clean.Error()}
	}
	original := filepath.Join(r.dir, filepath.FromSlash(m.file))
	src, err := os.ReadFile(original)
	if err != nil {
		return outcome{stale, err.Error()}
	}
	mutated, err := m.apply(string(src))
	if err != nil {
		return outcome{stale, err.Error()}
	}
	overlay, err := r.overlay(i, original, mutated)
	if err != nil {
		return outcome{broken, err.Error()}
	}
	res := r.goTest(ctx, append([]string{"-count=1", "-overlay=" + overlay}, m.test...))
	switch {
	case res.err != nil:
		return outcome{broken, res.err.Error()}
	case !res.failed:
		return outcome{verdict: survived}
	}
	return outcome{verdict: killed}
}

// overlay writes the mutated file and the overlay that puts it in place of the
// original, and returns the overlay's name.
func (r *runner) overlay(i int, original, mutated string) (string, error) {
	base := filepath.Join(r.tmp, strconv.Itoa(i))
	if err := os.WriteFile(base+".go", []byte(mutated), 0o600); err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {original: base + ".go"}})
	if err != nil {
		return "", err
	}
	return base + ".json", os.WriteFile(base+".json", b, 0o600)
}

// result is what go test said.
type result struct {
	err    error // it did not come to running the tests
	failed bool
	passes int // tests that passed
	output []string
}

// tail returns the end of the tests' output.
func (r result) tail() string {
	const lines = 30
	return strings.Join(r.output[max(0, len(r.output)-lines):], "")
}

// event is a line of go test -json.
type event struct {
	Action      string
	Test        string
	Output      string
	FailedBuild string
}

// goTest runs go test. Tests that hang are ended by go test itself and have
// failed. Vet is off: it would refuse code that is odd on purpose.
func (r *runner) goTest(ctx context.Context, args []string) result {
	ctx, cancel := context.WithTimeout(ctx, r.timeout+buildTime)
	defer cancel()
	args = slices.Concat([]string{"test", "-json", "-vet=off", "-timeout=" + r.timeout.String()}, args)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	exit := cmd.Run()
	res := read(&stdout)
	_, exited := errors.AsType[*exec.ExitError](exit)
	switch {
	case res.err != nil:
	case ctx.Err() != nil:
		res.err = ctx.Err()
	case exit != nil && (!exited || !res.failed):
		res.err = fmt.Errorf("go test: %w\n%s%s", exit, stderr.String(), res.tail())
	}
	return res
}

// read makes a result of go test's events.
func read(events io.Reader) result {
	var res result
	built := true
	dec := json.NewDecoder(events)
	for {
		var e event
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			res.err = fmt.Errorf("output of go test: %w", err)
			return res
		}
		switch e.Action {
		case "pass":
			if e.Test != "" {
				res.passes++
			}
		case "fail":
			res.failed = true
			built = built && e.FailedBuild == ""
		case "build-fail":
			built = false
		}
		if e.Output != "" {
			res.output = append(res.output, e.Output)
		}
	}
	if !built {
		res.err = fmt.Errorf("does not build\n%s", res.tail())
	}
	return res
}
