// Command baton routes OpenAI API requests to fleets of vLLM servers, with
// prefill and decode on different ones. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// version is set by release builds.
var version = "dev"

// command is one word after baton.
type command struct {
	name, about string
	run         func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

func commands() []command {
	return []command{
		{"serve", "route requests to workers", runServe},
		{"demo", "start a router and simulated engines, and stream one answer", runDemo},
		{"sim", "start one simulated engine", runSim},
		{"version", "print the version", runVersion},
		{vllmRouter, "serve with vllm-router's default policy; also what baton does under that name", runVLLMRouter},
	}
}

func main() {
	// net/http has a few lines for the global logger that quote what a worker
	// sent. What matters of them is in our own log.
	log.SetOutput(io.Discard)
	args := os.Args[1:]
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == vllmRouter {
		args = append([]string{vllmRouter}, args...)
	}
	os.Exit(baton(args, os.Stdout, os.Stderr))
}

// baton returns the exit code: 0, 1 for a failure and 2 for wrong usage.
func baton(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		usage(stdout)
		return 0
	}
	for _, c := range commands() {
		if c.name != args[0] {
			continue
		}
		err := c.run(context.Background(), args[1:], stdout, stderr)
		switch {
		case err == nil || errors.Is(err, pflag.ErrHelp):
			return 0
		case errors.As(err, new(usageError)):
			fmt.Fprintf(stderr, "baton %s: %v\n", c.name, err)
			return 2
		default:
			fmt.Fprintf(stderr, "baton %s: %v\n", c.name, err)
			return 1
		}
	}
	fmt.Fprintf(stderr, "baton: unknown command %q\n\n", args[0])
	usage(stderr)
	return 2
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: baton COMMAND [flags]")
	fmt.Fprintln(w)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-12s %s\n", c.name, c.about)
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "baton COMMAND --help lists the flags.")
}

func runVersion(_ context.Context, _ []string, stdout, _ io.Writer) error {
	words := []string{"baton", version}
	if info, ok := debug.ReadBuildInfo(); ok {
		words = append(words, info.GoVersion)
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				words = append(words, s.Value)
			}
		}
	}
	_, err := fmt.Fprintln(stdout, strings.Join(words, " "))
	return err
}
