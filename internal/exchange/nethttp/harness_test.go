package nethttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const workerAddr = "worker:8000"

// carrier returns a carrier to base over n. It holds no connection once the
// test has ended.
func carrier(t *testing.T, n *memnet.Network, base string) *nethttp.Carrier {
	t.Helper()
	return carrierWith(t, base, nethttp.Config{Dial: n.DialContext})
}

func carrierWith(t *testing.T, base string, cfg nethttp.Config) *nethttp.Carrier {
	t.Helper()
	c, err := nethttp.New(base, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdle)
	return c
}

func post(target string, fields ...exchange.Field) exchange.Head {
	return exchange.Head{Method: http.MethodPost, Target: target, Fields: fields}
}

// fields makes fields of names and values.
func fields(pairs ...string) exchange.Fields {
	var f exchange.Fields
	for i := 0; i < len(pairs); i += 2 {
		f = append(f, exchange.Field{Name: pairs[i], Value: pairs[i+1]})
	}
	return f
}

// got is an answer read to its end.
type got struct {
	status int
	fields exchange.Fields
	body   string
	err    error // of Send, or of the body
}

func send(t *testing.T, c *nethttp.Carrier, h exchange.Head, body string) got {
	t.Helper()
	return sendContext(t.Context(), c, h, body)
}

func sendContext(ctx context.Context, c *nethttp.Carrier, h exchange.Head, body string) got {
	answer, err := c.Send(ctx, h, []byte(body))
	if err != nil {
		return got{err: err}
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return got{answer.Status, answer.Fields, string(b), err}
}

// sent returns how much of a request an error says was sent, 0 if it does not
// say.
func sent(err error) exchange.Sent {
	e, ok := errors.AsType[*exchange.Error](err)
	if !ok {
		return 0
	}
	return e.Sent
}

// script is a worker that plays a part of a test, connection by connection.
type script struct {
	mu       sync.Mutex
	requests []string // as they came
	conns    int
}

// play runs part on every connection to addr until the test ends. part is told
// the number of its connection, from 1.
func play(t *testing.T, n *memnet.Network, addr string, part func(p *peer)) *script {
	t.Helper()
	ln, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	return playOn(t, ln, part)
}

func playOn(t *testing.T, ln net.Listener, part func(p *peer)) *script {
	t.Helper()
	s := new(script)
	var wg sync.WaitGroup
	var open []net.Conn
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			p := &peer{Conn: conn, s: s}
			p.br = bufio.NewReader(io.TeeReader(conn, &p.raw))
			s.mu.Lock()
			s.conns++
			p.number = s.conns
			open = append(open, conn)
			s.mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				part(p)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		s.mu.Unlock()
		wg.Wait()
	})
	return s
}

func (s *script) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

func (s *script) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// peer is the worker's end of one connection.
type peer struct {
	net.Conn

	s      *script
	number int
	raw    bytes.Buffer
	br     *bufio.Reader
}

// request reads one whole request and notes it. It reports whether there was
// one.
func (p *peer) request() bool {
	p.raw.Reset()
	r, err := http.ReadRequest(p.br)
	if err != nil {
		return false
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return false
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.requests = append(p.s.requests, p.raw.String())
	return true
}

// head reads the head of a request and leaves its body unread.
func (p *peer) head() bool {
	_, err := http.ReadRequest(p.br)
	return err == nil
}

func (p *peer) say(s string) { io.WriteString(p, s) }

// reset ends the connection as an RST does.
func (p *peer) reset() {
	switch c := p.Conn.(type) {
	case *memnet.Conn:
		c.Reset()
	case *net.TCPConn:
		c.SetLinger(0)
		c.Close()
	}
}

// wait reads until the other end closes.
func (p *peer) wait() { io.Copy(io.Discard, p.br) }

const okay = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// serve runs srv as a worker until the test, which has a bubble, ends.
func serve(t *testing.T, n *memnet.Network, addr string, srv *http.Server) {
	t.Helper()
	ln, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-over
		time.Sleep(time.Second) // for those that linger after an early answer
	})
}
