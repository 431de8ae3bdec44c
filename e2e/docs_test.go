//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDocs runs the commands of the documentation: fenced blocks whose info string
// is "sh run". Those of one section (a heading of one or two #) are run in one
// shell, in order; a command that fails ends it. A block "text out" that follows
// is what the commands print, where "..." stands for anything.
//
// Ports in the text are replaced by free ones, and the router's default ports
// with them.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, file := range append(files, "../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sections(string(text)) {
			ran++
			t.Run(filepath.Base(file)+"/"+s.name, func(t *testing.T) { s.run(t) })
		}
	}
	if ran == 0 {
		t.Error("no block to run")
	}
}

// section is a part of a document with commands to run.
type section struct {
	name   string
	blocks []block
}

type block struct {
	line      int
	commands  string
	output    string // "" if none is shown
	hasOutput bool
}

// sections returns those that have commands to run.
func sections(text string) []section {
	var all []section
	name, fence := "", ""
	var body strings.Builder
	start := 0
	for i, line := range strings.Split(text, "\n") {
		info, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && fence == "":
			fence, start = "```"+info, i+1
			body.Reset()
		case isFence:
			at := len(all) - 1
			switch {
			case fence == "```sh run" && (at < 0 || all[at].name != name):
				all = append(all, section{name, []block{{line: start, commands: body.String()}}})
			case fence == "```sh run":
				all[at].blocks = append(all[at].blocks, block{line: start, commands: body.String()})
			case fence == "```text out":
				last := &all[at].blocks[len(all[at].blocks)-1]
				last.output, last.hasOutput = body.String(), true
			}
			fence = ""
		case fence != "":
			body.WriteString(line + "\n")
		case strings.HasPrefix(line, "# "), strings.HasPrefix(line, "## "):
			name = strings.TrimLeft(line, "# ")
		}
	}
	return all
}

// ports are those that the documentation uses.
var ports = regexp.MustCompile(`\b(8\d\d\d|29000|29001|30000|30001)\b`)

// blockMark goes before the output of each block.
const blockMark = "=== block"

func (s section) run(t *testing.T) {
	free := map[string]string{}
	port := func(name string) string {
		if free[name] == "" {
			free[name] = freePort(t)
		}
		return free[name]
	}
	defaults := fmt.Sprintf("baton serve --port %s --admin-port %s --prometheus-port %s", port("30000"), port("29001"), port("29000"))
	var script strings.Builder
	script.WriteString("set -eo pipefail\n")
	for _, b := range s.blocks {
		commands := ports.ReplaceAllStringFunc(b.commands, port)
		fmt.Fprintf(&script, "echo '%s'\n%s\n", blockMark, strings.ReplaceAll(commands, "baton serve", defaults))
	}
	out := runScript(t, script.String())
	for name, p := range free {
		out = strings.ReplaceAll(out, p, name)
	}
	printed := strings.Split(out, blockMark+"\n")[1:]
	if len(printed) != len(s.blocks) {
		t.Errorf("only %d of %d blocks were run:\n%s", len(printed), len(s.blocks), out)
	}
	for i, b := range s.blocks[:len(printed)] {
		if !b.hasOutput {
			continue
		}
		want := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(b.output)), `\.\.\.`, `.*?`)
		if got := strings.TrimSpace(printed[i]); !regexp.MustCompile(`(?s)^` + want + `$`).MatchString(got) {
			t.Errorf("line %d prints something else, -documented +printed:\n%s", b.line, cmp.Diff(strings.TrimSpace(b.output), got))
		}
	}
}

// runScript runs a script of bash and returns what it printed. What it leaves in
// the background is stopped.
func runScript(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	stdout, err := os.Create(filepath.Join(dir, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, stdout, stderr
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	err = cmd.Run()
	_ = kill() // nothing may be left
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err != nil {
		t.Errorf("%v\n%s\nprinted\n%s%s", err, script, read("stdout"), read("stderr"))
	}
	return read("stdout")
}
