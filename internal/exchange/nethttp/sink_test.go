package nethttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/memnet"
)

const routerAddr = "router:30000"

// client is one connection to a server whose answers come from sinks.
type client struct {
	t    *testing.T
	conn *memnet.Conn
	br   *bufio.Reader
}

// answering serves with a sink, and connects.
func answering(t *testing.T, timeout time.Duration, answer func(s *nethttp.Sink, r *http.Request)) *client {
	t.Helper()
	n := new(memnet.Network)
	serve(t, n, routerAddr, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/plain" {
			io.WriteString(w, "plain")
			return
		}
		s := nethttp.NewSink(w, timeout)
		defer s.End()
		answer(s, r)
	})})
	conn, err := n.DialContext(t.Context(), "tcp", routerAddr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t, conn.(*memnet.Conn), bufio.NewReader(conn)}
}

// ask sends a request without a body.
func (c *client) ask(method, path string) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.conn, "%s %s HTTP/1.1\r\nHost: router\r\n\r\n", method, path); err != nil {
		c.t.Fatal(err)
	}
}

// head reads the head of an answer.
func (c *client) head(method string) *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.br, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// closed reports whether the server has closed the connection.
func (c *client) closed() bool {
	_, err := c.br.ReadByte()
	return err == io.EOF
}

// Cases 4.1 and 4.2: the head goes out before any byte of the body, and every
// write at once, whatever the type of the answer. The head of an answer in one
// piece may wait for its first bytes.
func TestSinkHoldsNothing(t *testing.T) {
	for _, head := range []exchange.Fields{
		{{Name: "Content-Type", Value: "text/event-stream"}},
		{{Name: "Content-Type", Value: "text/event-stream; charset=utf-8"}},
		{{Name: "Content-Type", Value: "application/x-ndjson"}},
		{{Name: "Content-Type", Value: "application/json"}},
		{{Name: "Content-Type", Value: "application/json"}, {Name: "Content-Length", Value: "5"}},
		nil,
	} {
		t.Run(fmt.Sprint(head), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := answering(t, time.Minute, func(s *nethttp.Sink, _ *http.Request) {
					if err := s.Start(200, head); err != nil {
						t.Error(err)
					}
					for range 5 {
						time.Sleep(3 * time.Second)
						if err := s.Write([]byte("x")); err != nil {
							t.Error(err)
						}
					}
					if s.Status() != 200 || s.Bytes() != 5 {
						t.Errorf("status %d, %d bytes", s.Status(), s.Bytes())
					}
				})
				start := time.Now()
				c.ask("POST", "/")
				resp := c.head("POST")
				wait := time.Duration(0)
				if head.InOnePiece() {
					wait = 3 * time.Second
				}
				if took := time.Since(start); took != wait || resp.StatusCode != 200 {
					t.Errorf("status %d after %v", resp.StatusCode, took)
				}
				b := make([]byte, 10)
				for i := range 5 {
					n, err := resp.Body.Read(b)
					want := time.Duration(i+1) * 3 * time.Second
					if took := time.Since(start); n != 1 || err != nil && err != io.EOF || took != want {
						t.Errorf("read %d, %v after %v, want 1 after %v", n, err, took, want)
					}
				}
				if n, err := resp.Body.Read(b); n != 0 || err != io.EOF {
					t.Errorf("at the end: %d, %v", n, err)
				}
			})
		})
	}
}

func TestSinkFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := answering(t, 0, func(s *nethttp.Sink, r *http.Request) {
			switch r.URL.Path {
			case "/204":
				s.Start(204, nil)
			case "/length":
				s.Start(404, fields("Content-Length", "2", "Server", "uvicorn"))
				if r.Method != http.MethodHead {
					s.Write([]byte("no"))
				}
			default:
				s.Start(200, fields("Set-Cookie", "b", "X-A", "", "Set-Cookie", "a", "Date", "then"))
				s.Write([]byte("<html>"))
			}
		})
		// All over one connection: none of the forms spoils it.
		for range 2 {
			c.ask("GET", "/")
			resp := c.head("GET")
			body, err := io.ReadAll(resp.Body)
			if string(body) != "<html>" || err != nil {
				t.Errorf("body %q, %v", body, err)
			}
			want := http.Header{"Set-Cookie": {"b", "a"}, "X-A": {""}, "Date": {"then"}}
			if diff := cmp.Diff(want, resp.Header); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(resp.TransferEncoding) != 1 {
				t.Error("it has no length and is not chunked")
			}

			c.ask("GET", "/204")
			if resp := c.head("GET"); resp.StatusCode != 204 || resp.ContentLength != 0 {
				t.Errorf("%v", resp)
			}

			for _, method := range []string{"HEAD", "GET"} {
				c.ask(method, "/length")
				resp = c.head(method)
				body, err = io.ReadAll(resp.Body)
				if resp.StatusCode != 404 || resp.ContentLength != 2 || len(resp.TransferEncoding) != 0 || err != nil {
					t.Errorf("%v: %v, %v", method, resp, err)
				}
				if want := map[string]string{"GET": "no"}[method]; string(body) != want {
					t.Errorf("%s: body %q", method, body)
				}
			}
		}
	})
}

// An answer that was aborted cannot look complete.
func TestSinkAbort(t *testing.T) {
	for name, head := range map[string]exchange.Fields{
		"chunked":            nil,
		"length":             {{Name: "Content-Length", Value: "10"}},
		"length that is met": {{Name: "Content-Length", Value: "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := answering(t, time.Minute, func(s *nethttp.Sink, _ *http.Request) {
					s.Start(200, head)
					s.Write([]byte("abc"))
					s.Abort()
				})
				c.ask("POST", "/")
				body, err := io.ReadAll(c.head("POST").Body)
				if string(body) != "abc" {
					t.Errorf("body %q", body)
				}
				if name != "length that is met" && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("it ends with %v", err)
				}
				if !c.closed() {
					t.Error("the connection stays open")
				}
			})
		})
	}
	t.Run("before the head", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := answering(t, time.Minute, func(s *nethttp.Sink, _ *http.Request) { s.Abort() })
			c.ask("POST", "/")
			if !c.closed() {
				t.Error("there is an answer")
			}
		})
	})
}

// An answer shorter than its length is broken off without being asked to.
func TestSinkShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := answering(t, 0, func(s *nethttp.Sink, _ *http.Request) {
			s.Start(200, fields("Content-Length", "10"))
			s.Write([]byte("abc"))
		})
		c.ask("POST", "/")
		if _, err := io.ReadAll(c.head("POST").Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("it ends with %v", err)
		}
		if !c.closed() {
			t.Error("the connection stays open")
		}
	})
}

// A client that does not read is let go after the timeout.
func TestSinkWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 40 * time.Second
		over := make(chan error, 1)
		var start time.Time
		c := answering(t, timeout, func(s *nethttp.Sink, r *http.Request) {
			err := s.Start(200, nil)
			for err == nil {
				start = time.Now()
				err = s.Write(make([]byte, 32<<10))
			}
			if r.Context().Err() == nil {
				t.Error("the request's context goes on")
			}
			over <- err
		})
		c.ask("POST", "/")
		err := <-over
		if took := time.Since(start); took < timeout || took > timeout*5/4 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v after %v", err, took)
		}
		if _, err := io.ReadAll(c.head("POST").Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the client's answer ends with %v", err)
		}
	})
}

// A slow client is no hung one, and the deadline of one answer is not that of
// the next.
func TestSinkSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		body := strings.Repeat("x", 256<<10)
		c := answering(t, timeout, func(s *nethttp.Sink, r *http.Request) {
			if r.URL.Path == "/quiet" { // between writes no time runs
				s.Start(200, nil)
				s.Write([]byte("a"))
				time.Sleep(10 * timeout)
				s.Write([]byte("b"))
				return
			}
			if err := s.Start(200, nil); err != nil {
				t.Error(err)
			}
			for i := 0; i < len(body); i += 16 << 10 {
				if err := s.Write([]byte(body[i : i+16<<10])); err != nil {
					t.Errorf("after %d bytes: %v", i, err)
					return
				}
			}
		})
		for range 2 {
			c.ask("POST", "/")
			resp := c.head("POST")
			got := 0
			for b := make([]byte, 16<<10); ; {
				time.Sleep(timeout / 10)
				n, err := resp.Body.Read(b)
				got += n
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatalf("after %d bytes: %v", got, err)
				}
			}
			if got != len(body) {
				t.Errorf("%d bytes, want %d", got, len(body))
			}
			time.Sleep(10 * timeout)
			for path, want := range map[string]string{"/plain": "plain", "/quiet": "ab"} {
				c.ask("GET", path)
				if b, err := io.ReadAll(c.head("GET").Body); string(b) != want || err != nil {
					t.Errorf("%s: %q, %v", path, b, err)
				}
				time.Sleep(10 * timeout)
			}
		}
	})
}

// Case 4.4: a client that is gone is an error of the next write or the one after.
func TestSinkClientGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan error, 1)
		c := answering(t, time.Minute, func(s *nethttp.Sink, r *http.Request) {
			err := s.Start(200, nil)
			for err == nil {
				time.Sleep(time.Second)
				err = s.Write([]byte("x"))
			}
			over <- err
		})
		c.ask("POST", "/")
		c.head("POST")
		c.conn.Close()
		start := time.Now()
		if err := <-over; err == nil || time.Since(start) > 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heads := make(chan exchange.Head, 1)
		c := answering(t, 0, func(s *nethttp.Sink, r *http.Request) {
			heads <- nethttp.Head(r)
			s.Start(200, nil)
		})
		for target, want := range map[string]string{
			"/v1/models?x=1&y=%20":       "/v1/models?x=1&y=%20",
			"/a%2Fb%20c;d":               "/a%2Fb%20c;d",
			"//a/../b":                   "//a/../b",
			"http://elsewhere/v1/x?y=%2": "/v1/x?y=%2",
			"/?":                         "/?",
		} {
			fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: router\r\nx-a: 2\r\nX-A: 1\r\n\r\n", target)
			if _, err := io.ReadAll(c.head("GET").Body); err != nil {
				t.Fatal(err)
			}
			got := <-heads
			if diff := cmp.Diff(exchange.Head{Method: "GET", Target: want, Fields: fields("X-A", "2", "X-A", "1")}, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", target, diff)
			}
		}
	})
}
