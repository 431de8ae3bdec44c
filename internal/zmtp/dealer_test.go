package zmtp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/zmtp"
)

// TestQueueWhileAway: what was sent while there was no router arrives in order when there is one.
func TestQueueWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		d := zmtp.NewDealer("tcp://router:1", zmtp.DealerConfig{Dial: n.dial, Queue: 3})
		for i := range 3 {
			if err := d.Send(fmt.Append(nil, i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Send([]byte("too many")); !errors.Is(err, zmtp.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		if err := d.Send(); err == nil {
			t.Error("a message without frames: got no error")
		}
		stop := runs(t, d.Run)
		time.Sleep(10 * time.Second)

		_, rec, stopRouter := serve(t, n.listen(), zmtp.Config{})
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff([]string{"0", "1", "2"}, rec.got()); diff != "" {
			t.Error(diff)
		}
		stopRouter()
		d.Send([]byte("a"), nil, []byte("b"))
		_, rec, _ = serve(t, n.listen(), zmtp.Config{})
		time.Sleep(2 * time.Second)
		if diff := cmp.Diff([]string{"a||b"}, rec.got()); diff != "" {
			t.Error(diff)
		}
		stop()
		if err := d.Send([]byte("x")); !errors.Is(err, zmtp.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	})
}

func TestDefaultQueue(t *testing.T) {
	d := zmtp.NewDealer("tcp://router:1", zmtp.DealerConfig{})
	for i := range 1000 {
		if err := d.Send([]byte("x")); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if err := d.Send([]byte("x")); !errors.Is(err, zmtp.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}

// TestReconnectTimes: 100 ms, doubling to 2 s, anew after a handshake that succeeded.
func TestReconnectTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		start := time.Now()
		var at []time.Duration
		stop := runs(t, zmtp.NewDealer("router:1", zmtp.DealerConfig{Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			if addr != "router:1" {
				t.Errorf("got the address %q", addr)
			}
			at = append(at, time.Since(start).Round(time.Millisecond))
			return n.dial(ctx, addr)
		}}).Run)
		time.Sleep(8 * time.Second)
		_, _, stopRouter := serve(t, n.listen(), zmtp.Config{})
		time.Sleep(2 * time.Second)
		stopRouter() // at 10 s
		time.Sleep(time.Second)
		stop()
		const ms = time.Millisecond
		want := []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 3100 * ms, 5100 * ms, 7100 * ms, 9100 * ms, 10100 * ms, 10300 * ms, 10700 * ms}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDealerHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		var log []string
		d := zmtp.NewDealer("tcp://router:1", zmtp.DealerConfig{
			Dial:      n.dial,
			Identity:  "10.0.0.2:21001",
			Connected: func(p zmtp.Peer) { log = append(log, fmt.Sprint("connected ", p.Serial)) },
			Lost:      func(err error) { log = append(log, "lost: "+err.Error()) },
			Handle: func(m zmtp.Message) {
				log = append(log, fmt.Sprintf("%d: %s", m.Peer.Serial, m.Frames[0]))
			},
		})
		stop := runs(t, d.Run)
		time.Sleep(50 * time.Millisecond) // one attempt

		l := n.listen()
		accept := func(say string) {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, c)
			c.Write([]byte(say))
			time.Sleep(time.Millisecond)
			c.Close()
		}
		accept(greeting(1) + ready("PUB", ""))
		accept(greeting(1) + ready("ROUTER", "") + "\x00\x05reply")
		accept(greeting(1) + ready("ROUTER", "") + "\x02\x80\x00\x00\x00\x00\x00\x00\x00")
		synctest.Wait()
		stop()
		want := []string{
			"lost: refused",
			"lost: zmtp: socket_type: peer is no match for DEALER",
			"connected 1",
			"1: reply",
			"lost: EOF",
			"connected 2",
			"lost: zmtp: frame_size: frame too large",
		}
		if diff := cmp.Diff(want, log); diff != "" {
			t.Error(diff)
		}
	})
}

// TestBothWays: each side answers the other's messages, identity and all.
func TestBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		var r *zmtp.Router
		r, _, _ = serve(t, n.listen(), zmtp.Config{Handle: func(m zmtp.Message) {
			if m.Peer.Identity != "me" {
				t.Errorf("got the identity %q", m.Peer.Identity)
			}
			if err := r.Send(m.Peer, m.Frames...); err != nil {
				t.Error(err)
			}
		}})
		var got []string
		d := zmtp.NewDealer("tcp://router:1", zmtp.DealerConfig{Dial: n.dial, Identity: "me", Handle: func(m zmtp.Message) {
			got = append(got, string(m.Frames[1]))
		}})
		runs(t, d.Run)
		var want []string
		for i := range 500 {
			want = append(want, strconv.Itoa(i))
			if err := d.Send(nil, []byte(want[i])); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestCutInMessage: a message the router cannot have whole is sent again on the next connection, and only that.
func TestCutInMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		l := n.listen()
		d := zmtp.NewDealer("tcp://router:1", zmtp.DealerConfig{Dial: n.dial})
		runs(t, d.Run)
		d.Send([]byte("first"))
		d.Send([]byte(strings.Repeat("x", 200)))
		d.Send([]byte("third"))
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go c.Write([]byte(greeting(1) + ready("ROUTER", "")))
		want := 64 + len(ready("DEALER", "")) + len("\x00\x05first") + 100
		for b := make([]byte, 50); want > 0; {
			m, err := c.Read(b[:min(want, 50)])
			if err != nil {
				t.Fatal(err)
			}
			want -= m
		}
		c.Close()
		_, rec, _ := serve(t, n.listen(), zmtp.Config{})
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{strings.Repeat("x", 200), "third"}, rec.got()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDealerEnds(t *testing.T) {
	// Each case stops the dealer in another state; runs checks that Run returns nil.
	tests := []struct {
		name   string
		accept bool
		say    string
	}{
		{"refused", false, ""},
		{"greeting", true, ""},
		{"READY", true, greeting(1)},
		{"connected", true, greeting(1) + ready("ROUTER", "")},
		{"in a message", true, greeting(1) + ready("ROUTER", "") + "\x01\x05hal"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n network
				stop := runs(t, zmtp.NewDealer("router:1", zmtp.DealerConfig{Dial: n.dial}).Run)
				if tt.accept {
					c, err := n.listen().Accept()
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					go io.Copy(io.Discard, c)
					c.Write([]byte(tt.say))
				}
				synctest.Wait()
				start := time.Now()
				stop()
				if got := time.Since(start); got != 0 {
					t.Errorf("took %v", got)
				}
			})
		})
	}
}

// TestDialTimeout: a dial that hangs ends, and is tried again.
func TestDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		n.listen() // nobody accepts
		start := time.Now()
		lost := make(chan error, 100)
		stop := runs(t, zmtp.NewDealer("router:1", zmtp.DealerConfig{Dial: n.dial, Lost: func(err error) { lost <- err }}).Run)
		if err := <-lost; !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("got %v after %v, want a deadline after 5s", err, time.Since(start))
		}
		stop()
	})
}

func TestDealerErrors(t *testing.T) {
	for _, d := range []*zmtp.Dealer{
		zmtp.NewDealer("ipc:///tmp/x", zmtp.DealerConfig{}),
		zmtp.NewDealer("*:1", zmtp.DealerConfig{}),
		zmtp.NewDealer("router:1", zmtp.DealerConfig{Identity: strings.Repeat("x", 256)}),
		zmtp.NewDealer("router:1", zmtp.DealerConfig{Queue: -1}),
		zmtp.NewDealer("router:1", zmtp.DealerConfig{Limits: zmtp.Limits{MaxFrame: -1}}),
	} {
		if err := d.Run(t.Context()); err == nil {
			t.Errorf("got no error")
		}
		if err := d.Run(t.Context()); err == nil {
			t.Errorf("second Run: got no error")
		}
		if err := d.Send([]byte("x")); !errors.Is(err, zmtp.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
}
