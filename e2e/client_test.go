//go:build e2e

package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// lastID makes request ids that occur once.
var lastID atomic.Uint64

func newID() string { return fmt.Sprintf("e2e-%d-%d", os.Getpid(), lastID.Add(1)) }

// client sends requests to one router and reads answers to their end.
type client struct {
	t    testing.TB
	base string
	http *http.Client
}

func newClient(t testing.TB, base string) *client {
	return &client{t: t, base: base, http: &http.Client{
		Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// answer is what came back. err is how the reading of the body ended, nil for a
// body that was whole.
type answer struct {
	id     string // of the request
	status int
	header http.Header
	body   []byte
	events []event // if it is a stream
	err    error
}

// event is one event of a stream.
type event struct {
	name string
	data string
	at   time.Time
}

func (a *answer) String() string {
	return fmt.Sprintf("%s: status %d, read error %v, body %.600q", a.id, a.status, a.err, a.body)
}

// code returns the code and the message of an error object, in either form.
func (a *answer) code() (code, message string) { return errorCode(a.body) }

func errorCode(body []byte) (code, message string) {
	type object struct {
		Code    any    `json:"code"`
		Message string `json:"message"`
	}
	var answer struct {
		object // of an event of /v1/responses

		Error object `json:"error"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return "", ""
	}
	found := answer.Error
	if found.Message == "" {
		found = answer.object
	}
	if found.Code != nil {
		code = fmt.Sprint(found.Code)
	}
	return code, found.Message
}

// header is header fields of a request, name after value.
type header map[string]string

// request makes a request with a body of JSON and an id of its own.
func (c *client) request(ctx context.Context, path string, body []byte, fields ...header) *http.Request {
	method := http.MethodPost
	if body == nil {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		panic(err) // a test's own mistake
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", newID())
	for _, f := range fields {
		for name, value := range f {
			req.Header.Set(name, value)
		}
	}
	return req
}

// post sends a request and reads the answer to its end.
func (c *client) post(path string, body []byte, fields ...header) *answer {
	return c.do(c.request(context.Background(), path, body, fields...))
}

func (c *client) get(path string) *answer { return c.post(path, nil) }

// do returns an answer with status 0 if none came.
func (c *client) do(req *http.Request) *answer {
	s := c.open(req)
	defer s.close()
	for {
		if _, err := s.next(); err != nil {
			return s.answer
		}
	}
}

// stream is an answer that is being read.
type stream struct {
	*answer

	resp *http.Response
	in   *bufio.Reader
	raw  bytes.Buffer
	open event // not complete
	any  bool  // the open event has a line
}

// open sends a request and returns when the head of the answer is there.
func (c *client) open(req *http.Request) *stream {
	s := &stream{answer: &answer{id: req.Header.Get("X-Request-Id")}}
	var err error
	if s.resp, err = c.http.Do(req); err != nil {
		s.err = err
		return s
	}
	s.status, s.header = s.resp.StatusCode, s.resp.Header
	s.in = bufio.NewReader(io.TeeReader(s.resp.Body, &s.raw))
	return s
}

func (s *stream) close() {
	if s.resp != nil {
		s.resp.Body.Close()
	}
}

// next reads up to the end of the next event. An answer that is no stream is
// read whole. The error is that of the body, io.EOF at its end.
func (s *stream) next() (event, error) {
	if s.resp == nil {
		return event{}, s.err
	}
	for {
		line, err := s.in.ReadString('\n')
		if err != nil {
			s.body = s.raw.Bytes()
			if err != io.EOF {
				s.err = err
			}
			return event{}, err
		}
		line = strings.TrimRight(line, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && s.any:
			ev := s.open
			ev.at = time.Now()
			s.open, s.any = event{}, false
			s.events = append(s.events, ev)
			return ev, nil
		case name == "event":
			s.open.name, s.any = value, true
		case name == "data":
			s.open.data, s.any = s.open.data+value, true
		}
	}
}

// readEvents reads n more events.
func (s *stream) readEvents(t testing.TB, n int) {
	t.Helper()
	for range n {
		if _, err := s.next(); err != nil {
			t.Fatalf("stream ended early: %v: %v", err, s.answer)
		}
	}
}

// finish reads to the end.
func (s *stream) finish() *answer {
	defer s.close()
	for {
		if _, err := s.next(); err != nil {
			return s.answer
		}
	}
}

// async runs a request and delivers its answer.
func (c *client) async(path string, body []byte, fields ...header) <-chan *answer {
	ch := make(chan *answer, 1)
	go func() { ch <- c.post(path, body, fields...) }()
	return ch
}

// receive waits for an answer.
func receive(t testing.TB, ch <-chan *answer) *answer {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-ch:
		return a
	case <-timer.C:
		t.Fatalf("no answer within %s", patience)
		return nil
	}
}

// leave is a way for a client to go.
type leave string

const (
	leaveFIN  leave = "close"
	leaveRST  leave = "reset"
	leaveHalf leave = "half-close" // of the sending half: counts as gone
)

var leaves = []leave{leaveFIN, leaveRST, leaveHalf}

// wire is a bare connection to a router.
type wire struct {
	*net.TCPConn

	in *bufio.Reader
}

// dial opens a connection that is closed at the end of the test at the latest.
func dial(t testing.TB, addr string) *wire {
	t.Helper()
	w, err := dialWire(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func dialWire(addr string) (*wire, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	tcp := conn.(*net.TCPConn)
	return &wire{tcp, bufio.NewReader(tcp)}, nil
}

// dialSmall is dial with a receive buffer that is soon full.
func dialSmall(t testing.TB, addr string) *wire {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
		}); e != nil {
			return e
		}
		return err
	}}
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	tcp := conn.(*net.TCPConn)
	return &wire{tcp, bufio.NewReaderSize(tcp, 16)}
}

// post writes a whole request.
func (w *wire) post(path, id string, body []byte) error {
	_, err := fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: router.example\r\nContent-Type: application/json\r\n"+
		"X-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", path, id, len(body), body)
	return err
}

// read reads an answer to its end. A router that never answers is an error.
func (w *wire) read() (*answer, error) {
	_ = w.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(w.in, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	a.body, a.err = io.ReadAll(resp.Body)
	return a, nil
}

// awaitEnd waits until the router has closed the connection. The error is that
// it has not, or that what came looks like a whole answer.
func (w *wire) awaitEnd() error {
	_ = w.SetReadDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(w.in)
	if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // net returns it unwrapped
		return fmt.Errorf("the connection is still open: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(got)), nil)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		return fmt.Errorf("it looks like a whole answer: %s, %q", resp.Status, body)
	}
	return nil
}

// leave goes in one of the ways. After a half-close the connection stays open
// for reading.
func (w *wire) leave(how leave) {
	switch how {
	case leaveRST:
		_ = w.SetLinger(0)
		w.Close()
	case leaveHalf:
		w.CloseWrite()
	default:
		w.Close()
	}
}
