package nethttp_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/memnet"
)

// Forms of an answer that are whole.
func TestWholeAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer, body string
		reused       bool
	}{
		"early hints":      {"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + okay, "ok", true},
		"continue":         {"HTTP/1.1 100 Continue\r\n\r\n" + okay, "ok", true},
		"several 1xx":      {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 4) + okay, "ok", true},
		"HTTP/1.0":         {"HTTP/1.0 200 OK\r\nContent-Type: x\r\n\r\nhello\r\nyou", "hello\r\nyou", false},
		"HTTP/1.0, length": {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", false},
		"until it closes":  {"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok", "ok", false},
		"no reason":        {"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", "ok", true},
		"chunks": {
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n1;ext=1\r\no\r\n1\r\nk\r\n0\r\nX-T: 1\r\n\r\n", "ok", true,
		},
		"chunks and a length": {
			"HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(memnet.Network)
				w := play(t, n, workerAddr, func(p *peer) {
					for p.request() {
						p.say(tt.answer)
						if !tt.reused {
							return
						}
					}
				})
				c := carrier(t, n, "http://"+workerAddr)
				for range 2 {
					g := send(t, c, post("/x"), "{}")
					if g.err != nil || g.status != 200 || g.body != tt.body {
						t.Errorf("%+v", g)
					}
					if g.fields.Get("Transfer-Encoding") != "" || strings.Contains(name, "chunks") && g.fields.Get("Content-Length") != "" {
						t.Errorf("framing fields: %v", g.fields)
					}
					synctest.Wait()
				}
				if want := map[bool]int{true: 1, false: 2}[tt.reused]; w.connections() != want {
					t.Errorf("%d connections, want %d", w.connections(), want)
				}
			})
		})
	}
}

// Case 4.20: a body that is not whole does not end with io.EOF, which is what
// io.ReadAll takes for its end.
func TestBrokenBodies(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, tt := range map[string]struct {
		answer, body string
		reset        bool
	}{
		"short of its length":        {answer: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", body: "abc"},
		"nothing of its length":      {answer: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"},
		"no last chunk":              {answer: chunked + "3\r\nabc\r\n", body: "abc"},
		"no end of the last chunk":   {answer: chunked + "3\r\nabc\r\n0\r\n", body: "abc"},
		"within a chunk":             {answer: chunked + "5\r\nabc", body: "abc"},
		"within a chunk's size":      {answer: chunked + "3\r\nabc\r\n1", body: "abc"},
		"no chunks at all":           {answer: chunked},
		"a chunk size that is none":  {answer: chunked + "3\r\nabc\r\nxyz\r\n", body: "abc"},
		"a chunk longer than stated": {answer: chunked + "3\r\nabcdef\r\n0\r\n\r\n", body: "abc"},
		"reset":                      {answer: chunked + "3\r\nabc\r\n", reset: true},
		"reset, HTTP/1.0":            {answer: "HTTP/1.0 200 OK\r\n\r\nabc", reset: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(memnet.Network)
				play(t, n, workerAddr, func(p *peer) {
					p.request()
					p.say(tt.answer)
					if tt.reset {
						time.Sleep(time.Second) // until what was said has been read
						p.reset()
					}
				})
				g := send(t, carrier(t, n, "http://"+workerAddr), post("/x"), "{}")
				if g.status != 200 || g.err == nil || errors.Is(g.err, io.EOF) {
					t.Errorf("status %d, body %q, error %v", g.status, g.body, g.err)
				}
				if !tt.reset && g.body != tt.body {
					t.Errorf("body %q, want %q", g.body, tt.body)
				}
				synctest.Wait()
				if n.OpenTo(workerAddr) != 0 {
					t.Error("the connection is kept")
				}
			})
		})
	}
}

// An answer that is not HTTP, or that nothing can be made of, may still mean
// that the worker works. What it said stays out of the error, and so out of the
// log.
func TestBadAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"not HTTP":             "the prompt was: hello\r\n\r\n",
		"bad status":           "HTTP/1.1 prompt OK\r\n\r\n",
		"status below 100":     "HTTP/1.1 050 prompt\r\nContent-Length: 0\r\n\r\n",
		"switch of protocols":  "HTTP/1.1 101 prompt\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"bad field":            "HTTP/1.1 200 OK\r\nthe prompt\r\n\r\n",
		"two lengths":          "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nprompt",
		"bad length":           "HTTP/1.1 200 OK\r\nContent-Length: prompt\r\n\r\n",
		"bad transfer coding":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: prompt\r\n\r\n",
		"a head without end":   "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("prompt ", 3<<20) + "\r\n\r\n",
		"1xx and nothing else": "HTTP/1.1 103 prompt\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(memnet.Network)
				w := play(t, n, workerAddr, func(p *peer) { p.request(); p.say(answer) })
				g := send(t, carrier(t, n, "http://"+workerAddr), post("/x"), "{}")
				if sent(g.err) != exchange.Maybe {
					t.Fatalf("%+v", g)
				}
				if strings.Contains(g.err.Error(), "prompt") {
					t.Errorf("the worker's words are in the error: %.200s", g.err)
				}
				if len(w.seen()) != 1 {
					t.Errorf("%d requests arrived, want 1", len(w.seen()))
				}
				synctest.Wait()
				if n.OpenTo(workerAddr) != 0 {
					t.Error("the connection is kept")
				}
			})
		})
	}
}
