package memnet

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Network connects those who dial to those who listen. Its zero value is an
// empty network.
type Network struct {
	mu    sync.Mutex       // guards all below and the hosts' fields; never held while waiting
	hosts map[string]*host // by address; made on first mention, never removed
	ports int              // given out so far
}

// host is what the network knows about one address. It outlives listeners.
type host struct {
	net  *Network
	addr string

	// Guarded by net.mu.
	changed  changed
	listener *listener
	links    map[*link]struct{} // at least one end is open
	fate     fate

	frozen atomic.Bool // read under a link's lock, so not under net.mu
}

// fate says what becomes of those who dial a host.
type fate int

const (
	reachable fate = iota
	refused
	blackholed
)

// hostAt returns the host for addr. The caller holds n.mu.
func (n *Network) hostAt(addr string) *host {
	if name, port, err := splitAddr(addr); err == nil {
		addr = joinAddr(name, port)
	}
	h := n.hosts[addr]
	if h == nil {
		h = &host{net: n, addr: addr, links: make(map[*link]struct{})}
		if n.hosts == nil {
			n.hosts = make(map[string]*host)
		}
		n.hosts[addr] = h
	}
	return h
}

// freePort returns the next ephemeral port; they come round again after 28,232.
// The caller holds n.mu.
func (n *Network) freePort() int {
	const first, count = 32768, 28232 // Linux's ephemeral range
	n.ports++
	return first + n.ports%count
}

// Listen makes addr, "host:port" with any name or IP address as host, answer.
// Port 0 takes a free one.
func (n *Network) Listen(addr string) (net.Listener, error) {
	name, port, err := splitAddr(addr)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: err}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == 0 {
		port = n.freePort()
	}
	h := n.hostAt(joinAddr(name, port))
	if h.listener != nil {
		inUse := os.NewSyscallError("bind", syscall.EADDRINUSE)
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: netAddr(h.addr), Err: inUse}
	}
	h.listener = &listener{host: h}
	h.changed.raise()
	return h.listener, nil
}

// DialContext connects to addr from the loopback address. It fits
// http.Transport.DialContext.
func (n *Network) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return n.DialFrom(ctx, loopback, network, addr)
}

// DialFrom is DialContext for a client whose IP address is source. Like a
// kernel, it does not wait for the listener to accept.
func (n *Network) DialFrom(ctx context.Context, source, network, addr string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
	}
	name, port, err := splitAddr(addr)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	conn, err := n.dial(ctx, source, joinAddr(name, port))
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: netAddr(joinAddr(name, port)), Err: err}
	}
	return conn, nil
}

func (n *Network) dial(ctx context.Context, source, addr string) (*Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hostAt(addr)
	for {
		switch {
		case ctx.Err() != nil:
			return nil, dialError(ctx.Err())
		case h.fate == blackholed:
			h.awaitFate(ctx)
			continue
		case h.fate == refused || h.listener == nil:
			return nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
		}
		client := netAddr(joinAddr(plainHost(source), n.freePort()))
		dialed, accepted := newLink(h, client, netAddr(h.addr))
		h.links[dialed.link] = struct{}{}
		h.listener.queue = append(h.listener.queue, accepted)
		h.changed.raise()
		return dialed, nil
	}
}

// awaitFate waits until something about h changes or ctx is done. The caller
// holds h.net.mu.
func (h *host) awaitFate(ctx context.Context) {
	next := h.changed.next()
	h.net.mu.Unlock()
	defer h.net.mu.Lock()
	select {
	case <-next:
	case <-ctx.Done():
	}
}

// dialError makes of a context's error what net.Dialer makes of it.
func dialError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return timeoutError{}
	}
	return err
}

type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
func (timeoutError) Is(target error) bool {
	return target == context.DeadlineExceeded
}

// Freeze stops the server at addr like SIGSTOP: connections to it are made, and
// what is sent to it is taken until the buffer is full, but it accepts, reads
// and writes nothing, and its deadlines do not pass. It can still close.
func (n *Network) Freeze(addr string) { n.freeze(addr, true) }

// Thaw ends Freeze.
func (n *Network) Thaw(addr string) { n.freeze(addr, false) }

func (n *Network) freeze(addr string, frozen bool) {
	n.mu.Lock()
	h := n.hostAt(addr)
	h.frozen.Store(frozen)
	h.changed.raise()
	n.mu.Unlock()
	for _, l := range h.open() {
		l.wake()
	}
}

// Refuse makes addr refuse new connections, as a port does whose process has
// died, although somebody may listen. Connections that exist go on.
func (n *Network) Refuse(addr string) { n.decide(addr, refused) }

// Blackhole makes those who dial addr wait until their context is done.
// Connections that exist go on.
func (n *Network) Blackhole(addr string) { n.decide(addr, blackholed) }

// Restore ends Refuse, Blackhole and Kill; who waits in a dial is connected.
func (n *Network) Restore(addr string) { n.decide(addr, reachable) }

func (n *Network) decide(addr string, f fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hostAt(addr)
	h.fate = f
	h.changed.raise()
}

// Sever breaks all connections to addr: at both ends reads and writes fail with
// ECONNRESET until the end is closed. New ones can be made.
func (n *Network) Sever(addr string) {
	n.mu.Lock()
	h := n.hostAt(addr)
	n.mu.Unlock()
	for _, l := range h.open() {
		l.sever()
	}
}

// Kill is Refuse and Sever: the process at addr is gone.
func (n *Network) Kill(addr string) {
	n.Refuse(addr)
	n.Sever(addr)
}

// Open returns the number of connections with at least one end not closed,
// those included that nobody has accepted.
func (n *Network) Open() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	open := 0
	for _, h := range n.hosts {
		open += len(h.links)
	}
	return open
}

// OpenTo is Open for the connections to addr.
func (n *Network) OpenTo(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.hostAt(addr).links)
}

// open returns the host's open connections.
func (h *host) open() []*link {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	open := make([]*link, 0, len(h.links))
	for l := range h.links {
		open = append(open, l)
	}
	return open
}

// forget drops a link of which both ends are closed.
func (h *host) forget(l *link) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	delete(h.links, l)
}

// listener is what Listen returns. The network's lock guards it.
type listener struct {
	host   *host
	queue  []*Conn // connected, not yet accepted
	closed bool
}

var _ net.Listener = (*listener)(nil)

// Accept waits for the next connection.
func (l *listener) Accept() (net.Conn, error) {
	h := l.host
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, l.opError("accept", net.ErrClosed)
		case h.frozen.Load():
		case len(l.queue) > 0:
			conn := l.queue[0]
			l.queue = l.queue[1:]
			return conn, nil
		}
		h.changed.wait(&h.net.mu, time.Time{})
	}
}

// Close stops listening. Connections that were accepted go on, those still
// waiting to be are reset.
func (l *listener) Close() error {
	h := l.host
	h.net.mu.Lock()
	if l.closed {
		h.net.mu.Unlock()
		return l.opError("close", net.ErrClosed)
	}
	l.closed = true
	h.listener = nil
	queue := l.queue
	l.queue = nil
	h.changed.raise()
	h.net.mu.Unlock()
	for _, conn := range queue {
		_ = conn.Reset() // nobody else can have closed it
	}
	return nil
}

// Addr returns the address listened on.
func (l *listener) Addr() net.Addr { return netAddr(l.host.addr) }

func (l *listener) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: l.Addr(), Err: err}
}
