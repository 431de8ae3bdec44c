package memnet_test

import (
	"io"
	"net"
	"testing"

	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns a new connection's dialing and accepted end, both closed when
// the test ends.
func pair(t *testing.T, n *memnet.Network, addr string) (client, server *memnet.Conn) {
	t.Helper()
	ln := listen(t, n, addr)
	client = dial(t, n, ln.Addr().String())
	return client, accept(t, ln)
}

func listen(t *testing.T, n *memnet.Network, addr string) net.Listener {
	t.Helper()
	ln, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func dial(t *testing.T, n *memnet.Network, addr string) *memnet.Conn {
	t.Helper()
	c, err := n.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*memnet.Conn)
}

func accept(t *testing.T, ln net.Listener) *memnet.Conn {
	t.Helper()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*memnet.Conn)
}

func write(t *testing.T, w io.Writer, s string) {
	t.Helper()
	if n, err := io.WriteString(w, s); err != nil || n != len(s) {
		t.Fatalf("write %q: %d, %v", s, n, err)
	}
}

func wantRead(t *testing.T, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}
