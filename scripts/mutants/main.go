// Command mutants proves that tests guard what they say they guard. It breaks
// the source in each way that a list describes, runs the tests named there, and
// wants them to fail.
//
// Nothing is written to the source tree: the broken file is laid over the
// original with go test -overlay. Exit status: 0 if every mutant was killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	root := flags.String("root", ".", "directory of the module; file names in the list start there")
	list := flags.String("list", filepath.Join("testdata", "mutants.txt"), "the list, below the root")
	only := flags.String("run", "", "only the mutants whose name matches this regular expression")
	timeout := flags.Duration("timeout", 2*time.Minute, "time for the tests of one mutant")
	workers := flags.Int("j", max(1, runtime.NumCPU()/2), "mutants tried at the same time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	src, err := os.ReadFile(filepath.Join(*root, *list))
	if err != nil {
		return err
	}
	all, err := parse(string(src))
	if err != nil {
		return fmt.Errorf("%s: %w", *list, err)
	}
	var mutants []mutant
	for _, m := range all {
		if pattern.MatchString(m.name) {
			mutants = append(mutants, m)
		}
	}
	if len(mutants) == 0 {
		return fmt.Errorf("%s: no mutants to try", *list)
	}
	dir, err := filepath.Abs(*root)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	r := &runner{dir: dir, tmp: tmp, timeout: *timeout, workers: max(1, *workers), out: out}
	return errors.Join(r.run(ctx, mutants), os.RemoveAll(tmp))
}
