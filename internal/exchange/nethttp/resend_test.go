package nethttp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/memnet"
)

// resend is a script for the second use of a connection: the first request on
// each of the first so many connections is answered, and end is what becomes of
// the second.
func resend(t *testing.T, n *memnet.Network, kept int, end func(p *peer)) *script {
	t.Helper()
	return play(t, n, workerAddr, func(p *peer) {
		if !p.request() {
			return
		}
		p.say(okay)
		if p.number <= kept {
			if p.request() {
				end(p)
			}
			return
		}
		for p.request() {
			p.say(okay)
		}
	})
}

// A reused connection that breaks at once without a byte of an answer is one
// that the worker had closed: the request is sent once more. In no other case
// is it, whatever the transport thinks of the request.
func TestResend(t *testing.T) {
	idempotent := exchange.Field{Name: "Idempotency-Key", Value: "k"}
	heads := map[string]struct {
		head exchange.Head
		body string
	}{
		"post":                    {post("/v1/completions"), "{}"},
		"post with a key":         {post("/v1/completions", idempotent), "{}"},
		"post without a body":     {post("/v1/responses/r/cancel"), ""},
		"the same with a key":     {post("/v1/responses/r/cancel", idempotent), ""},
		"get":                     {exchange.Head{Method: "GET", Target: "/v1/responses/r"}, ""},
		"delete":                  {exchange.Head{Method: "DELETE", Target: "/v1/responses/r"}, ""},
		"post of more than fits":  {post("/v1/completions"), strings.Repeat("x", 300<<10)},
		"post with X-Idempotency": {post("/v1/completions", exchange.Field{Name: "X-Idempotency-Key", Value: "k"}), "{}"},
	}
	ends := []struct {
		name     string
		end      func(p *peer)
		requests int // that arrive at the worker, the first one included
		sent     exchange.Sent
	}{
		{"closed", func(*peer) {}, 3, 0},
		{"reset", func(p *peer) { p.reset() }, 3, 0},
		{"closed just in time", func(*peer) { time.Sleep(990 * time.Millisecond) }, 3, 0},
		{"closed after a second", func(*peer) { time.Sleep(time.Second) }, 2, exchange.Maybe},
		{"reset after a minute", func(p *peer) { time.Sleep(time.Minute); p.reset() }, 2, exchange.Maybe},
		{"closed within the answer's head", func(p *peer) { p.say("HTTP/1.1 200 O") }, 2, exchange.Maybe},
		{"closed after a byte", func(p *peer) { p.say("H") }, 2, exchange.Maybe},
		{"closed after a 1xx", func(p *peer) { p.say("HTTP/1.1 103 Early Hints\r\n\r\n") }, 2, exchange.Maybe},
	}
	for name, h := range heads {
		for _, e := range ends {
			t.Run(name+"/"+e.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := new(memnet.Network)
					w := resend(t, n, 1, e.end)
					c := carrier(t, n, "http://"+workerAddr)
					if g := send(t, c, h.head, h.body); g.err != nil {
						t.Fatal(g.err)
					}
					g := send(t, c, h.head, h.body)
					if e.sent == 0 && (g.err != nil || g.body != "ok") {
						t.Errorf("%+v", g)
					}
					if e.sent != 0 && sent(g.err) != e.sent {
						t.Errorf("%v (sent %d), want sent %d", g.err, sent(g.err), e.sent)
					}
					seen := w.seen()
					if len(seen) != e.requests {
						t.Errorf("%d requests arrived, want %d", len(seen), e.requests)
					}
					for _, s := range seen[1:] {
						if s != seen[0] {
							t.Error("the request that was sent again differs from the first")
						}
					}
				})
			})
		}
	}
}

// The re-send is the last one, and it goes over a new connection: where one is
// stale others may be.
func TestResendOnce(t *testing.T) {
	t.Run("several stale connections", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const many = 5
			n := new(memnet.Network)
			w := resend(t, n, many, func(*peer) {})
			c := carrier(t, n, "http://"+workerAddr)
			var answers []*exchange.Answer
			for range many {
				answer, err := c.Send(t.Context(), post("/x"), []byte("{}"))
				if err != nil {
					t.Fatal(err)
				}
				answers = append(answers, answer)
			}
			for _, a := range answers {
				io.Copy(io.Discard, a.Body)
				a.Body.Close()
			}
			synctest.Wait()
			if w.connections() != many {
				t.Fatalf("%d connections", w.connections())
			}
			if g := send(t, c, post("/x"), "{}"); g.err != nil {
				t.Error(g.err)
			}
			if got := len(w.seen()); got != many+2 {
				t.Errorf("%d requests arrived, want %d", got, many+2)
			}
		})
	})
	t.Run("a worker that answers nobody", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := new(memnet.Network)
			w := play(t, n, workerAddr, func(p *peer) {
				if p.request() && p.number == 1 {
					p.say(okay)
					p.request()
				}
			})
			c := carrier(t, n, "http://"+workerAddr)
			send(t, c, post("/x"), "{}")
			g := send(t, c, post("/x"), "{}")
			if sent(g.err) != exchange.Maybe {
				t.Errorf("%v", g.err)
			}
			if got := len(w.seen()); got != 3 {
				t.Errorf("%d requests arrived, want 3", got)
			}
		})
	})
	t.Run("a fresh connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := new(memnet.Network)
			w := play(t, n, workerAddr, func(p *peer) { p.request() })
			for i, h := range []exchange.Head{post("/x"), {Method: "GET", Target: "/x"}} {
				g := send(t, carrier(t, n, "http://"+workerAddr), h, "")
				if sent(g.err) != exchange.Maybe {
					t.Errorf("%v", g.err)
				}
				if got := len(w.seen()); got != i+1 {
					t.Errorf("%d requests arrived, want %d", got, i+1)
				}
			}
		})
	})
	t.Run("the context ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := new(memnet.Network)
			ctx, cancel := context.WithCancel(t.Context())
			w := resend(t, n, 1, func(*peer) { cancel() })
			c := carrier(t, n, "http://"+workerAddr)
			send(t, c, post("/x"), "{}")
			if g := sendContext(ctx, c, post("/x"), "{}"); !errors.Is(g.err, context.Canceled) {
				t.Errorf("%v", g.err)
			}
			if got := len(w.seen()); got != 2 {
				t.Errorf("%d requests arrived, want 2", got)
			}
		})
	})
}

// Case 4.10: a worker that closes idle connections after 5 s, and requests that
// come just then.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		arrived, conns := 0, 0
		serve(t, n, workerAddr, &http.Server{
			IdleTimeout: 5 * time.Second,
			ConnState: func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					conns++
				}
			},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				arrived++
				io.WriteString(w, "ok")
			}),
		})
		c := carrier(t, n, "http://"+workerAddr)
		const times = 500
		for i := range times {
			if g := send(t, c, post("/x"), "{}"); g.err != nil || g.body != "ok" {
				t.Fatalf("request %d: %+v", i, g)
			}
			time.Sleep(5*time.Second + time.Duration(i%5-2)*time.Millisecond)
		}
		if arrived != times || conns != times {
			t.Errorf("%d requests arrived over %d connections, want %d over %d", arrived, conns, times, times)
		}

		// It is kept for 4 s.
		arrived, conns = 0, 0
		for range 10 {
			if g := send(t, c, post("/x"), "{}"); g.err != nil {
				t.Fatal(g.err)
			}
			time.Sleep(3900 * time.Millisecond)
			if n.OpenTo(workerAddr) != 1 {
				t.Errorf("%d connections are open after 3.9 s, want 1", n.OpenTo(workerAddr))
			}
		}
		if arrived != 10 || conns != 1 {
			t.Errorf("%d requests arrived over %d connections, want 10 over 1", arrived, conns)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if n.OpenTo(workerAddr) != 0 {
			t.Error("the connection is kept for more than 4 s")
		}
	})
}

// A burst leaves its connections for the next one.
func TestManyIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		w := play(t, n, workerAddr, func(p *peer) {
			for p.request() {
				time.Sleep(time.Second)
				p.say(okay)
			}
		})
		c := carrier(t, n, "http://"+workerAddr)
		const many = 100
		for range 3 {
			var wg sync.WaitGroup
			for range many {
				wg.Go(func() {
					if g := send(t, c, post("/x"), "{}"); g.err != nil {
						t.Error(g.err)
					}
				})
			}
			wg.Wait()
		}
		if w.connections() != many {
			t.Errorf("%d connections, want %d", w.connections(), many)
		}
	})
}

func TestCloseIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		play(t, n, workerAddr, func(p *peer) {
			for p.request() {
				time.Sleep(time.Minute)
				p.say(okay)
			}
		})
		c := carrier(t, n, "http://"+workerAddr)
		over := make(chan got)
		go func() { over <- send(t, c, post("/x"), "{}") }()
		time.Sleep(time.Second)
		c.CloseIdle()
		if g := <-over; g.err != nil || g.body != "ok" {
			t.Errorf("the exchange that ran: %+v", g)
		}
		synctest.Wait()
		if n.OpenTo(workerAddr) != 0 {
			t.Error("its connection is kept")
		}
	})
}
