//go:build e2e

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// midStream starts a stream that stops after its first events until open is
// called.
func (f *fleet) midStream(t *testing.T, q question) (s *stream, open func()) {
	t.Helper()
	at := point("decode", "chunk:4")
	at.Path = q.api.path
	open = f.gate(decode, at)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s = f.client.open(f.client.request(ctx, q.api.path, q.body()))
	s.readEvents(t, 4)
	awaitGate(t, f.decode, "kill", 1)
	return s, open
}

// listens returns nil if the router accepts connections.
func (r *router) listens() error {
	conn, err := net.DialTimeout("tcp", r.addr, patience)
	if err == nil {
		conn.Close()
	}
	return err
}

// refuses returns nil if the router's port is closed.
func (r *router) refuses() error {
	switch err := r.listens(); {
	case err == nil:
		return errors.New("it accepts connections")
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return nil
}

var drained = question{api: chat, prompt: "Let me finish.", tokens: 12, stream: true}

// TestDrain stops a router in the middle of a stream.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			// At a terminal no load balancer is waited for.
			f := newFleet(t, fleetConfig{prefill: 1, decode: 1, router: []string{"--drain-delay", "3s"}})
			s, open := f.midStream(t, drained)
			idle := dial(t, f.addr) // keeps its connection, and does not delay the end
			if _, err := io.WriteString(idle, "GET /liveness HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if a, err := idle.read(); err != nil || a.status != http.StatusOK {
				t.Fatalf("%v: %v", err, a)
			}
			before := time.Now()
			f.signal(signal)
			if signal == syscall.SIGTERM {
				checkDelay(t, f)
			}
			await(t, patience, "new connections refused", f.refuses)
			if waited := time.Since(before); (signal == syscall.SIGTERM) != (waited >= 3*time.Second) {
				t.Errorf("new connections are refused after %s", waited)
			}
			if w := f.look(f.decode[0]); w.Load != 1 {
				t.Errorf("while the stream goes on: %+v", w)
			}
			open()
			if err := drained.check(s.finish()); err != nil {
				t.Error(err)
			}
			if code, err := f.exitCode(patience); err != nil || code != 0 {
				t.Errorf("exit code %d, want 0; %v", code, err)
			}
			if err := idle.awaitEnd(); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkDelay wants the router to say that it is not ready, and to serve all the
// same.
func checkDelay(t *testing.T, f *fleet) {
	t.Helper()
	await(t, patience, "not ready", func() error {
		for _, path := range []string{"/readiness", "/health"} {
			if a := f.client.get(path); a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), "draining") {
				return fmt.Errorf("%s: %v", path, a)
			}
		}
		return nil
	})
	if a := f.client.get("/liveness"); a.status != http.StatusOK {
		t.Errorf("liveness: %v", a)
	}
	if err := f.listens(); err != nil {
		t.Errorf("during --drain-delay: %v", err)
	}
	f.ask(question{api: completions, prompt: "Am I too late?", tokens: 2})
}

// TestDrainTimeout wants an end, and a broken stream, if requests do not finish.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1, router: []string{"--drain-timeout", "500ms"}})
	s, open := f.midStream(t, drained)
	defer open()
	f.signal(syscall.SIGTERM)
	if code, err := f.exitCode(patience); err != nil || code != 1 {
		t.Errorf("exit code %d, want 1; %v", code, err)
	}
	checkCut(t, s.finish())
	if !strings.Contains(f.out.tail(), "--drain-timeout") {
		t.Error("the router does not say why it ended")
	}
	await(t, patience, "the engines' requests end", f.quiet)
}

// TestSecondSignal wants an end at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	for _, delay := range []string{"0s", "1h"} {
		t.Run("drain_delay="+delay, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, fleetConfig{prefill: 1, decode: 1, router: []string{"--drain-timeout", "1h", "--drain-delay", delay}})
			s, open := f.midStream(t, drained)
			defer open()
			f.signal(syscall.SIGTERM)
			if _, err := f.awaitLine(patience, `"msg":"draining"`); err != nil {
				t.Fatal(err)
			}
			before := time.Now()
			f.signal(syscall.SIGTERM)
			if code, err := f.exitCode(patience); err != nil || code != 1 {
				t.Errorf("exit code %d, want 1; %v", code, err)
			}
			if took := time.Since(before); took > 2*time.Second {
				t.Errorf("the end took %s", took)
			}
			checkCut(t, s.finish())
			await(t, patience, "the engines' requests end", f.quiet)
		})
	}
}

func checkCut(t *testing.T, a *answer) {
	t.Helper()
	if a.err == nil || errors.Is(a.err, io.EOF) {
		t.Errorf("the stream looks complete: %v", a)
	}
	for _, ev := range a.events {
		if ev.data == "[DONE]" {
			t.Errorf("a stream that was cut off ends with [DONE]: %v", a)
		}
	}
}
