//go:build e2e

package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything may take that should take a moment. The machine
// may be busy with other things.
const patience = 20 * time.Second

// await polls cond until it returns nil, and fails the test if that takes longer
// than within.
func await(t testing.TB, within time.Duration, what string, cond func() error) {
	t.Helper()
	if err := poll(within, cond); err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, err)
	}
}

// poll returns nil as soon as cond does, and cond's last error after the time.
func poll(within time.Duration, cond func() error) error {
	deadline := time.Now().Add(within)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-tick.C
	}
}

// process is one running baton.
type process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	began  time.Time // no request is older
	out    *output
	exited chan struct{} // closed when the process has been waited for
}

// start runs baton with the arguments. The process is killed when the test ends,
// and its output shown if the test has failed by then.
func start(t testing.TB, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, began: time.Now(), out: &output{}, exited: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = attributes()
	p.cmd.Env = append(os.Environ(), "GORACE=halt_on_error=0")
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // the state says it all
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		for _, line := range p.out.alarming() {
			t.Errorf("%s: %s", name, line)
		}
		if t.Failed() {
			fmt.Fprintf(t.Output(), "--- output of %s (pid %d), the end of it\n%s", name, p.cmd.Process.Pid, p.out.tail())
		}
	})
	return p
}

// kill ends the process as kill -9 does, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.exited
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("%s: %v: %v", p.name, s, err)
	}
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// exitCode waits for the end of the process.
func (p *process) exitCode(within time.Duration) (int, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		return 0, fmt.Errorf("%s: still running after %s", p.name, within)
	}
	state := p.cmd.ProcessState
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 0, fmt.Errorf("%s: ended by %v", p.name, s.Signal())
	}
	return state.ExitCode(), nil
}

// awaitLine waits for a line of output that has all the parts, and returns it.
func (p *process) awaitLine(within time.Duration, parts ...string) (string, error) {
	var found string
	err := poll(within, func() error {
		ended := !p.running()
		for line := range strings.Lines(p.out.tail()) {
			if containsAll(line, parts) {
				found = line
				return nil
			}
		}
		if ended {
			return nil // no line will come
		}
		return errors.New("no such line")
	})
	if err == nil && found == "" {
		err = fmt.Errorf("it has ended: %s", p.out.tail())
	}
	if err != nil {
		return "", fmt.Errorf("%s: waiting for %q: %w", p.name, parts, err)
	}
	return found, nil
}

func containsAll(s string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

// output keeps the end of what a process wrote, and all that must never be
// in it.
type output struct {
	mu     sync.Mutex
	kept   []byte
	line   []byte // the last one, not complete
	alarms []string
}

var _ io.Writer = (*output)(nil)

const keptOutput = 128 << 10

// alarms are what no process may write, whatever is done to it.
var alarms = []string{"DATA RACE", "panic: ", "fatal error: ", "BUG: ", "level=ERROR", "goroutine "}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p...)
	if len(o.kept) > 2*keptOutput {
		o.kept = append(o.kept[:0], o.kept[len(o.kept)-keptOutput:]...)
	}
	o.line = append(o.line, p...)
	for {
		i := bytes.IndexByte(o.line, '\n')
		if i < 0 {
			return len(p), nil
		}
		o.look(string(o.line[:i]))
		o.line = o.line[i+1:]
	}
}

func (o *output) look(line string) {
	for _, alarm := range alarms {
		if strings.Contains(line, alarm) && len(o.alarms) < 10 {
			o.alarms = append(o.alarms, line)
			return
		}
	}
}

func (o *output) alarming() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.alarms
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.kept)
}

// givenPorts are the ports that freePort has returned: none is returned twice.
var givenPorts sync.Map

// freePort returns a port on loopback that nobody listens on. It is below the
// range from which the kernel gives ports to connections, so that one that was
// used stays free for a restart.
func freePort(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		if _, again := givenPorts.LoadOrStore(port, true); again {
			continue // the process it was for may be about to start again
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = l.Close() // it was only to see
			return port
		}
	}
	t.Fatal("no free port found")
	return ""
}

// startListening starts a baton with a free port in its arguments, and returns
// the address that it says it listens on. Another process may take the port
// first; then another one is tried.
func startListening(t testing.TB, name string, args func(port string) []string, parts ...string) (*process, string) {
	t.Helper()
	for range 5 {
		p := start(t, name, args(freePort(t))...)
		line, err := p.awaitLine(patience, parts...)
		if err == nil {
			return p, line
		}
		if p.running() || !strings.Contains(p.out.tail(), "address already in use") {
			t.Fatal(err)
		}
	}
	t.Fatalf("%s: every port was taken", name)
	return nil, ""
}
