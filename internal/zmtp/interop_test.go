//go:build interop

package zmtp_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/zmtp"
)

// patience is for what should happen at once, on a machine that is busy.
const patience = 10 * time.Second

// peer is a process of scripts/zmq-interop/peer.py.
type peer struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

func startPeer(t *testing.T, args ...string) *peer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Getenv("ZMQ_INTEROP_PYTHON"), append([]string{os.Getenv("ZMQ_INTEROP_SCRIPT")}, args...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peer{t, cmd, stdin, make(chan string, 10000)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-read
		cmd.Wait() // killed
	})
	return p
}

func (p *peer) signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

func (p *peer) order(format string, args ...any) {
	fmt.Fprintf(p.stdin, format+"\n", args...)
}

// expect waits for a line and drops those before it.
func (p *peer) expect(want string) {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case got := <-p.lines:
			if got == want {
				return
			}
		case <-timeout:
			p.t.Fatalf("peer did not say %q", want)
		}
	}
}

// said reports whether a line has come already.
func (p *peer) said(line string) bool {
	for {
		select {
		case got := <-p.lines:
			if got == line {
				return true
			}
		default:
			return false
		}
	}
}

func (r *record) dropCount(reason zmtp.Reason) int {
	return r.dropCounts()[reason]
}

func (r *record) heard(message string) (n int) {
	for _, m := range r.got() {
		if m == message {
			n++
		}
	}
	return n
}

func (r *record) lastPeer() zmtp.Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peers[len(r.peers)-1]
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !within(patience, ok) {
		t.Fatalf("timed out: %s", what)
	}
}

// within reports whether ok says yes before the time is over. libzmq runs by the
// real clock.
func within(limit time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return false
		}
	}
	return true
}

// router runs one on addr, and returns where it listens.
func router(t *testing.T, addr string, cfg zmtp.Config) (r *zmtp.Router, rec *record, url string, stop func()) {
	t.Helper()
	rec = &record{}
	if cfg.Handle == nil {
		cfg.Handle = rec.handle
	}
	cfg.Dropped = rec.dropped
	r, err := zmtp.Listen(t.Context(), addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r, rec, "tcp://" + r.Addr().String(), runs(t, r.Run)
}

func noDrops(t *testing.T, rec *record) {
	t.Helper()
	if drops := rec.dropCounts(); drops != nil {
		t.Errorf("dropped %v, want nothing", drops)
	}
}

const anyPort = "127.0.0.1:0"

func TestInterop(t *testing.T) {
	if os.Getenv("ZMQ_INTEROP_PYTHON") == "" {
		t.Skip("run scripts/zmq-interop/run")
	}

	for _, reg := range []struct{ name, identity, payload string }{
		{"p2p", "10.0.0.2:21001", registrationP2P},
		{"mori", "", registrationMoRI},
	} {
		t.Run("registration "+reg.name, func(t *testing.T) {
			_, rec, url, _ := router(t, anyPort, zmtp.Config{})
			startPeer(t, "ping", url, "--payload", reg.name, "--identity", reg.identity, "--period", "0.05")
			want, _ := hex.DecodeString(reg.payload)
			until(t, "five registrations, byte for byte", func() bool { return rec.heard(string(want)) >= 5 })
			if got := rec.lastPeer().Identity; got != reg.identity {
				t.Errorf("got the identity %q, want %q", got, reg.identity)
			}
			noDrops(t, rec)
		})
	}

	t.Run("IPv6", func(t *testing.T) {
		_, rec, url, _ := router(t, "tcp://[::1]:0", zmtp.Config{})
		// libzmq wants its IPv6 option for that, except in a mapped address of a dual-stack listener.
		_, rec2, any6, _ := router(t, "tcp://*:0", zmtp.Config{})
		port := any6[strings.LastIndexByte(any6, ':')+1:]
		startPeer(t, "ping", "tcp://127.0.0.1:"+port)
		until(t, "a message on *", func() bool { return rec2.heard("x") > 0 })
		if got := rec2.lastPeer().Addr.Addr().String(); got != "127.0.0.1" {
			t.Errorf("got the address %s, want it unmapped", got)
		}
		d := zmtp.NewDealer(url, zmtp.DealerConfig{})
		runs(t, d.Run)
		d.Send([]byte("six"))
		until(t, "a message on ::1", func() bool { return rec.heard("six") > 0 })
	})

	t.Run("burst after restart", func(t *testing.T) {
		_, rec, url, stop := router(t, anyPort, zmtp.Config{})
		p := startPeer(t, "client", url, "--identity", "engine")
		p.order("send 1")
		until(t, "the first message", func() bool { return rec.heard("0") == 1 })
		stop()
		p.expect("disconnected")
		p.order("fill")
		p.expect("full")
		_, rec, _, _ = router(t, strings.TrimPrefix(url, "tcp://"), zmtp.Config{})
		// libzmq's queue has room for 1000, less the one it has not yet settled.
		until(t, "999 queued messages", func() bool { return len(rec.got()) == 999 })
		for i, got := range rec.got() {
			if want := strconv.Itoa(i + 1); got != want {
				t.Fatalf("message %d: got %s, want %s", i, got, want)
			}
		}
		noDrops(t, rec)
	})

	t.Run("kill -9 and restart", func(t *testing.T) {
		_, rec, url, _ := router(t, anyPort, zmtp.Config{})
		first := startPeer(t, "ping", url, "--identity", "same", "--payload", "first", "--period", "0.1")
		until(t, "the first process", func() bool { return rec.heard("first") > 0 })
		first.signal(syscall.SIGKILL)
		second := startPeer(t, "ping", url, "--identity", "same", "--payload", "second", "--period", "60")
		second.expect("handshaken")
		start := time.Now()
		until(t, "the second process", func() bool { return rec.heard("second") == 1 })
		t.Logf("heard %v after its handshake", time.Since(start).Round(time.Millisecond))
	})

	t.Run("gone without FIN and restart", func(t *testing.T) {
		r, rec, url, _ := router(t, anyPort, zmtp.Config{})
		first := startPeer(t, "ping", url, "--identity", "same", "--payload", "first", "--period", "0.1")
		until(t, "the first process", func() bool { return rec.heard("first") > 0 })
		first.signal(syscall.SIGSTOP) // its connection stays, and is silent
		second := startPeer(t, "ping", url, "--identity", "same", "--payload", "second", "--period", "60")
		second.expect("handshaken")
		start := time.Now()
		until(t, "the second process", func() bool { return rec.heard("second") == 1 })
		t.Logf("heard %v after its handshake", time.Since(start).Round(time.Millisecond))
		if got := r.Peers(); got != 2 {
			t.Errorf("got %d peers, want the silent one too", got)
		}
		noDrops(t, rec)
	})

	t.Run("one identity twice", func(t *testing.T) {
		_, rec, url, _ := router(t, anyPort, zmtp.Config{})
		for _, payload := range []string{"a", "b"} {
			startPeer(t, "ping", url, "--identity", "same", "--payload", payload, "--period", "0.1")
		}
		until(t, "both", func() bool { return rec.heard("a") > 0 && rec.heard("b") > 0 })
		a, b := rec.heard("a"), rec.heard("b")
		until(t, "both again", func() bool { return rec.heard("a") > a+3 && rec.heard("b") > b+3 })
		noDrops(t, rec)
	})

	t.Run("1000 peers", func(t *testing.T) {
		const count = 1000
		memory := memoryInUse()
		r, rec, url, _ := router(t, anyPort, zmtp.Config{})
		p := startPeer(t, "many", url, "--count", strconv.Itoa(count), "--period", "3")
		p.expect("connected")
		heard := make([]int, count)
		all := within(time.Minute, func() bool {
			if len(rec.got()) < 3*count {
				return false
			}
			clear(heard)
			for _, m := range rec.got() {
				i, err := strconv.Atoi(m)
				if err != nil {
					t.Fatal(err)
				}
				heard[i]++
			}
			return slices.Min(heard) >= 3
		})
		if !all {
			t.Error("not three messages of each")
		}
		if got := r.Peers(); got != count {
			t.Errorf("got %d peers, want %d", got, count)
		}
		if most := slices.Max(heard); most > 5 {
			t.Errorf("a peer was heard %d times while each was heard 3 times", most)
		}
		t.Logf("%d peers, %d messages, %d bytes a peer", count, len(rec.got()), (memoryInUse()-memory)/count)
		noDrops(t, rec)
	})

	t.Run("heartbeats", func(t *testing.T) {
		r, rec, url, _ := router(t, anyPort, zmtp.Config{})
		p := startPeer(t, "client", url, "--heartbeat", "100")
		p.expect("handshaken")
		const long = 2 * time.Second // four times its patience
		if within(long, func() bool { return p.said("disconnected") || r.Peers() != 1 }) {
			t.Error("the peer missed our PONG")
		}
		noDrops(t, rec)
	})

	for socket, want := range map[string]string{"dealer": "|question", "req": "question", "router": ""} {
		t.Run("answer to "+socket, func(t *testing.T) {
			var r *zmtp.Router
			ready := make(chan struct{})
			r, _, url, _ := router(t, anyPort, zmtp.Config{Handle: func(m zmtp.Message) {
				<-ready
				if err := r.Send(m.Peer, []byte{}, m.Frames[len(m.Frames)-1]); err != nil {
					t.Error(err)
				}
			}})
			close(ready)
			p := startPeer(t, "client", url, "--type", socket)
			p.expect("handshaken")
			if socket == "router" {
				return // it may connect; it sends only to identities
			}
			p.order("ask")
			p.expect(want)
		})
	}

	t.Run("frame too large", func(t *testing.T) {
		_, rec, url, _ := router(t, anyPort, zmtp.Config{})
		bad, good := startPeer(t, "client", url), startPeer(t, "client", url)
		bad.expect("handshaken")
		good.expect("handshaken")
		bad.order("big %d", 64<<10)
		until(t, "64 KiB", func() bool { return len(rec.got()) == 1 })
		bad.order("big %d", 64<<10+1)
		bad.expect("disconnected")
		until(t, "the reason", func() bool { return rec.dropCount(zmtp.ReasonFrameSize) == 1 })
		good.order("send 1")
		until(t, "the other peer", func() bool { return rec.heard("0") == 1 })
		bad.expect("handshaken") // libzmq connects again
		bad.order("send 1")
		until(t, "the same peer again", func() bool { return rec.heard("0") == 2 })
	})

	for _, bad := range []struct {
		name string
		args []string
		want zmtp.Reason
	}{
		{"PUSH", []string{"--type", "push"}, zmtp.ReasonSocketType},
		{"SUB", []string{"--type", "sub"}, zmtp.ReasonSocketType},
		{"PLAIN", []string{"--plain"}, zmtp.ReasonMechanism},
	} {
		t.Run("refused "+bad.name, func(t *testing.T) {
			_, rec, url, _ := router(t, anyPort, zmtp.Config{})
			startPeer(t, append([]string{"client", url}, bad.args...)...)
			until(t, "the reason", func() bool {
				if bad.name == "PLAIN" && rec.dropCount(zmtp.ReasonTruncated)+rec.dropCount(zmtp.ReasonSilent) > 0 {
					return true // libzmq saw the mismatch first, and left
				}
				return rec.dropCount(bad.want) > 0
			})
			t.Logf("%v", rec.dropCounts())
		})
	}

	for _, identity := range []string{"", "baton"} {
		t.Run("DEALER to ROUTER "+identity, func(t *testing.T) {
			const count = 5000
			url := freeAddr(t)
			p := startPeer(t, "replay", url, "--count", strconv.Itoa(count), "--heartbeat", "100")
			p.expect("bound")
			got := make(chan []string, 2*count)
			d := zmtp.NewDealer(url, zmtp.DealerConfig{Identity: identity, Handle: func(m zmtp.Message) {
				var frames []string
				for _, f := range m.Frames {
					frames = append(frames, string(f))
				}
				got <- frames
			}})
			runs(t, d.Run)
			d.Send(nil, []byte{0, 0, 0, 0, 0, 0, 0, 0})
			// libzmq's ROUTER drops what a peer does not read in time (1000 messages), so some may be missing.
			n, last := 0, -1
			for timeout := time.After(patience); ; n++ {
				var m []string
				select {
				case m = <-got:
				case <-timeout:
					t.Fatalf("no end mark after %d batches", n)
				}
				if slices.Equal(m, []string{"", "", strings.Repeat("\xff", 8), ""}) {
					break
				}
				if len(m) != 4 || m[0] != "" || m[1] != "kv@topic" {
					t.Fatalf("got %q", m)
				}
				i, err := strconv.Atoi(strings.TrimPrefix(m[3], "payload "))
				if err != nil || i <= last || m[2] != string([]byte{0, 0, 0, 0, 0, 0, byte(i >> 8), byte(i)}) {
					t.Fatalf("got %q after %d", m, last)
				}
				last = i
			}
			t.Logf("%d of %d batches", n, count)
			if n < 1000 {
				t.Errorf("got %d batches, want 1000 or more", n)
			}
			if identity != "" {
				p.expect("asked " + hex.EncodeToString([]byte(identity)) + " - 0000000000000000")
			}
		})
	}

	t.Run("DEALER outlives ROUTER", func(t *testing.T) {
		url := freeAddr(t)
		lost := make(chan error, 100)
		connected := make(chan zmtp.Peer, 10)
		d := zmtp.NewDealer(url, zmtp.DealerConfig{
			Identity: "d", Lost: func(err error) { lost <- err }, Connected: func(p zmtp.Peer) { connected <- p },
		})
		runs(t, d.Run)
		d.Send([]byte("before")) // queued: nobody listens
		for round := range 2 {
			p := startPeer(t, "replay", url)
			p.expect("bound")
			<-connected
			if round == 0 {
				p.expect("asked 64 " + hex.EncodeToString([]byte("before")))
			} else {
				p.expect("asked 64 " + hex.EncodeToString([]byte("between")))
			}
			for len(lost) > 0 {
				<-lost
			}
			p.signal(syscall.SIGKILL)
			<-lost
			d.Send([]byte("between"))
		}
	})
}

// memoryInUse counts heap and stacks.
func memoryInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// freeAddr returns an address of loopback where nobody listens.
func freeAddr(t *testing.T) string {
	_, _, url, stop := router(t, anyPort, zmtp.Config{})
	stop()
	return url
}
