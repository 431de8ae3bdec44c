package memnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/memnet"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	tests := []struct{ listen, dial, addr string }{
		{"10.0.0.1:80", "10.0.0.1:80", "10.0.0.1:80"},
		{"worker-1:8000", "worker-1:8000", "worker-1:8000"},
		{":8000", "localhost:8000", "127.0.0.1:8000"},
		{"0.0.0.0:8000", "127.0.0.1:8000", "127.0.0.1:8000"},
		{"[::]:8000", "localhost:8000", "127.0.0.1:8000"},
		{"[::ffff:10.0.0.1]:80", "10.0.0.1:80", "10.0.0.1:80"},
		{"[0:0::1]:80", "[::1]:80", "[::1]:80"},
	}
	for _, tt := range tests {
		t.Run(tt.listen, func(t *testing.T) {
			n := new(memnet.Network)
			ln := listen(t, n, tt.listen)
			client := dial(t, n, tt.dial)
			server := accept(t, ln)
			for _, got := range []net.Addr{ln.Addr(), client.RemoteAddr(), server.LocalAddr()} {
				if got.String() != tt.addr || got.Network() != "tcp" {
					t.Errorf("%s %s, want %s", got.Network(), got, tt.addr)
				}
			}
			from := netip.MustParseAddrPort(server.RemoteAddr().String())
			if !from.Addr().IsLoopback() || from.Port() < 1024 {
				t.Errorf("the client dials from %s", from)
			}
			if server.RemoteAddr().String() != client.LocalAddr().String() {
				t.Errorf("the ends disagree: %s, %s", server.RemoteAddr(), client.LocalAddr())
			}
		})
	}
}

func TestFreePorts(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	seen := make(map[string]bool)
	for range 10 {
		addr := listen(t, n, "127.0.0.1:0").Addr().(*net.TCPAddr)
		if addr.Port == 0 || seen[addr.String()] {
			t.Errorf("got %s", addr)
		}
		seen[addr.String()] = true
	}
}

func TestDialFrom(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	ln := listen(t, n, "a:80")
	client, err := n.DialFrom(t.Context(), "192.0.2.9", "tcp", "a:80")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server := accept(t, ln)
	if got := server.RemoteAddr().(*net.TCPAddr).IP.String(); got != "192.0.2.9" {
		t.Errorf("dialed from %s", got)
	}
}

func TestListenErrors(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	ln := listen(t, n, "a:80")
	if _, err := n.Listen("a:80"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener: %v", err)
	}
	for _, addr := range []string{"a", "a:http", "a:99999", "a:80:80"} {
		if _, err := n.Listen(addr); err == nil {
			t.Errorf("listens on %q", addr)
		}
	}
	ln.Close()
	if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the second Close: %v", err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	listen(t, n, "a:80")
}

func TestDialErrors(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name          string
		gone          bool // the context is done
		network, addr string
		want          error
	}{
		{"nobody listens", false, "tcp", "a:80", syscall.ECONNREFUSED},
		{"context is done", true, "tcp", "a:80", context.Canceled},
		{"wrong network", false, "udp", "a:80", net.UnknownNetworkError("udp")},
		{"wrong address", false, "tcp", "a", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			if tt.gone {
				ctx = done
			}
			_, err := n.DialContext(ctx, tt.network, tt.addr)
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
				t.Errorf("%#v", err)
			}
		})
	}
}

func TestListenerCloseResetsQueue(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	ln := listen(t, n, "a:80")
	accepted := dial(t, n, "a:80")
	server := accept(t, ln)
	queued := dial(t, n, "a:80")
	ln.Close()
	if _, err := queued.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection nobody accepted: %v", err)
	}
	write(t, server, "goes on")
	wantRead(t, accepted, "goes on")
	if _, err := n.DialContext(t.Context(), "tcp", "a:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after Close: %v", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	ln := listen(t, n, "a:80")
	other := listen(t, n, "b:80")
	want := func(all, a int) {
		t.Helper()
		if n.Open() != all || n.OpenTo("a:80") != a {
			t.Errorf("%d open, %d to a, want %d, %d", n.Open(), n.OpenTo("a:80"), all, a)
		}
	}
	want(0, 0)
	client := dial(t, n, "a:80")
	want(1, 1)
	server := accept(t, ln)
	dial(t, n, "b:80")
	want(2, 1)
	client.Close()
	want(2, 1)
	server.Close()
	want(1, 0)
	other.Close() // resets the one that was not accepted; its client is still open
	want(1, 0)
}

func TestFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		ln := listen(t, n, "a:80")
		client := dial(t, n, "a:80")
		server := accept(t, ln)
		write(t, server, "sent before")
		n.Freeze("a:80")

		wantRead(t, client, "sent before")
		write(t, client, "question")
		second := dial(t, n, "a:80")
		write(t, second, "hello")
		server.SetReadDeadline(time.Now().Add(time.Second))
		events := make(map[string]time.Duration)
		start := time.Now()
		var mu sync.Mutex
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			events[what] = time.Since(start)
		}
		go func() {
			accept(t, ln)
			note("accept")
		}()
		go func() {
			server.Read(make([]byte, 8))
			note("read")
		}()
		go func() {
			server.Write([]byte("answer"))
			note("write")
		}()
		client.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a frozen server sent: %v", err)
		}
		if len(events) > 0 {
			t.Errorf("a frozen server did %v", events)
		}
		n.Thaw("a:80")
		client.SetReadDeadline(time.Time{})
		wantRead(t, client, "answer")
		synctest.Wait()
		if len(events) != 3 {
			t.Errorf("after Thaw only %v", events)
		}
	})
}

func TestFreezeBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		client, server := pair(t, n, "a:80")
		n.Freeze("a:80")
		client.SetWriteDeadline(time.Now().Add(time.Second))
		sent, err := client.Write(make([]byte, 1<<20))
		if sent != window || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a frozen server took %d, %v", sent, err)
		}
		go server.Read(make([]byte, 1))
		synctest.Wait()
		if err := server.Close(); err != nil { // wakes the read, or the bubble does not end
			t.Error(err)
		}
	})
}

func TestRefuseAndRestore(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	client, server := pair(t, n, "a:80")
	n.Refuse("a:80")
	if _, err := n.DialContext(t.Context(), "tcp", "a:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
	write(t, client, "goes on")
	wantRead(t, server, "goes on")
	n.Restore("a:80")
	dial(t, n, "a:80")
}

func TestBlackhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		listen(t, n, "a:80")
		n.Blackhole("a:80")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		_, err := n.DialContext(ctx, "tcp", "a:80")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Timeout() {
			t.Errorf("%v is no time-out", err)
		}

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err = n.DialContext(ctx, "tcp", "a:80"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}

		time.AfterFunc(time.Second, func() { n.Restore("a:80") })
		start = time.Now()
		dial(t, n, "a:80")
		if time.Since(start) != time.Second {
			t.Errorf("connected after %v", time.Since(start))
		}
	})
}

func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		client, server := pair(t, n, "a:80")
		n.Freeze("a:80")
		var got [2]error
		for i, c := range []*memnet.Conn{client, server} {
			go func() { _, got[i] = c.Read(make([]byte, 1)) }()
		}
		synctest.Wait()
		n.Kill("a:80")
		synctest.Wait()
		_, dialed := n.DialContext(t.Context(), "tcp", "a:80")
		_, wrote := client.Write([]byte("x"))
		if !errors.Is(got[0], syscall.ECONNRESET) || !errors.Is(got[1], syscall.ECONNRESET) ||
			!errors.Is(wrote, syscall.ECONNRESET) || !errors.Is(dialed, syscall.ECONNREFUSED) {
			t.Errorf("reads %v, write %v, dial %v", got, wrote, dialed)
		}

		n.Restore("a:80")
		n.Thaw("a:80")
		again := dial(t, n, "a:80")
		write(t, again, "x")
	})
}

func TestDialStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		ln := listen(t, n, "a:80")
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				wg.Go(func() {
					defer c.Close()
					io.Copy(c, c)
				})
			}
		})
		var clients sync.WaitGroup
		for range 200 {
			clients.Go(func() {
				c := dial(t, n, "a:80")
				write(t, c, "echo")
				c.CloseWrite()
				if got, err := io.ReadAll(c); string(got) != "echo" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
				c.Close()
			})
		}
		clients.Wait()
		ln.Close()
		wg.Wait()
		if n.Open() != 0 {
			t.Errorf("%d connections stay open", n.Open())
		}
	})
}
