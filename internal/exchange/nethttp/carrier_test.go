package nethttp_test

import (
	"bytes"
	"compress/gzip"
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
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/memnet"
)

// What goes over the wire, to the byte. Case 2.21: Host is the worker's. Case
// 5.17: the base path is joined. Case 4.9: a length, no chunks.
func TestRequestOnTheWire(t *testing.T) {
	for _, tt := range []struct {
		name, base string
		head       exchange.Head
		body, want string
	}{
		{
			name: "post", base: "http://worker:8000",
			head: post("/v1/chat/completions?b=2&a=%20x+y",
				exchange.Field{Name: "Host", Value: "router"},
				exchange.Field{Name: "Content-Length", Value: "99"},
				exchange.Field{Name: "Content-Type", Value: "application/json"}),
			body: `{"a":1}`,
			want: "POST /v1/chat/completions?b=2&a=%20x+y HTTP/1.1\nHost: worker:8000\nContent-Length: 7\n" +
				"Content-Type: application/json\n\n" + `{"a":1}`,
		},
		{
			name: "base path", base: "http://worker:8000/llm/x",
			head: post("/v1/completions"), body: "{}",
			want: "POST /llm/x/v1/completions HTTP/1.1\nHost: worker:8000\nContent-Length: 2\n\n{}",
		},
		{
			name: "escaped base path", base: "http://worker:8000/a%2Fb%20c",
			head: post("/v1/completions"), body: "{}",
			want: "POST /a%2Fb%20c/v1/completions HTTP/1.1\nHost: worker:8000\nContent-Length: 2\n\n{}",
		},
		{
			name: "escaped path", base: "http://worker:8000/llm",
			head: exchange.Head{Method: "GET", Target: "/v1/responses/a%2Fb%25c%C3%A9%41;x=1,(y)?q=%2F&r=a%zz"},
			want: "GET /llm/v1/responses/a%2Fb%25c%C3%A9%41;x=1,(y)?q=%2F&r=a%zz HTTP/1.1\nHost: worker:8000\n\n",
		},
		{
			name: "empty query", base: "http://worker:8000",
			head: exchange.Head{Method: "GET", Target: "/version?"},
			want: "GET /version? HTTP/1.1\nHost: worker:8000\n\n",
		},
		{
			name: "two question marks", base: "http://worker:8000",
			head: exchange.Head{Method: "GET", Target: "/version?a?b"},
			want: "GET /version?a?b HTTP/1.1\nHost: worker:8000\n\n",
		},
		{
			name: "post without a body", base: "http://worker:8000",
			head: post("/v1/responses/r/cancel"),
			want: "POST /v1/responses/r/cancel HTTP/1.1\nHost: worker:8000\nContent-Length: 0\n\n",
		},
		{
			name: "delete", base: "http://worker:8000",
			head: exchange.Head{Method: "DELETE", Target: "/v1/responses/r"},
			want: "DELETE /v1/responses/r HTTP/1.1\nHost: worker:8000\n\n",
		},
		{
			name: "repeated fields and the client's own", base: "http://worker:8000",
			head: post("/v1/completions",
				exchange.Field{Name: "X-A", Value: "2"},
				exchange.Field{Name: "User-Agent", Value: "curl/8"},
				exchange.Field{Name: "X-A", Value: "1"},
				exchange.Field{Name: "Accept-Encoding", Value: "gzip, br"},
				exchange.Field{Name: "X-A", Value: ""}),
			body: "{}",
			want: "POST /v1/completions HTTP/1.1\nHost: worker:8000\nUser-Agent: curl/8\nContent-Length: 2\n" +
				"Accept-Encoding: gzip, br\nX-A: 2\nX-A: 1\nX-A: \n\n{}",
		},
		{
			name: "IPv6", base: "http://[fd00::1]:8000",
			head: post("/v1/completions"), body: "{}",
			want: "POST /v1/completions HTTP/1.1\nHost: [fd00::1]:8000\nContent-Length: 2\n\n{}",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(memnet.Network)
				addr := workerAddr
				if strings.Contains(tt.base, "fd00") {
					addr = "[fd00::1]:8000"
				}
				w := play(t, n, addr, func(p *peer) {
					for p.request() {
						p.say(okay)
					}
				})
				c := carrier(t, n, tt.base)
				for range 2 {
					if g := send(t, c, tt.head, tt.body); g.err != nil || g.status != 200 || g.body != "ok" {
						t.Fatalf("%+v", g)
					}
				}
				want := strings.ReplaceAll(strings.TrimSuffix(tt.want, tt.body), "\n", "\r\n") + tt.body
				if diff := cmp.Diff([]string{want, want}, w.seen()); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
				if w.connections() != 1 {
					t.Errorf("%d connections, want 1", w.connections())
				}
			})
		})
	}
}

func TestNewRefusesBadBase(t *testing.T) {
	t.Parallel()
	if _, err := nethttp.New("http://a b", nethttp.Config{}); err == nil {
		t.Error("no error")
	}
}

func TestAnswerFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		play(t, n, workerAddr, func(p *peer) {
			for p.request() {
				p.say("HTTP/1.1 418 x\r\nset-cookie: b\r\nX-A: 1\r\nSet-Cookie: a\r\nset-COOKIE: b\r\nContent-Length: 3\r\n\r\nabc")
			}
		})
		g := send(t, carrier(t, n, "http://"+workerAddr), post("/x"), "{}")
		if g.status != 418 || g.body != "abc" || g.err != nil {
			t.Errorf("%+v", g)
		}
		var cookies []string
		for _, f := range g.fields {
			if f.Name == "Set-Cookie" {
				cookies = append(cookies, f.Value)
			}
		}
		if got := strings.Join(cookies, " "); got != "b a b" {
			t.Errorf("Set-Cookie: %s, want b a b", got)
		}
		if g.fields.Get("Content-Length") != "3" || g.fields.Get("X-A") != "1" {
			t.Errorf("fields %v", g.fields)
		}
	})
}

// The worker cannot have seen a request for which no connection was made.
func TestConnectErrors(t *testing.T) {
	refuse := func(t *testing.T, n *memnet.Network) nethttp.Config {
		n.Refuse(workerAddr)
		return nethttp.Config{Dial: n.DialContext}
	}
	for _, tt := range []struct {
		name, base string
		config     func(t *testing.T, n *memnet.Network) nethttp.Config
		is         error
		after      time.Duration
	}{
		{name: "refused", config: refuse, is: syscall.ECONNREFUSED},
		{
			name: "reset", is: syscall.ECONNRESET,
			config: func(*testing.T, *memnet.Network) nethttp.Config {
				return nethttp.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNRESET)}
				}}
			},
		},
		{
			name: "timeout", is: context.DeadlineExceeded, after: 5 * time.Second,
			config: func(_ *testing.T, n *memnet.Network) nethttp.Config {
				n.Blackhole(workerAddr)
				return nethttp.Config{Dial: n.DialContext}
			},
		},
		{
			name: "timeout of its own", is: context.DeadlineExceeded, after: 300 * time.Millisecond,
			config: func(_ *testing.T, n *memnet.Network) nethttp.Config {
				n.Blackhole(workerAddr)
				return nethttp.Config{Dial: n.DialContext, ConnectTimeout: 300 * time.Millisecond}
			},
		},
		{
			name: "TLS handshake that hangs", base: "https://" + workerAddr, after: 5 * time.Second,
			config: func(t *testing.T, n *memnet.Network) nethttp.Config {
				play(t, n, workerAddr, func(p *peer) { p.wait() })
				return nethttp.Config{Dial: n.DialContext}
			},
		},
		{
			name: "no TLS there", base: "https://" + workerAddr,
			config: func(t *testing.T, n *memnet.Network) nethttp.Config {
				play(t, n, workerAddr, func(p *peer) { p.say("HTTP/1.1 400 Bad Request\r\n\r\n"); p.wait() })
				return nethttp.Config{Dial: n.DialContext}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := tt.base
				if base == "" {
					base = "http://" + workerAddr
				}
				n := new(memnet.Network)
				c := carrierWith(t, base, tt.config(t, n))
				start := time.Now()
				g := send(t, c, post("/x?secret=1"), "{}")
				if sent(g.err) != exchange.Nothing || !exchange.Unsent(g.err) {
					t.Errorf("%v", g.err)
				}
				if tt.is != nil && !errors.Is(g.err, tt.is) {
					t.Errorf("%v is not %v", g.err, tt.is)
				}
				if took := time.Since(start); took != tt.after {
					t.Errorf("after %v, want %v", took, tt.after)
				}
				if strings.Contains(g.err.Error(), "secret") {
					t.Errorf("the query is in the error: %v", g.err)
				}
			})
		})
	}
}

// Ending the context ends the exchange at once, wherever it is, and closes the
// worker's connection (cases 1.14, 4.4, 4.5).
func TestContextEnds(t *testing.T) {
	stages := map[string]func(p *peer){
		"before the head": func(p *peer) { p.request(); p.wait() },
		"within the body": func(p *peer) {
			p.request()
			p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
			p.wait()
		},
		"while the request is sent": func(p *peer) { p.head(); time.Sleep(20 * time.Second); p.wait() },
	}
	for name, part := range stages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(memnet.Network)
				play(t, n, workerAddr, part)
				cause := errors.New("for a reason")
				ctx, cancel := context.WithCancelCause(t.Context())
				start := time.Now()
				time.AfterFunc(10*time.Second, func() { cancel(cause) })
				g := sendContext(ctx, carrier(t, n, "http://"+workerAddr), post("/x"), strings.Repeat("x", 300<<10))
				if took := time.Since(start); took != 10*time.Second {
					t.Errorf("it ended after %v", took)
				}
				switch {
				case g.status == 0 && !errors.Is(g.err, cause):
					t.Errorf("%v, want %v", g.err, cause)
				case g.status != 0 && (g.err == nil || g.body != "abc"):
					t.Errorf("%+v", g)
				}
				time.Sleep(11 * time.Second) // until a busy worker has looked
				synctest.Wait()
				if n.OpenTo(workerAddr) != 0 {
					t.Error("the worker's connection is open")
				}
			})
		})
	}
}

func TestContextEndedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		w := play(t, n, workerAddr, func(p *peer) { p.wait() })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if g := sendContext(ctx, carrier(t, n, "http://"+workerAddr), post("/x"), "{}"); !errors.Is(g.err, context.Canceled) {
			t.Error(g.err)
		}
		if len(w.seen()) != 0 {
			t.Error("it was sent")
		}
	})
}

// A body closed before its end takes its connection with it; one read to its
// end leaves it for the next exchange.
func TestBodyClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		left := make(chan time.Time, 1)
		w := play(t, n, workerAddr, func(p *peer) {
			for p.request() {
				if p.number == 1 {
					p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
					p.wait()
					left <- time.Now()
					return
				}
				p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
			}
		})
		c := carrier(t, n, "http://"+workerAddr)
		answer, err := c.Send(t.Context(), post("/x"), []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if b := make([]byte, 3); !readFull(answer.Body, b, "abc") {
			t.Errorf("read %q", b)
		}
		start := time.Now()
		answer.Body.Close()
		if at := <-left; at != start {
			t.Errorf("the worker saw it after %v", at.Sub(start))
		}
		for range 3 {
			if g := send(t, c, post("/x"), "{}"); g.err != nil || g.body != "abc" {
				t.Errorf("%+v", g)
			}
		}
		if w.connections() != 2 {
			t.Errorf("%d connections, want 2", w.connections())
		}
	})
}

func readFull(r io.Reader, b []byte, want string) bool {
	_, err := io.ReadFull(r, b)
	return err == nil && string(b) == want
}

// Case 4.12: a worker may refuse a request while its body is on its way.
func TestEarlyAnswer(t *testing.T) {
	const refusal = "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 5\r\n\r\nlarge"
	body := strings.Repeat("x", 1<<20)
	for name, part := range map[string]func(p *peer){
		"and the connection stays open": func(p *peer) { p.head(); p.say(refusal); time.Sleep(time.Minute) },
		"and the body is read":          func(p *peer) { p.head(); p.say(refusal); p.wait() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(memnet.Network)
				w := play(t, n, workerAddr, part)
				c := carrier(t, n, "http://"+workerAddr)
				start := time.Now()
				for range 2 {
					if g := send(t, c, post("/x"), body); g.err != nil || g.status != 413 || g.body != "large" {
						t.Errorf("%+v", g)
					}
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("it took %v", took)
				}
				if w.connections() != 2 {
					t.Errorf("%d connections, want 2", w.connections())
				}
			})
		})
	}
	t.Run("of a server that lingers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := new(memnet.Network)
			serve(t, n, workerAddr, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "large", http.StatusRequestEntityTooLarge)
			})})
			if g := send(t, carrier(t, n, "http://"+workerAddr), post("/x"), body); g.err != nil || g.status != 413 {
				t.Errorf("%+v", g)
			}
		})
	})
}

// Case 4.7: coded bytes pass as they are, and nothing asks for them in the
// client's name.
func TestGzipPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var coded bytes.Buffer
		zw := gzip.NewWriter(&coded)
		io.WriteString(zw, "hello")
		zw.Close()
		n := new(memnet.Network)
		var asked []string
		serve(t, n, workerAddr, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, fmt.Sprint(r.Header["Accept-Encoding"]))
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(coded.Bytes())
		})})
		c := carrier(t, n, "http://"+workerAddr)
		for _, h := range []exchange.Head{post("/x"), post("/x", exchange.Field{Name: "Accept-Encoding", Value: "gzip"})} {
			g := send(t, c, h, "{}")
			if g.err != nil || g.body != coded.String() || g.fields.Get("Content-Encoding") != "gzip" {
				t.Errorf("%+v", g)
			}
		}
		if diff := cmp.Diff([]string{"[]", "[gzip]"}, asked); diff != "" {
			t.Errorf("Accept-Encoding (-want +got)\n%s", diff)
		}
	})
}

// Case 4.1: what a worker writes can be read at once.
func TestBodyIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		play(t, n, workerAddr, func(p *peer) {
			p.request()
			p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 5 {
				time.Sleep(time.Second)
				p.say("1\r\nx\r\n")
			}
			time.Sleep(time.Second)
			p.say("0\r\n\r\n")
		})
		start := time.Now()
		answer, err := carrier(t, n, "http://"+workerAddr).Send(t.Context(), post("/x"), []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if took := time.Since(start); took != 0 {
			t.Errorf("the head came after %v", took)
		}
		b := make([]byte, 10)
		for i := range 5 {
			got, err := answer.Body.Read(b)
			if took := time.Since(start); got != 1 || err != nil || took != time.Duration(i+1)*time.Second {
				t.Errorf("read %d, %v after %v", got, err, took)
			}
		}
		if _, err := answer.Body.Read(b); err != io.EOF {
			t.Errorf("the end is %v", err)
		}
	})
}
