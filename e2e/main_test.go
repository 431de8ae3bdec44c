//go:build e2e

// Package e2e_test runs the real baton binary: routers and simulated engines are
// processes of their own on loopback, and are stopped, killed and left by their
// clients on purpose. It looks at them only from outside: through what clients
// get, the admin API, /metrics, the log, and the engines' /sim/ routes.
//
//	go test -tags e2e -count=1 ./e2e/...          all of it
//	go test -tags e2e -count=1 -short ./e2e/...   with shorter storms
//	E2E_RACE=1 go test -tags e2e ...              with the race detector in the binary
//	E2E_SEED=7 go test -tags e2e ...              with other random moments
//
// Every wait polls a condition and has a deadline.
package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the baton that all tests run, built once.
var binary string

// raced reports whether it has the race detector, which takes time and memory.
func raced() bool { return os.Getenv("E2E_RACE") != "" }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "baton-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "baton")
	args := []string{"build", "-o", binary}
	if raced() {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/baton-llm/baton/cmd/baton")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
