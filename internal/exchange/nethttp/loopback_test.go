package nethttp_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
)

// loopback runs part as a worker on a real socket and returns a carrier to it.
func loopback(t *testing.T, part func(p *peer)) (*nethttp.Carrier, *script) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := playOn(t, ln, part)
	return carrierWith(t, "http://"+ln.Addr().String(), nethttp.Config{}), s
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	c, w := loopback(t, func(p *peer) {
		for p.request() {
			p.say(okay)
		}
	})
	for range 3 {
		if g := send(t, c, post("/x"), strings.Repeat("x", 1<<20)); g.err != nil || g.body != "ok" {
			t.Errorf("%+v", g)
		}
	}
	if w.connections() != 1 || len(w.seen()) != 3 {
		t.Errorf("%d requests over %d connections", len(w.seen()), w.connections())
	}
}

func TestLoopbackRefused(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	c := carrierWith(t, "http://"+ln.Addr().String(), nethttp.Config{})
	g := send(t, c, post("/x"), "{}")
	if sent(g.err) != exchange.Nothing || !errors.Is(g.err, syscall.ECONNREFUSED) {
		t.Error(g.err)
	}
}

func TestLoopbackResent(t *testing.T) {
	t.Parallel()
	c, w := loopback(t, func(p *peer) {
		if !p.request() {
			return
		}
		p.say(okay)
		if p.request() {
			p.reset()
		}
	})
	for range 2 {
		if g := send(t, c, post("/x"), "{}"); g.err != nil {
			t.Error(g.err)
		}
	}
	if w.connections() != 2 || len(w.seen()) != 3 {
		t.Errorf("%d requests over %d connections", len(w.seen()), w.connections())
	}
}

func TestLoopbackResetWithinBody(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	c, _ := loopback(t, func(p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		<-read
		p.reset()
	})
	answer, err := c.Send(t.Context(), post("/x"), []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if b := make([]byte, 3); !readFull(answer.Body, b, "abc") {
		t.Errorf("read %q", b)
	}
	close(read)
	if _, err := answer.Body.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

func TestLoopbackContextEnds(t *testing.T) {
	t.Parallel()
	arrived, left := make(chan struct{}), make(chan struct{})
	c, _ := loopback(t, func(p *peer) {
		p.request()
		close(arrived)
		p.wait()
		close(left)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if g := sendContext(ctx, c, post("/x"), "{}"); !errors.Is(g.err, context.Canceled) {
		t.Error(g.err)
	}
	select {
	case <-left:
	case <-time.NewTimer(5 * time.Second).C:
		t.Error("the worker's connection is open")
	}
}
