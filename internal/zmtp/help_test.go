package zmtp_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/baton-llm/baton/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is an unbuffered network of one address, whose listener can go and come back.
type network struct {
	mu sync.Mutex
	l  *listener
}

type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (n *network) listen() *listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.l = &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	return n.l
}

var errRefused = errors.New("refused")

func (n *network) dial(ctx context.Context, _ string) (net.Conn, error) {
	n.mu.Lock()
	l := n.l
	n.mu.Unlock()
	if l == nil {
		return nil, errRefused
	}
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "test"} }

// record keeps what a router reported.
type record struct {
	mu       sync.Mutex
	messages []string // frames joined by a bar
	peers    []zmtp.Peer
	drops    map[zmtp.Reason]int
}

func (r *record) handle(m zmtp.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, string(bytes.Join(m.Frames, []byte("|"))))
	r.peers = append(r.peers, m.Peer)
}

func (r *record) dropped(reason zmtp.Reason, _ zmtp.Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drops == nil {
		r.drops = map[zmtp.Reason]int{}
	}
	r.drops[reason]++
}

func (r *record) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

func (r *record) dropCounts() map[zmtp.Reason]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.drops)
}

// runs starts run and, at the end of the test, cancels it and checks that it returns nil. stop does that earlier.
func runs(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// serve runs a router that reports to the returned record.
func serve(t testing.TB, l net.Listener, cfg zmtp.Config) (r *zmtp.Router, rec *record, stop func()) {
	rec = &record{}
	if cfg.Handle == nil {
		cfg.Handle = rec.handle
	}
	cfg.Dropped = rec.dropped
	r = zmtp.NewRouter(l, cfg)
	return r, rec, runs(t, r.Run)
}

// raw is a peer that speaks bytes.
type raw struct {
	net.Conn

	mu   sync.Mutex
	in   bytes.Buffer
	gone chan struct{} // closed when the other side has closed
}

func dialRaw(t testing.TB, n *network) *raw {
	t.Helper()
	nc, err := n.dial(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{Conn: nc, gone: make(chan struct{})}
	go func() {
		defer close(r.gone)
		b := make([]byte, 4096)
		for {
			n, err := nc.Read(b)
			r.mu.Lock()
			r.in.Write(b[:n])
			r.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { nc.Close() })
	return r
}

// say writes; an error means that the other side has closed, which tests see by closed.
func (r *raw) say(s string) { r.Write([]byte(s)) }

func (r *raw) heard() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.in.String()
}

func (r *raw) closed() bool {
	select {
	case <-r.gone:
		return true
	default:
		return false
	}
}

func greeting(minor byte) string {
	return "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03" + string(minor) + "NULL" + strings.Repeat("\x00", 48)
}

func ready(socketType, identity string) string {
	body := "\x05READY\x0bSocket-Type\x00\x00\x00" + string(rune(len(socketType))) + socketType +
		"\x08Identity\x00\x00" + string([]byte{byte(len(identity) >> 8), byte(len(identity))}) + identity
	if len(body) < 256 {
		return "\x04" + string([]byte{byte(len(body))}) + body
	}
	return "\x06\x00\x00\x00\x00\x00\x00" + string([]byte{byte(len(body) >> 8), byte(len(body))}) + body
}

func hello(minor byte) string { return greeting(minor) + ready("DEALER", "") }
