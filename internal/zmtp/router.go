package zmtp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// ErrNoPeer is returned by Router.Send for a peer that has left.
var ErrNoPeer = errors.New("zmtp: no such peer")

var (
	errNoFrames = errors.New("zmtp: a message needs a frame")
	errRunTwice = errors.New("zmtp: Run called twice")
)

// The defaults of Config. libzmq queues 1000 messages for a peer that is away and sends them in one burst when
// it is back; the burst takes that twice.
const (
	defaultMaxPeers = 4096
	defaultRate     = 100
	defaultBurst    = 2000
)

// overRatePause is how long a peer over its rate is not read after each dropped message, so that a flood is
// slowed down by TCP at its source instead of being read at full speed.
const overRatePause = time.Millisecond

// Config is the configuration of a Router. The zero value of each field means its default.
type Config struct {
	Limits
	MaxPeers int // connections, those in their handshake included; more are refused; default 4096

	// Rate and Burst are messages a second from one peer, and how many may come at once; defaults 100 and
	// 2000. Rate math.Inf(1) means no limit. A message beyond them is dropped and the connection stays:
	// closing it would make libzmq reconnect within 100 ms and send its queue again, and would silence a
	// worker for talking too much, which its registrations must survive.
	Rate  float64
	Burst int

	// Allow is asked for each connection before anything is read; nil allows all. It is called by one
	// goroutine and holds up all accepting.
	Allow func(netip.AddrPort) bool

	// Handle is called for each message on its peer's own goroutine: in order for one peer, at the same
	// time for different peers. While it runs, its peer is not read, and TCP holds the peer back; nobody
	// else waits and nothing is queued. Run waits for it to return. nil discards messages.
	Handle func(Message)

	// Dropped is called for each connection or message dropped, from several goroutines at once. It is called
	// at the pace of what peers send, so it should count, and log at a limited rate. Identity is known
	// after the handshake only.
	Dropped func(Reason, Peer)
}

func (c Config) withDefaults() Config {
	c.Limits = c.Limits.withDefaults()
	c.MaxPeers = cmp.Or(c.MaxPeers, defaultMaxPeers)
	c.Rate = cmp.Or(c.Rate, defaultRate)
	c.Burst = cmp.Or(c.Burst, defaultBurst)
	return c
}

func (c Config) validate() error {
	if c.MaxPeers < 0 || !(c.Rate >= 0) || c.Burst < 0 {
		return errors.New("zmtp: negative limit")
	}
	return c.Limits.validate()
}

// Router is a ROUTER socket that listens. DEALER, REQ and ROUTER peers may connect.
type Router struct {
	acceptor

	cfg     Config
	started atomic.Bool
}

// Listen binds addr ("tcp://*:30001", "0.0.0.0:30001", "[::]:30001") and returns a Router to Run.
// The address is released when Run ends.
func Listen(ctx context.Context, addr string, cfg Config) (*Router, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	hostport, err := listenAddr(addr)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := lc.Listen(ctx, "tcp", hostport)
	if err != nil {
		return nil, err
	}
	return NewRouter(l, cfg), nil
}

// NewRouter returns a Router that accepts from l and owns it. Run returns the error of a bad configuration.
func NewRouter(l net.Listener, cfg Config) *Router {
	r := &Router{cfg: cfg.withDefaults()}
	r.acceptor = acceptor{
		l:       l,
		meta:    metadata{socketType: typeRouter},
		lim:     r.cfg.Limits,
		max:     r.cfg.MaxPeers,
		allow:   r.cfg.Allow,
		dropped: r.cfg.Dropped,
		serve:   r.serve,
		peers:   make(map[uint64]*session),
	}
	return r
}

// Run serves until ctx ends, and returns nil then. All connections are closed and all calls of Handle have
// returned when it returns. It may be called once.
func (r *Router) Run(ctx context.Context) error {
	if r.started.Swap(true) {
		return errRunTwice
	}
	if err := r.cfg.validate(); err != nil {
		_ = r.l.Close() // the bad configuration is the error to tell
		return err
	}
	return r.run(ctx)
}

// Addr returns the listener's address.
func (r *Router) Addr() net.Addr { return r.l.Addr() }

// Peers returns the number of connections, those in their handshake included.
func (r *Router) Peers() int { return r.count() }

// Send sends a message to a peer, known from Handle. It blocks while the peer does not read, at most for
// WriteTimeout; then the connection is closed and it returns an error. Sends to one peer take turns, so one
// that waits behind others may block for longer. Nothing is queued: what Send has returned nil for is the
// operating system's. It may be called from Handle.
func (r *Router) Send(to Peer, frames ...[]byte) error {
	if len(frames) == 0 {
		return errNoFrames
	}
	s := r.peer(to.Serial)
	if s == nil {
		return ErrNoPeer
	}
	_, err := s.write(appendMessage(nil, frames...))
	return err
}

// serve reads one peer, on its goroutine.
func (r *Router) serve(s *session, peer Peer) error {
	tokens := newBucket(r.cfg.Rate, r.cfg.Burst, time.Now())
	return s.serve(func(frames [][]byte) {
		if !tokens.take(time.Now()) {
			r.drop(ReasonRate, peer)
			time.Sleep(overRatePause)
			return
		}
		if r.cfg.Handle != nil {
			r.cfg.Handle(Message{Peer: peer, Frames: frames})
		}
	})
}
