package memnet_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/memnet"
)

const window = 64 << 10

func TestBytesArriveBothWays(t *testing.T) {
	t.Parallel()
	client, server := pair(t, new(memnet.Network), "a:80")
	write(t, client, "ping")
	write(t, client, "pong")
	wantRead(t, server, "pingpong")
	write(t, server, "back")
	wantRead(t, client, "back")
}

func TestBigTransfer(t *testing.T) {
	t.Parallel()
	client, server := pair(t, new(memnet.Network), "a:80")
	sent := make([]byte, 5<<20+123)
	for i := range sent {
		sent[i] = byte(i * i >> 7)
	}
	for _, way := range []struct{ from, to *memnet.Conn }{{client, server}, {server, client}} {
		var wg sync.WaitGroup
		wg.Go(func() {
			if n, err := io.Copy(way.from, bytes.NewReader(sent)); err != nil || n != int64(len(sent)) {
				t.Errorf("sent %d, %v", n, err)
			}
			way.from.CloseWrite()
		})
		hash := sha256.New()
		if n, err := io.Copy(hash, way.to); err != nil || n != int64(len(sent)) {
			t.Errorf("received %d, %v, want %d", n, err, len(sent))
		}
		wg.Wait()
		if want := sha256.Sum256(sent); !bytes.Equal(hash.Sum(nil), want[:]) {
			t.Error("what arrived is not what was sent")
		}
	}
}

func TestWriteWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		write(t, client, string(make([]byte, window)))
		done := false
		go func() {
			write(t, client, "x")
			done = true
		}()
		synctest.Wait()
		if done {
			t.Fatal("a write into a full buffer returned")
		}
		wantRead(t, server, string(make([]byte, 1)))
		synctest.Wait()
		if !done {
			t.Fatal("a write waits although there is room")
		}
	})
}

func TestConcurrentWritesDoNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		const writers, size = 8, 3 * window / 2
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for range 3 {
					client.Write(bytes.Repeat([]byte{byte('a' + i)}, size))
				}
			})
		}
		go func() {
			wg.Wait()
			client.CloseWrite()
		}()
		// Each piece that is read is room that all writers wait for.
		var got []byte
		piece := make([]byte, window/16)
		for {
			synctest.Wait()
			n, err := server.Read(piece)
			got = append(got, piece[:n]...)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != writers*3*size {
			t.Fatalf("read %d bytes", len(got))
		}
		for part := range len(got) / size {
			piece := got[part*size : (part+1)*size]
			if !bytes.Equal(piece, bytes.Repeat(piece[:1], size)) {
				t.Fatalf("write %d is mixed with another", part)
			}
		}
	})
}

func TestDeadlines(t *testing.T) {
	read := func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }
	fill := func(c net.Conn) error { _, err := c.Write(make([]byte, 2*window)); return err }
	tests := []struct {
		name string
		set  func(net.Conn, time.Time) error
		do   func(net.Conn) error
	}{
		{"read", net.Conn.SetReadDeadline, read},
		{"write", net.Conn.SetWriteDeadline, fill},
		{"both, read", net.Conn.SetDeadline, read},
		{"both, write", net.Conn.SetDeadline, fill},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _ := pair(t, new(memnet.Network), "a:80")
				start := time.Now()
				if err := tt.set(c, start.Add(3*time.Second)); err != nil {
					t.Fatal(err)
				}
				for range 2 { // at the deadline and after it
					err := tt.do(c)
					ne, ok := errors.AsType[net.Error](err)
					if !errors.Is(err, os.ErrDeadlineExceeded) || !ok || !ne.Timeout() {
						t.Errorf("got %v, want a time-out", err)
					}
				}
				if since := time.Since(start); since != 3*time.Second {
					t.Errorf("timed out after %v", since)
				}
			})
		})
	}
}

func TestDeadlinesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		client.SetReadDeadline(time.Now())
		write(t, client, "x")
		wantRead(t, server, "x")
		server.SetWriteDeadline(time.Now())
		client.SetReadDeadline(time.Time{})
		write(t, client, "y")
		wantRead(t, server, "y")
	})
}

func TestDeadlineOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		write(t, server, "x")
		client.SetReadDeadline(time.Now().Add(-time.Second))
		n, err := client.Read(make([]byte, 1))
		ne, ok := errors.AsType[net.Error](err)
		if n != 0 || !ok || !ne.Timeout() {
			t.Errorf("a deadline that has passed lets through: %d, %v", n, err)
		}
		client.SetReadDeadline(time.Time{})
		wantRead(t, client, "x")
	})
}

// TestDeadlineAbortsRead is what net/http's server does to end its background
// read.
func TestDeadlineAbortsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		var err error
		go func() { _, err = client.Read(make([]byte, 1)) }()
		synctest.Wait()
		client.SetReadDeadline(time.Unix(1, 0))
		synctest.Wait()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a read under way ended with %v", err)
		}
		client.SetReadDeadline(time.Time{})
		write(t, server, "more")
		wantRead(t, client, "more")
	})
}

func TestDeadlineMovedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := pair(t, new(memnet.Network), "a:80")
		start := time.Now()
		client.SetReadDeadline(start.Add(time.Second))
		time.AfterFunc(time.Second/2, func() { client.SetReadDeadline(start.Add(time.Minute)) })
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestPartialWriteAtDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		client.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := client.Write(make([]byte, window+5))
		if n != window || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("wrote %d, %v, want %d and a time-out", n, err, window)
		}
		client.SetWriteDeadline(time.Time{})
		client.CloseWrite()
		if got, err := io.ReadAll(server); len(got) != window || err != nil {
			t.Errorf("%d bytes arrived, %v", len(got), err)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		write(t, client, "last words")
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(server); string(got) != "last words" || err != nil {
			t.Errorf("the other end read %q, %v", got, err)
		}
		if _, err := server.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("the other end wrote: %v, want a broken pipe", err)
		}
		_, read := client.Read(make([]byte, 1))
		_, wrote := client.Write([]byte("x"))
		for _, err := range []error{read, wrote, client.Close(), client.CloseWrite(), client.Reset(), client.SetDeadline(time.Time{})} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("on a closed connection: %v", err)
			}
		}
	})
}

func TestCloseWakes(t *testing.T) {
	tests := []struct {
		name                  string
		end                   func(client, server *memnet.Conn) error
		reads, writes         error // what the client gets
		peerReads, peerWrites error // what the server gets
	}{
		{"close", func(c, _ *memnet.Conn) error { return c.Close() }, net.ErrClosed, net.ErrClosed, nil, syscall.EPIPE},
		{"closed by peer", func(_, s *memnet.Conn) error { return s.Close() }, nil, syscall.EPIPE, net.ErrClosed, net.ErrClosed},
		{"reset", func(c, _ *memnet.Conn) error { return c.Reset() }, net.ErrClosed, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNRESET},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(memnet.Network)
				ln := listen(t, n, "a:80")
				type results struct{ reads, writes, peerReads, peerWrites error }
				var got results
				// Two connections: one with empty buffers to read from, one
				// with full buffers to write to.
				c1, c2 := dial(t, n, "a:80"), dial(t, n, "a:80")
				s1, s2 := accept(t, ln), accept(t, ln)
				drain := func(c io.Reader, err *error) { _, *err = c.Read(make([]byte, 1)) }
				fill := func(c io.Writer, err *error) { _, *err = c.Write(make([]byte, 2*window)) }
				go drain(c1, &got.reads)
				go drain(s1, &got.peerReads)
				go fill(c2, &got.writes)
				go fill(s2, &got.peerWrites)
				synctest.Wait()
				if got != (results{}) {
					t.Fatalf("did not wait: %+v", got)
				}
				if err := errors.Join(tt.end(c1, s1), tt.end(c2, s2)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				check := func(name string, got, want error) {
					if want == nil {
						want = io.EOF
					}
					if !errors.Is(got, want) {
						t.Errorf("%s: %v, want %v", name, got, want)
					}
				}
				check("read", got.reads, tt.reads)
				check("write", got.writes, tt.writes)
				check("peer's read", got.peerReads, tt.peerReads)
				check("peer's write", got.peerWrites, tt.peerWrites)
			})
		})
	}
}

func TestHalfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		write(t, client, "question")
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(server); string(got) != "question" || err != nil {
			t.Fatalf("read %q, %v", got, err)
		}
		if _, err := client.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a write after CloseWrite: %v", err)
		}
		write(t, server, "answer")
		server.Close()
		if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
			t.Errorf("the open direction brought %q, %v", got, err)
		}
	})
}

func TestResetLosesBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t, new(memnet.Network), "a:80")
		write(t, client, "lost")
		client.Reset()
		for range 2 {
			if n, err := server.Read(make([]byte, 4)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read %d, %v, want a reset", n, err)
			}
			if _, err := server.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("wrote: %v, want a reset", err)
			}
		}
	})
}

func TestErrorsNameBothEnds(t *testing.T) {
	t.Parallel()
	n := new(memnet.Network)
	client, server := pair(t, n, "10.0.0.7:8000")
	client.Reset()
	_, err := server.Read(make([]byte, 1))
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "read" || op.Source.String() != "10.0.0.7:8000" || op.Addr != client.LocalAddr() {
		t.Errorf("%#v", err)
	}
	if _, ok := errors.AsType[*os.SyscallError](err); !ok {
		t.Errorf("%v is no system call's error", err)
	}
}

// TestConcurrentMethods is for the race detector.
func TestConcurrentMethods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		client, server := pair(t, n, "a:80")
		var wg sync.WaitGroup
		for range 20 {
			for _, c := range []*memnet.Conn{client, server} {
				wg.Go(func() { c.Read(make([]byte, 1024)) })
				wg.Go(func() { c.Write(make([]byte, 1024)) })
				wg.Go(func() { c.SetDeadline(time.Now().Add(10 * time.Millisecond)) })
				wg.Go(func() { c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) })
				wg.Go(func() { c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) })
				wg.Go(func() { c.LocalAddr(); c.RemoteAddr() })
				wg.Go(func() { n.Freeze("a:80"); n.Thaw("a:80"); n.Open() })
			}
		}
		wg.Wait()
	})
}
