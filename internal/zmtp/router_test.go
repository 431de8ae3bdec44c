package zmtp_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/zmtp"
)

// Registrations as the engines send them: P2P NCCL (63 bytes) and MoRI-IO (128 bytes).
const (
	registrationP2P = "83a474797065a150ac687474705f61646472657373ae31302e302e302e323a32" +
		"30303031ab7a6d715f61646472657373ae31302e302e302e323a3231303031"
	registrationMoRI = "86a474797065a144ac687474705f61646472657373ad31302e302e302e333a38" +
		"323030ab7a6d715f61646472657373d929686f73743a31302e302e302e332c68" +
		"616e647368616b653a373330312c6e6f746966793a3632303035a764705f7369" +
		"7a6501a774705f73697a6508ad7472616e736665725f6d6f6465a55752495445"
)

// TestRegistrations sends them over a real connection, from a peer with an identity and one without.
func TestRegistrations(t *testing.T) {
	tests := []struct{ name, identity, payload string }{
		{"P2P NCCL", "10.0.0.2:21001", registrationP2P},
		{"MoRI-IO", "", registrationMoRI},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			payload, err := hex.DecodeString(tt.payload)
			if err != nil {
				t.Fatal(err)
			}
			type heard struct {
				peer   zmtp.Peer
				frames []string
			}
			got := make(chan heard)
			r, err := zmtp.Listen(t.Context(), "tcp://127.0.0.1:0", zmtp.Config{Handle: func(m zmtp.Message) {
				h := heard{peer: m.Peer}
				for _, f := range m.Frames {
					h.frames = append(h.frames, string(f))
				}
				got <- h
			}})
			if err != nil {
				t.Fatal(err)
			}
			runs(t, r.Run)
			d := zmtp.NewDealer("tcp://"+r.Addr().String(), zmtp.DealerConfig{Identity: tt.identity})
			runs(t, d.Run)
			if err := d.Send(payload); err != nil {
				t.Fatal(err)
			}
			h := <-got
			if diff := cmp.Diff([]string{string(payload)}, h.frames); diff != "" {
				t.Error(diff)
			}
			if h.peer.Identity != tt.identity || h.peer.Serial == 0 || h.peer.Addr.Addr() != netip.MustParseAddr("127.0.0.1") {
				t.Errorf("got the peer %v", h.peer)
			}
		})
	}
}

func TestListenErrors(t *testing.T) {
	r, err := zmtp.Listen(t.Context(), "127.0.0.1:0", zmtp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	runs(t, r.Run)
	for _, addr := range []string{r.Addr().String(), "ipc:///tmp/x", "127.0.0.1"} {
		if _, err := zmtp.Listen(t.Context(), addr, zmtp.Config{}); err == nil {
			t.Errorf("listen on %s: got no error", addr)
		}
	}
	bad := []zmtp.Config{
		{MaxPeers: -1},
		{Rate: math.NaN()},
		{Limits: zmtp.Limits{MaxFrame: -1}},
		{Limits: zmtp.Limits{IdleTimeout: -1}},
	}
	for _, cfg := range bad {
		if _, err := zmtp.Listen(t.Context(), "127.0.0.1:0", cfg); err == nil {
			t.Errorf("%+v: got no error", cfg)
		}
		var n network
		if err := zmtp.NewRouter(n.listen(), cfg).Run(t.Context()); err == nil {
			t.Errorf("%+v: Run: got no error", cfg)
		}
	}
}

func TestRunTwice(t *testing.T) {
	var n network
	r, _, stop := serve(t, n.listen(), zmtp.Config{})
	stop()
	if err := r.Run(t.Context()); err == nil {
		t.Error("second Run: got no error")
	}
}

// TestHostile: what no ZMTP peer of ours would send costs the sender its connection, with a reason, and nobody else
// anything.
func TestHostile(t *testing.T) {
	long := strings.Repeat("x", 256)
	tests := []struct {
		name string
		say  string
		end  bool // the peer closes afterwards
		want zmtp.Reason
	}{
		{"HTTP", "GET /health HTTP/1.1\r\nHost: x\r\n\r\n", false, zmtp.ReasonNotZMTP},
		{"ZMTP 1.0", "\x01\x00", false, zmtp.ReasonNotZMTP},
		{"ZMTP 2.0", "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x05\x00\x00", false, zmtp.ReasonVersion},
		{"PLAIN", strings.Replace(greeting(1), "NULL\x00", "PLAIN", 1), false, zmtp.ReasonMechanism},
		{"CURVE", strings.Replace(greeting(1), "NULL\x00", "CURVE", 1), false, zmtp.ReasonMechanism},
		{"SUB", greeting(1) + ready("SUB", ""), false, zmtp.ReasonSocketType},
		{"no socket type", greeting(1) + "\x04\x06\x05READY", false, zmtp.ReasonSocketType},
		{"identity of 256 bytes", greeting(1) + ready("DEALER", long), false, zmtp.ReasonIdentity},
		{"no READY", greeting(1) + "\x00\x02hi", false, zmtp.ReasonMalformed},
		{"ERROR for READY", greeting(1) + "\x04\x09\x05ERROR\x02no", false, zmtp.ReasonPeerError},
		{"READY of 2^63 bytes", greeting(1) + "\x06\x80\x00\x00\x00\x00\x00\x00\x00", false, zmtp.ReasonFrameSize},
		{"frame of 2^63 bytes", hello(1) + "\x02\x80\x00\x00\x00\x00\x00\x00\x00", false, zmtp.ReasonFrameSize},
		{"frame of 2^64-1 bytes", hello(1) + "\x03\xff\xff\xff\xff\xff\xff\xff\xff", false, zmtp.ReasonFrameSize},
		{"frame above 64 KiB", hello(1) + "\x02\x00\x00\x00\x00\x00\x01\x00\x01", false, zmtp.ReasonFrameSize},
		{"endless message", hello(1) + strings.Repeat("\x01\x00", 100), false, zmtp.ReasonFrameCount},
		{"message of several large frames", hello(1) + strings.Repeat("\x03\x00\x00\x00\x00\x00\x00\x90\x00"+strings.Repeat("x", 0x9000), 2), false, zmtp.ReasonMessageSize},
		{"flag bits", hello(1) + "\xf8\x00", false, zmtp.ReasonMalformed},
		{"command without a name", hello(1) + "\x04\x00", false, zmtp.ReasonMalformed},
		{"PING too short", hello(1) + "\x04\x05\x04PING", false, zmtp.ReasonMalformed},
		{"ERROR", hello(1) + "\x04\x09\x05ERROR\x02no", false, zmtp.ReasonPeerError},
		{"endless commands", hello(1) + strings.Repeat("\x04\x02\x01X", 5000), false, zmtp.ReasonCommands},
		{"endless PINGs", hello(1) + strings.Repeat("\x04\x07\x04PING\x00\x00", 5000), false, zmtp.ReasonCommands},
		{"gone in the greeting", greeting(1)[:20], true, zmtp.ReasonTruncated},
		{"gone before READY", greeting(1), true, zmtp.ReasonTruncated},
		{"gone in a frame", hello(1) + "\x00\x05hal", true, zmtp.ReasonTruncated},
		{"gone in a message", hello(1) + "\x01\x01a", true, zmtp.ReasonTruncated},
		{"gone between messages", hello(1) + "\x00\x01a", true, 0},
		{"port probe", "", true, zmtp.ReasonSilent},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n network
				r, rec, _ := serve(t, n.listen(), zmtp.Config{})
				good := dialRaw(t, &n)
				good.say(hello(1))

				bad := dialRaw(t, &n)
				bad.say(tt.say)
				synctest.Wait()
				if tt.end {
					bad.Close()
					synctest.Wait()
				} else if !bad.closed() {
					t.Error("the connection is still open")
				}
				want := map[zmtp.Reason]int{tt.want: 1}
				if tt.want == 0 {
					want = nil
				}
				if diff := cmp.Diff(want, rec.dropCounts()); diff != "" {
					t.Error(diff)
				}
				if got := r.Peers(); got != 1 {
					t.Errorf("got %d peers left, want 1", got)
				}
				good.say("\x00\x05alive")
				synctest.Wait()
				if got := rec.got(); !slices.Contains(got, "alive") {
					t.Errorf("the other peer was not heard: got %q", got)
				}
			})
		})
	}
}

// TestGreetsFirst: our whole greeting comes before the peer has said anything, READY only after its greeting.
func TestGreetsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		serve(t, n.listen(), zmtp.Config{})
		p := dialRaw(t, &n)
		synctest.Wait()
		if got := p.heard(); len(got) != 64 || got[:12] != "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01" {
			t.Fatalf("before a word: got %q, want a greeting", got)
		}
		for _, part := range []string{greeting(1)[:10], greeting(1)[10:11], greeting(1)[11:]} {
			if got := len(p.heard()); got != 64 {
				t.Errorf("got %d bytes before the greeting was over, want 64", got)
			}
			p.say(part)
			synctest.Wait()
		}
		if got, want := p.heard()[64:], ready("ROUTER", ""); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestPing(t *testing.T) {
	for minor, want := range []string{"", "\x04\x08\x04PONGctx"} {
		t.Run(fmt.Sprintf("3.%d", minor), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n network
				_, rec, _ := serve(t, n.listen(), zmtp.Config{})
				p := dialRaw(t, &n)
				p.say(hello(byte(minor)))
				p.say("\x04\x0a\x04PING\x00\x64ctx") // between messages
				p.say("\x04\x0a\x07UNKNOWN\x00\x00\x01\x03one\x04\x02\x01X\x00\x03two")
				synctest.Wait()
				if got := p.heard()[64+len(ready("ROUTER", "")):]; got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				if diff := cmp.Diff([]string{"one|two"}, rec.got()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestHandshakeTimeout: bytes that trickle in do not stretch it.
func TestHandshakeTimeout(t *testing.T) {
	for name, say := range map[string]string{
		"silent":            "",
		"greeting trickles": greeting(1),
		"READY trickles":    hello(1)[64:],
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n network
				_, rec, _ := serve(t, n.listen(), zmtp.Config{})
				p := dialRaw(t, &n)
				if name == "READY trickles" {
					p.say(greeting(1))
				}
				start := time.Now()
				for i := 0; !p.closed(); i++ {
					if i < len(say) {
						p.say(say[i : i+1])
					}
					time.Sleep(200 * time.Millisecond)
					synctest.Wait()
				}
				if got := time.Since(start); got != 5*time.Second {
					t.Errorf("closed after %v, want 5s", got)
				}
				if diff := cmp.Diff(map[zmtp.Reason]int{zmtp.ReasonHandshakeTimeout: 1}, rec.dropCounts()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		_, rec, _ := serve(t, n.listen(), zmtp.Config{Limits: zmtp.Limits{IdleTimeout: 10 * time.Second}})
		start := time.Now()
		silent, trickling, lively := dialRaw(t, &n), dialRaw(t, &n), dialRaw(t, &n)
		for _, p := range []*raw{silent, trickling, lively} {
			p.say(hello(1))
		}
		go func() {
			for range 20 {
				lively.say("\x00\x01x")
				time.Sleep(3 * time.Second)
			}
		}()
		go func() {
			trickling.say("\x00\xff")
			for range 15 {
				trickling.say("x")
				time.Sleep(time.Second)
			}
		}()
		<-silent.gone
		<-trickling.gone
		if got := time.Since(start); got != 10*time.Second {
			t.Errorf("closed after %v, want 10s", got)
		}
		time.Sleep(50 * time.Second)
		if lively.closed() {
			t.Error("closed a lively peer")
		}
		if diff := cmp.Diff(map[zmtp.Reason]int{zmtp.ReasonIdle: 2}, rec.dropCounts()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestNoIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		_, rec, _ := serve(t, n.listen(), zmtp.Config{})
		p := dialRaw(t, &n)
		p.say(hello(1))
		time.Sleep(1000 * time.Hour)
		p.say("\x00\x05still")
		synctest.Wait()
		if diff := cmp.Diff([]string{"still"}, rec.got()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestRate: the excess is dropped, the connection stays, a flood is read slowly, and others do not notice.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		_, rec, _ := serve(t, n.listen(), zmtp.Config{Rate: 10, Burst: 20})
		loud, quiet := dialRaw(t, &n), dialRaw(t, &n)
		loud.say(hello(1))
		quiet.say(hello(1))
		start := time.Now()
		loud.say(strings.Repeat("\x00\x04loud", 25))
		loud.say("\x00\x04loud") // taken once the five before it are dropped
		synctest.Wait()
		if got, want := time.Since(start), 5*time.Millisecond; got < want {
			t.Errorf("five dropped messages were read in %v, want %v or more", got, want)
		}
		quiet.say("\x00\x05quiet")
		time.Sleep(time.Second)
		loud.say(strings.Repeat("\x00\x05later", 10))
		synctest.Wait()
		count := map[string]int{}
		for _, m := range rec.got() {
			count[m]++
		}
		if diff := cmp.Diff(map[string]int{"loud": 20, "quiet": 1, "later": 10}, count); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[zmtp.Reason]int{zmtp.ReasonRate: 6}, rec.dropCounts()); diff != "" {
			t.Error(diff)
		}
		if loud.closed() {
			t.Error("closed the loud peer")
		}
	})
}

// TestBurst: what libzmq has queued while we were away arrives whole.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		_, rec, _ := serve(t, n.listen(), zmtp.Config{})
		p := dialRaw(t, &n)
		p.say(hello(1) + strings.Repeat("\x00\x01x", 1000))
		synctest.Wait()
		if got := len(rec.got()); got != 1000 || rec.dropCounts() != nil {
			t.Errorf("got %d messages, dropped %v, want 1000", got, rec.dropCounts())
		}
	})
}

func TestMaxPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		r, rec, _ := serve(t, n.listen(), zmtp.Config{MaxPeers: 2})
		first, second, third := dialRaw(t, &n), dialRaw(t, &n), dialRaw(t, &n)
		first.say(hello(1))
		synctest.Wait()
		if !third.closed() || first.closed() || second.closed() || r.Peers() != 2 {
			t.Error("want exactly the third refused")
		}
		if third.heard() != "" {
			t.Errorf("the third heard %q, want nothing", third.heard())
		}
		if diff := cmp.Diff(map[zmtp.Reason]int{zmtp.ReasonPeers: 1}, rec.dropCounts()); diff != "" {
			t.Error(diff)
		}
		second.Close()
		synctest.Wait()
		fourth := dialRaw(t, &n)
		fourth.say(hello(1) + "\x00\x02hi")
		synctest.Wait()
		if diff := cmp.Diff([]string{"hi"}, rec.got()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAllow(t *testing.T) {
	var asked atomic.Value
	rec := &record{}
	r, err := zmtp.Listen(t.Context(), "127.0.0.1:0", zmtp.Config{
		Allow:   func(a netip.AddrPort) bool { asked.Store(a); return false },
		Dropped: rec.dropped,
	})
	if err != nil {
		t.Fatal(err)
	}
	runs(t, r.Run)
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("got %d bytes, %v, want a closed connection", n, err)
	}
	if got := asked.Load().(netip.AddrPort).String(); got != c.LocalAddr().String() {
		t.Errorf("asked about %v, want %v", got, c.LocalAddr())
	}
}

// TestSameIdentity: a second peer with a known identity is heard at once, and the first still is.
func TestSameIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		_, rec, _ := serve(t, n.listen(), zmtp.Config{})
		first, second := dialRaw(t, &n), dialRaw(t, &n)
		first.say(greeting(1) + ready("DEALER", "10.0.0.2:21001") + "\x00\x03one")
		second.say(greeting(0) + ready("DEALER", "10.0.0.2:21001") + "\x00\x03two")
		first.say("\x00\x05three")
		synctest.Wait()
		got := rec.got()
		slices.Sort(got)
		if diff := cmp.Diff([]string{"one", "three", "two"}, got); diff != "" {
			t.Error(diff)
		}
		serials := map[uint64]bool{}
		for _, p := range rec.peers {
			if p.Identity != "10.0.0.2:21001" {
				t.Errorf("got the identity %q", p.Identity)
			}
			serials[p.Serial] = true
		}
		if len(serials) != 2 {
			t.Errorf("got %d serials, want 2", len(serials))
		}
	})
}

// TestSlowHandler: a peer whose message is being handled holds up itself only.
func TestSlowHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		var rec record
		serve(t, n.listen(), zmtp.Config{Handle: func(m zmtp.Message) {
			if string(m.Frames[0]) == "slow" {
				time.Sleep(time.Hour)
			}
			rec.handle(m)
		}})
		slow, quick := dialRaw(t, &n), dialRaw(t, &n)
		slow.say(hello(1) + "\x00\x04slow")
		quick.say(hello(1) + "\x00\x05quick")
		synctest.Wait()
		if diff := cmp.Diff([]string{"quick"}, rec.got()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		var r *zmtp.Router
		r, _, _ = serve(t, n.listen(), zmtp.Config{Handle: func(m zmtp.Message) {
			for range 3 {
				if err := r.Send(m.Peer, append(m.Frames, []byte("echo"))...); err != nil {
					t.Error(err)
				}
			}
		}})
		p := dialRaw(t, &n)
		p.say(hello(1) + "\x01\x00\x00\x03ask")
		synctest.Wait()
		got := p.heard()[64+len(ready("ROUTER", "")):]
		if want := strings.Repeat("\x01\x00\x01\x03ask\x00\x04echo", 3); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if err := r.Send(zmtp.Peer{Serial: 99}, []byte("x")); !errors.Is(err, zmtp.ErrNoPeer) {
			t.Errorf("got %v, want ErrNoPeer", err)
		}
		if err := r.Send(zmtp.Peer{Serial: 1}); err == nil {
			t.Error("a message without frames: got no error")
		}
	})
}

// TestSendToDeaf: a peer that does not read is closed after WriteTimeout, and those who wait to write to it return
// then, without a try of their own: the peer may have half a frame.
func TestSendToDeaf(t *testing.T) {
	for _, tt := range []struct {
		name  string
		ping  bool
		sends int
	}{
		{"Send", false, 3},
		{"PONG", true, 0},
		{"both", true, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n network
				r, rec, _ := serve(t, n.listen(), zmtp.Config{})
				deaf, err := n.dial(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				defer deaf.Close()
				go deaf.Read(make([]byte, 64))
				deaf.Write([]byte(greeting(1)))
				deaf.Read(make([]byte, 4096))
				deaf.Write([]byte(ready("DEALER", "") + "\x00\x02hi"))
				synctest.Wait()

				start := time.Now()
				sent := make(chan error, tt.sends)
				for range tt.sends {
					go func() { sent <- r.Send(rec.peers[0], []byte("x")) }()
				}
				if tt.ping {
					deaf.Write([]byte("\x04\x07\x04PING\x00\x00"))
				}
				for range tt.sends {
					if err := <-sent; err == nil {
						t.Error("got no error")
					}
				}
				time.Sleep(time.Until(start.Add(5 * time.Second)))
				synctest.Wait()
				if got := time.Since(start); got != 5*time.Second {
					t.Errorf("returned after %v, want 5s", got)
				}
				if diff := cmp.Diff(map[zmtp.Reason]int{zmtp.ReasonWrite: 1}, rec.dropCounts()); diff != "" {
					t.Error(diff)
				}
				if err := r.Send(rec.peers[0], []byte("x")); !errors.Is(err, zmtp.ErrNoPeer) {
					t.Errorf("got %v, want ErrNoPeer", err)
				}
			})
		})
	}
}

// TestRunEnds: with peers in every state, Run returns when told, and has closed them.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		r, rec, stop := serve(t, n.listen(), zmtp.Config{})
		peers := []*raw{dialRaw(t, &n), dialRaw(t, &n), dialRaw(t, &n), dialRaw(t, &n)}
		peers[1].say(greeting(1))
		peers[2].say(hello(1))
		peers[3].say(hello(1) + "\x01\x05hal")
		synctest.Wait()
		start := time.Now()
		stop()
		if got := time.Since(start); got != 0 {
			t.Errorf("took %v", got)
		}
		synctest.Wait()
		for i, p := range peers {
			if !p.closed() {
				t.Errorf("peer %d is still connected", i)
			}
		}
		if r.Peers() != 0 || rec.dropCounts() != nil {
			t.Errorf("got %d peers, dropped %v", r.Peers(), rec.dropCounts())
		}
		if _, err := n.dial(t.Context(), ""); err == nil {
			t.Error("still listening")
		}
	})
}

// flaky fails some accepts.
type flaky struct {
	*listener

	failures int
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.failures > 0 {
		f.failures--
		return nil, errors.New("too many open files")
	}
	return f.listener.Accept()
}

func TestAcceptErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		_, rec, _ := serve(t, &flaky{n.listen(), 12}, zmtp.Config{})
		p := dialRaw(t, &n) // waits for the listener
		p.say(hello(1) + "\x00\x02hi")
		synctest.Wait()
		if diff := cmp.Diff([]string{"hi"}, rec.got()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[zmtp.Reason]int{zmtp.ReasonAccept: 12}, rec.dropCounts()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestListenerClosedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		l := n.listen()
		r := zmtp.NewRouter(l, zmtp.Config{})
		done := make(chan error)
		go func() { done <- r.Run(t.Context()) }()
		p := dialRaw(t, &n)
		p.say(hello(1))
		l.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want %v", err, net.ErrClosed)
		}
		<-p.gone
	})
}

// BenchmarkRouter is one registration from each of 1,000 connected peers, over loopback, per op.
func BenchmarkRouter(b *testing.B) {
	const peers = 1000
	payload, err := hex.DecodeString(registrationMoRI)
	if err != nil {
		b.Fatal(err)
	}
	var heard atomic.Int64
	round := make(chan struct{}, 1)
	r, err := zmtp.Listen(b.Context(), "127.0.0.1:0", zmtp.Config{Rate: math.Inf(1), Handle: func(zmtp.Message) {
		if heard.Add(1)%peers == 0 {
			round <- struct{}{}
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer runs(b, r.Run)()
	wire := append([]byte{0, byte(len(payload))}, payload...)
	conns := make([]net.Conn, peers)
	for i := range conns {
		conns[i], err = net.Dial("tcp", r.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
		conns[i].Write([]byte(hello(1)))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range conns {
			c.Write(wire)
		}
		<-round
	}
	b.ReportMetric(float64(peers*b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkRouterOnePeer is one registration out of a stream from one peer.
func BenchmarkRouterOnePeer(b *testing.B) {
	payload, err := hex.DecodeString(registrationMoRI)
	if err != nil {
		b.Fatal(err)
	}
	const batch = 100
	heard := 0
	round := make(chan struct{}, 1)
	r, err := zmtp.Listen(b.Context(), "127.0.0.1:0", zmtp.Config{Rate: math.Inf(1), Handle: func(zmtp.Message) {
		if heard++; heard%batch == 0 {
			round <- struct{}{}
		}
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer runs(b, r.Run)()
	c, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte(hello(1)))
	wire := []byte(strings.Repeat("\x00"+string([]byte{byte(len(payload))})+string(payload), batch))
	b.ReportAllocs()
	for b.Loop() {
		c.Write(wire)
		<-round
	}
	b.ReportMetric(float64(batch*b.N)/b.Elapsed().Seconds(), "msg/s")
}
