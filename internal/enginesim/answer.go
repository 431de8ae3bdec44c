package enginesim

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// header sends the head of the answer.
func (c *call) header(status int) {
	c.note(func(r *Record) { r.Status = status })
	c.w.WriteHeader(status)
}

// send sends a plain answer as it is.
func (c *call) send(status int, body []byte) {
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.header(status)
	_ = c.push(body) // nothing follows
}

func (c *call) flush() { _ = http.NewResponseController(c.w).Flush() }

// answer sends a plain answer, meeting the faults on its way.
func (c *call) answer(status int, contentType string, body []byte) error {
	if err := c.point(pointHeaders, nil); err != nil {
		return err
	}
	h := c.w.Header()
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if c.gzips() {
		h.Set("Content-Encoding", "gzip")
		body = c.squeeze(body)
		c.gz = nil
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.header(status)
	for {
		at := c.nextPoint(len(body))
		if at < 0 {
			return c.push(body[c.sent:])
		}
		if at > c.sent {
			if err := c.push(body[c.sent:at]); err != nil {
				return err
			}
			c.sent = at
		}
		c.flush()
		var inj injection
		if err := c.point(at, body[at:]); err != nil && !errors.As(err, &inj) {
			return err
		}
	}
}

// nextPoint returns the next place, of n bytes, where a fault waits, or -1.
func (c *call) nextPoint(n int) int {
	at := -1
	for _, f := range c.faults {
		if !f.fired && !f.form && f.point >= c.sent && f.point <= n && (at < 0 || f.point < at) {
			at = f.point
		}
	}
	return at
}

// json answers 200 with v.
func (c *call) json(v any) error { return c.answer(http.StatusOK, "application/json", encode(v)) }

// refuse answers with an error object.
func (c *call) refuse(e *apiError) error {
	body := e.body()
	if strings.HasPrefix(c.r.URL.Path, "/v1/messages") {
		body = e.anthropic()
	}
	return c.answer(e.status, "application/json", body)
}

// startStream sends the head of a stream, before anything is computed.
func (c *call) startStream() error {
	if err := c.point(pointHeaders, nil); err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	if c.gzips() {
		h.Set("Content-Encoding", "gzip")
		c.gz = gzip.NewWriter(&c.gzOut)
	}
	c.header(http.StatusOK)
	c.flush()
	return nil
}

// event sends one event of a stream, meeting the faults on its way.
func (c *call) event(b []byte) error {
	if c.form("crlf") != nil {
		b = bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))
	}
	if err := c.point(c.sent, b); err != nil {
		return err
	}
	if err := c.alive(); errors.Is(err, errGone) {
		return err
	}
	c.sent++
	c.note(func(r *Record) { r.Events++ })
	return c.push(b)
}

// endStream ends the coding of a stream.
func (c *call) endStream() {
	if c.gz != nil {
		_ = c.gz.Close() // into memory
		_, _ = c.w.Write(c.gzOut.Bytes())
		c.gz = nil
	}
}

func (c *call) gzips() bool {
	f := c.form("gzip")
	return f != nil && (f.Force || strings.Contains(c.r.Header.Get("Accept-Encoding"), "gzip"))
}

func (c *call) squeeze(body []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(body) // into memory
	_ = z.Close()
	return b.Bytes()
}

// push writes and flushes.
func (c *call) push(b []byte) error {
	if !c.first && len(b) > 0 {
		c.first = true
		c.note(func(r *Record) { r.FirstByte = time.Now() })
	}
	if c.gz != nil {
		_, _ = c.gz.Write(b) // into memory
		_ = c.gz.Flush()
		b = bytes.Clone(c.gzOut.Bytes())
		c.gzOut.Reset()
	}
	step := len(b)
	if c.form("bytes") != nil {
		step = 1
	}
	for len(b) > 0 {
		if _, err := c.w.Write(b[:step]); err != nil {
			return errGone
		}
		c.flush()
		b = b[step:]
	}
	return nil
}
