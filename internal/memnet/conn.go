package memnet

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window is how many bytes one direction of a connection holds before a writer
// has to wait for the reader.
const window = 64 << 10

// link is one connection: two ends and what is on its way between them.
type link struct {
	host *host // of the listener that was dialed

	mu      sync.Mutex // guards all below; never held while waiting
	changed changed
	ends    [2]end
	cut     bool // by Network.Sever: both ends fail, even a frozen one
}

// end is the state of one end of a link.
type end struct {
	in            bytes.Buffer // written by the other end, not yet read by this one
	closed        bool
	shut          bool // no more writes: CloseWrite or Close
	reset         bool // by the other end
	writing       bool // a Write is under way; others wait their turn
	readDeadline  time.Time
	writeDeadline time.Time
}

// Conn is one end of a connection.
type Conn struct {
	link   *link
	me     *end
	peer   *end
	server bool // the accepted end: it stops while its host is frozen
	local  net.Addr
	remote net.Addr
}

var _ net.Conn = (*Conn)(nil)

// newLink returns both ends of a new connection to h, the dialing end first.
func newLink(h *host, client, server net.Addr) (dialed, accepted *Conn) {
	l := &link{host: h}
	dialed = &Conn{link: l, me: &l.ends[0], peer: &l.ends[1], local: client, remote: server}
	accepted = &Conn{link: l, me: &l.ends[1], peer: &l.ends[0], server: true, local: server, remote: client}
	return dialed, accepted
}

// Read waits for bytes, the end of the stream, an error or the deadline. What
// was sent before the other end closed is delivered first; what was sent before
// a reset is lost.
func (c *Conn) Read(b []byte) (int, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case c.me.closed:
			return 0, c.opError("read", net.ErrClosed)
		case l.cut:
			return 0, c.opError("read", syscall.ECONNRESET)
		case c.stopped():
		case expired(c.me.readDeadline):
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case c.me.reset:
			return 0, c.opError("read", syscall.ECONNRESET)
		case len(b) == 0:
			return 0, nil
		case c.me.in.Len() > 0:
			n, _ := c.me.in.Read(b) // a buffer that is not empty has no error
			l.changed.raise()
			return n, nil
		case c.peer.shut:
			return 0, io.EOF
		}
		c.wait(c.me.readDeadline)
	}
}

// Write returns when all of b is in the buffer of the other end, or with the
// number of bytes that are. Concurrent writes do not mix.
func (c *Conn) Write(b []byte) (int, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := false
	defer func() {
		if mine {
			c.me.writing = false
			l.changed.raise()
		}
	}()
	sent := 0
	for {
		switch {
		case c.me.closed:
			return sent, c.opError("write", net.ErrClosed)
		case l.cut:
			return sent, c.opError("write", syscall.ECONNRESET)
		case c.stopped():
		case expired(c.me.writeDeadline):
			return sent, c.opError("write", os.ErrDeadlineExceeded)
		case c.me.reset:
			return sent, c.opError("write", syscall.ECONNRESET)
		case c.me.shut, c.peer.closed:
			return sent, c.opError("write", syscall.EPIPE)
		case c.me.writing && !mine:
		default:
			mine, c.me.writing = true, true
			n := min(len(b)-sent, window-c.peer.in.Len())
			c.peer.in.Write(b[sent : sent+n])
			sent += n
			if n > 0 {
				l.changed.raise()
			}
			if sent == len(b) {
				return sent, nil
			}
		}
		c.wait(c.me.writeDeadline)
	}
}

// stopped reports whether this end's process is frozen. It then neither reads
// nor writes, and no deadline of its own passes for it.
func (c *Conn) stopped() bool { return c.server && c.link.host.frozen.Load() }

// wait waits for a change of the link's state. The caller holds link.mu.
func (c *Conn) wait(deadline time.Time) {
	if c.stopped() {
		deadline = time.Time{}
	}
	c.link.changed.wait(&c.link.mu, deadline)
}

// Close ends both directions. The other end reads what was sent, then io.EOF;
// its writes fail.
func (c *Conn) Close() error { return c.close(false) }

// Reset closes c as an RST does: the other end's next read and write fail with
// ECONNRESET, and what it has not read yet is lost.
func (c *Conn) Reset() error { return c.close(true) }

func (c *Conn) close(reset bool) error {
	l := c.link
	l.mu.Lock()
	if c.me.closed {
		l.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.me.closed, c.me.shut = true, true
	c.me.in = bytes.Buffer{}
	if reset {
		c.peer.reset = true
		c.peer.in = bytes.Buffer{}
	}
	l.changed.raise()
	last := c.peer.closed
	l.mu.Unlock()
	if last {
		l.host.forget(l)
	}
	return nil
}

// CloseWrite ends the direction from c: the other end reads what was sent, then
// io.EOF. Reads go on.
func (c *Conn) CloseWrite() error {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.me.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.me.shut = true
	l.changed.raise()
	return nil
}

// sever breaks the connection for both ends.
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	l.changed.raise()
}

// wake makes both ends look at their host anew.
func (l *link) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed.raise()
}

// LocalAddr returns the address of this end.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.me.readDeadline, &c.me.writeDeadline)
}

// SetReadDeadline sets the time at which reads fail, those under way included.
// Zero means never.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.me.readDeadline)
}

// SetWriteDeadline is SetReadDeadline for writes.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadlines(t, &c.me.writeDeadline)
}

func (c *Conn) setDeadlines(t time.Time, deadlines ...*time.Time) error {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.me.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, d := range deadlines {
		*d = t
	}
	l.changed.raise()
	return nil
}

func expired(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

// opError wraps err as package net does.
func (c *Conn) opError(op string, err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}
