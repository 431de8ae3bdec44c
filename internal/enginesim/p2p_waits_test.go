package enginesim_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestP2PWrongEngine sends decode legs to another engine than the id names.
func TestP2PWrongEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := p2pPair(w, nil)
		other := w.start(enginesim.Config{Role: "decode", Connector: "p2p", Advertise: "x:8000"})
		w.do(p2pPrefill(1))
		q := p2pDecode(1)
		q.addr = "x:8000"
		ch := w.later(t.Context(), q)
		expect(t, other, `names the decode engine "d:9000", this is "x:9000"`, "without prefill")
		if !other.Stats().Halted {
			t.Error("it goes on")
		}
		if s := d.Stats(); s.P2PUnclaimed != 1 {
			t.Errorf("%+v", s)
		}
		q = p2pDecode(1) // a discard
		q.body = strings.Replace(q.body, `"max_tokens":12`, `"max_tokens":1`, 1)
		if a := w.do(q); a.status != 200 || d.Stats().P2PUnclaimed != 0 {
			t.Errorf("%+v", a)
		}
		clean(t, p, d)
		q = p2pPrefill(2)
		q.id = pairID("y:1", zmqD, 2)
		w.do(q)
		expect(t, p, `names the prefill engine "y:1", this is "p:9000"`)
		other.Revive()
		<-ch
	})
}

// TestP2PUnclaimed checks which decode legs let the tensors go.
func TestP2PUnclaimed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault enginesim.Fault
		body  string // replaces max_tokens
		leave bool
		left  int
	}{
		{name: "never sent", left: 1},
		{name: "refused", body: `"max_tokens":0`, left: 1},
		{name: "busy", fault: enginesim.Fault{Action: "status"}, left: 1},
		{name: "dead", fault: enginesim.Fault{Action: "reset"}, left: 1},
		{name: "whole", body: `"max_tokens":1`},
		{name: "left at its headers", fault: enginesim.Fault{Point: "headers", Action: "gate", Gate: "g"}, leave: true, left: 1},
		{name: "left in mid-stream", fault: enginesim.Fault{Point: "chunk:2", Action: "gate", Gate: "g"}, leave: true},
		{name: "cut", fault: enginesim.Fault{Point: "chunk:2", Action: "cut"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				_, d := p2pPair(w, nil)
				if tt.fault.Action != "" {
					d.Fault(tt.fault)
				}
				w.do(p2pPrefill(1))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				q := p2pDecode(1).streamed()
				if tt.body != "" {
					q.body = strings.Replace(q.body, `"max_tokens":12`, tt.body, 1)
				}
				if tt.name != "never sent" {
					ch := w.later(ctx, q)
					synctest.Wait()
					if tt.leave {
						cancel()
					}
					<-ch
				}
				time.Sleep(time.Hour)
				if s := d.Stats(); s.P2PUnclaimed != tt.left || s.UsedBlocks != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestP2PRefused lets a decode engine have no memory for tensors.
func TestP2PRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := p2pPair(w, nil)
		d.Fault(enginesim.Fault{Path: "/sim/kv/put", Action: "refuse_kv"})
		if a := w.do(p2pPrefill(1)); a.status != 200 {
			t.Errorf("%+v", a)
		}
		if a := w.do(p2pDecode(1)); a.status != 200 || a.text(t) == plainAnswer(w) {
			t.Errorf("the text does not show it: %+v", a)
		}
		clean(t, p, d)
	})
}

func TestP2PWrongPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, d := p2pPair(w, nil)
		q := p2pPrefill(1)
		q.body = strings.Replace(q.body, "fox", "dog", 1)
		w.do(q)
		if a := w.do(p2pDecode(1)); a.status != 200 || a.text(t) == plainAnswer(w) {
			t.Errorf("the text does not show it: %+v", a)
		}
		expect(t, d, "wrong prompt for hand-off")
	})
}

// TestP2PCached checks that decode needs no tensors for a prompt that it has.
func TestP2PCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := p2pPair(w, nil)
		const exact = "exactly 33 bytes are these, in all" // less one: two blocks
		send := func(n int, decode bool) answer {
			q := p2pPrefill(n)
			if decode {
				q = p2pDecode(n)
			}
			q.body = string(object("prompt", exact[:33], "max_tokens", 1))
			return w.do(q)
		}
		send(1, false)
		send(1, true)
		if a := send(2, true); a.status != 200 || cached(t, a) != 32 { // prefill was never asked
			t.Errorf("%+v", a)
		}
		send(3, false)
		if s := d.Stats(); s.P2PUnclaimed != 1 {
			t.Errorf("%+v", s)
		}
		send(3, true)
		if s := d.Stats(); s.P2PUnclaimed != 0 || s.Halted {
			t.Errorf("%+v", s)
		}
		clean(t, p, d)
	})
}

// TestP2PUnreachable checks that prefill stands still until decode can be reached.
func TestP2PUnreachable(t *testing.T) {
	for _, timeout := range []time.Duration{0, 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			p := w.start(enginesim.Config{Role: "prefill", Connector: "p2p", Advertise: addrP, SendTimeout: timeout})
			start := time.Now()
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			ch := w.later(t.Context(), p2pPrefill(1))
			synctest.Wait()
			other := w.later(ctx, p2pPrefill(2))
			time.Sleep(3500 * ms)
			if s := p.Stats(); !s.Halted || s.Running != 1 || s.HandoffsProduced != 0 {
				t.Errorf("%+v", s)
			}
			if a := <-other; a.err == nil {
				t.Errorf("%+v", a)
			}
			time.Sleep(ms)
			if timeout == 0 {
				time.Sleep(time.Minute)
				start = time.Now().Add(-4 * time.Second)
				w.start(enginesim.Config{Role: "decode", Connector: "p2p", Advertise: addrD})
			}
			a := <-ch
			if got := time.Since(start).Round(time.Second); a.status != 200 || got != 4*time.Second {
				t.Errorf("after %v: %+v", got, a)
			}
			synctest.Wait()
			if s := p.Stats(); s.Halted || s.Running != 0 || s.UsedBlocks != 0 || (s.HandoffsProduced == 1) != (timeout == 0) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestP2PNotSent scripts a prefill leg that answers and sends nothing.
func TestP2PNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, d := p2pPair(w, nil)
		p.Fault(enginesim.Fault{Action: "null_kv"})
		if a := w.do(p2pPrefill(1)); a.status != 200 || d.Stats().P2PUnclaimed != 0 {
			t.Errorf("%+v", a)
		}
	})
}

// TestP2PDeathOfConnections checks that a dead engine closes those that wait for a
// request, or for the rest of one.
func TestP2PDeathOfConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p, _ := p2pPair(w, nil)
		var ends []io.Reader
		for _, sent := range []string{
			"", "GET /health HTTP/1.1\r\nHost: p:8000\r\n\r\n", "GET /health HTTP/1.1\r\nHost:",
			"POST /v1/completions HTTP/1.1\r\nHost: p:8000\r\nContent-Length: 9\r\n\r\n{",
		} {
			c, err := w.net.dial(t.Context(), "tcp", addrP)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(c)
			if strings.HasSuffix(sent, "\r\n\r\n") && sent[0] == 'G' {
				if _, err := http.ReadResponse(r, nil); err != nil {
					t.Error(err)
				}
			}
			ends = append(ends, r)
		}
		synctest.Wait()
		if n := p.Stats().Connections; n != len(ends) {
			t.Errorf("%d connections", n)
		}
		w.do(p2pPrefill(1).named("x"))
		for i, r := range ends {
			if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
				t.Errorf("%d: %q %v", i, b, err)
			}
		}
		synctest.Wait()
		if s := p.Stats(); s.Connections != 0 || !s.Dead {
			t.Errorf("%+v", s)
		}
	})
}
