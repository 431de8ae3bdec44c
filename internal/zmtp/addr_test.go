package zmtp

import (
	"math"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestAddresses(t *testing.T) {
	tests := []struct{ in, listen, dial string }{
		{"tcp://*:30001", ":30001", ""},
		{"*:30001", ":30001", ""},
		{"tcp://*:*", ":0", ""},
		{"tcp://:30001", ":30001", ""},
		{"0.0.0.0:30001", "0.0.0.0:30001", "0.0.0.0:30001"},
		{"tcp://[::]:30001", "[::]:30001", "[::]:30001"},
		{"tcp://[fe80::1%eth0]:5", "[fe80::1%eth0]:5", "[fe80::1%eth0]:5"},
		{"tcp://engine-0.svc:5557", "engine-0.svc:5557", "engine-0.svc:5557"},
		{"127.0.0.1:0", "127.0.0.1:0", ""},
		{"127.0.0.1:65535", "127.0.0.1:65535", "127.0.0.1:65535"},
		{"127.0.0.1:65536", "", ""},
		{"127.0.0.1:http", "", ""},
		{"127.0.0.1", "", ""},
		{"::1:5557", "", ""},
		{"ipc:///tmp/x", "", ""},
		{"inproc://x", "", ""},
		{"", "", ""},
	}
	for _, tt := range tests {
		if got, err := listenAddr(tt.in); got != tt.listen || (err == nil) != (tt.listen != "") {
			t.Errorf("listen %q: got %q, %v, want %q", tt.in, got, err, tt.listen)
		}
		if got, err := dialAddr(tt.in); got != tt.dial || (err == nil) != (tt.dial != "") {
			t.Errorf("dial %q: got %q, %v, want %q", tt.in, got, err, tt.dial)
		}
	}
}

func TestAddrPort(t *testing.T) {
	mapped := &net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1"), Port: 5}
	if got, want := addrPort(mapped), netip.MustParseAddrPort("10.0.0.1:5"); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := addrPort(&net.UnixAddr{Name: "x"}); got.IsValid() {
		t.Errorf("got %v, want none", got)
	}
}

func TestBucket(t *testing.T) {
	start := time.Unix(0, 0)
	b := newBucket(10, 3, start)
	take := func(after time.Duration, n int) (got int) {
		for range n {
			if b.take(start.Add(after)) {
				got++
			}
		}
		return got
	}
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {50 * time.Millisecond, 0}, {100 * time.Millisecond, 1}, {time.Hour, 3}} {
		if got := take(step.after, 100); got != step.want {
			t.Errorf("after %v: got %d, want %d", step.after, got, step.want)
		}
	}
	b = newBucket(math.Inf(1), 1, start)
	if got := take(0, 1000); got != 1000 {
		t.Errorf("no limit: got %d, want 1000", got)
	}
}

func TestDefaultBackoff(t *testing.T) {
	for n, want := range []int64{100, 200, 400, 800, 1600, 2000, 2000} {
		if got := defaultBackoff(n).Milliseconds(); got != want {
			t.Errorf("%d failures: got %d ms, want %d", n, got, want)
		}
	}
	if got := defaultBackoff(math.MaxInt); got != 2*time.Second {
		t.Errorf("got %v, want 2s", got)
	}
}
