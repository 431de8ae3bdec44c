// Command testsum reads what go test -json writes and prints it as a person
// wants it: go test's line for each package, and the output of what failed. With
// -record it also notes the result of each test in a file, to which any number
// of runs may add; with -total it only prints the sums over such a file:
//
//	N passed, N failed, N skipped
//
// A test counts once, however often it ran: as failed if it ever failed, as
// skipped if it never did anything else. Whether tests passed is go test's exit
// status to tell, not this command's.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("testsum", flag.ContinueOnError)
	record := flags.String("record", "", "file to append the results to")
	total := flags.String("total", "", "print the sums over this file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *total != "" {
		return printTotal(*total, out)
	}
	results, err := read(in, out)
	if *record == "" {
		return err
	}
	return errors.Join(err, appendTo(*record, results))
}

// event is a line of go test -json.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	FailedBuild string
}

// test names a test. A package that fails for no test's fault counts as a test
// without a name.
type test struct{ pkg, name string }

// read prints the events and returns a line for each result.
func read(in io.Reader, out io.Writer) ([]string, error) {
	var results []string
	held := make(map[test][]string) // output of tests that are not over
	failures := make(map[string]int)
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				io.WriteString(out, line) // a message of go's own
			} else if status := e.print(out, held); status != "" {
				if e.Test == "" && (status != "fail" || failures[e.Package] > 0) {
					continue
				}
				if status == "fail" {
					failures[e.Package]++
				}
				results = append(results, strings.Join([]string{status, e.Package, e.Test}, "\t"))
			}
		}
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err != nil {
			return results, err
		}
	}
}

// print prints what is worth it and returns pass, fail or skip if a test or a
// package is over.
func (e event) print(out io.Writer, held map[test][]string) string {
	key := test{e.Package, e.Test}
	switch e.Action {
	case "output":
		if e.Test == "" && (strings.HasPrefix(e.Output, "ok  \t") || strings.HasPrefix(e.Output, "?   \t")) {
			io.WriteString(out, e.Output)
			return ""
		}
		held[key] = append(held[key], e.Output)
	case "build-output":
		io.WriteString(out, e.Output)
	case "pass", "fail", "skip":
		if e.Action == "fail" {
			for _, line := range held[key] {
				io.WriteString(out, line)
			}
		}
		delete(held, key)
		return e.Action
	}
	return ""
}

func appendTo(name string, results []string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, r := range results {
		text.WriteString(r + "\n")
	}
	_, err = f.WriteString(text.String())
	return errors.Join(err, f.Close())
}

func printTotal(name string, out io.Writer) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	rank := map[string]int{"skip": 1, "pass": 2, "fail": 3}
	status := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		s, key, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok || rank[s] == 0 {
			return fmt.Errorf("%s: bad line %q", name, line)
		}
		if rank[s] > rank[status[key]] {
			status[key] = s
		}
	}
	count := make(map[string]int)
	for _, s := range status {
		count[s]++
	}
	_, err = io.WriteString(out, fmt.Sprintf("%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"]))
	return err
}
