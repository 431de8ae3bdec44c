// Package zmq is the source of workers that announce themselves over ZMQ, as
// vLLM's P2P-NCCL and MoRI-IO connectors do: a DEALER sends one msgpack message
// every three seconds, which is registration and heartbeat at once. Nothing is
// ever answered. Who a message is about is in its payload alone; the identity
// of the ZMQ peer means nothing.
package zmq

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
	"github.com/baton-llm/baton/internal/zmtp"
)

// Source is the name under which pings claim workers.
const Source = "zmq"

// DefaultTTL is how long a worker lives after its last ping: three periods and
// some.
const DefaultTTL = 10 * time.Second

// Config says where to listen and whom to believe.
type Config struct {
	Address string        // HOST:PORT; HOST may be * or an IPv6 address in brackets
	TTL     time.Duration // of a ping
	Allowed *Allowed
	// Dialect is that of engines whose registration does not tell: "nixl" stands
	// for P2P NCCL then, as with vllm-router.
	Dialect string
}

// Deps are the collaborators of a listener.
type Deps struct {
	Registry   *registry.Registry
	Registerer prometheus.Registerer
	Logger     *slog.Logger // nil: discard
}

// Listener takes registrations.
type Listener struct {
	cfg    Config
	deps   Deps
	log    *slog.Logger
	router *zmtp.Router
	counts *prometheus.CounterVec

	mu     sync.Mutex
	warned map[string]time.Time // when a reason was last logged
}

// Listen binds the address. Registrations are taken once Run is called.
func Listen(ctx context.Context, cfg Config, deps Deps) (*Listener, error) {
	l := newListener(cfg, deps)
	router, err := zmtp.Listen(ctx, "tcp://"+cfg.Address, l.zmtp())
	if err != nil {
		return nil, err
	}
	l.router = router
	return l, nil
}

// NewListener takes registrations from an existing listener, which it closes.
func NewListener(listener net.Listener, cfg Config, deps Deps) *Listener {
	l := newListener(cfg, deps)
	l.router = zmtp.NewRouter(listener, l.zmtp())
	return l
}

func newListener(cfg Config, deps Deps) *Listener {
	log := deps.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &Listener{
		cfg: cfg, deps: deps, log: log.With("component", "discovery/zmq"),
		warned: make(map[string]time.Time),
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_registrations_total",
			Help: "Registrations over ZMQ by result: added, replaced, updated or kept, or the reason why one was dropped.",
		}, []string{"result"}),
	}
	deps.Registerer.MustRegister(l.counts)
	return l
}

func (l *Listener) zmtp() zmtp.Config {
	return zmtp.Config{
		Limits:  zmtp.Limits{IdleTimeout: time.Minute},
		Allow:   func(ap netip.AddrPort) bool { return l.cfg.Allowed.Has(ap.Addr()) },
		Handle:  l.handle,
		Dropped: l.dropped,
	}
}

// Addr is where the listener is bound.
func (l *Listener) Addr() net.Addr { return l.router.Addr() }

// Run takes registrations until ctx is done.
func (l *Listener) Run(ctx context.Context) error { return l.router.Run(ctx) }

// handle takes one message. It is called from the peer's goroutine.
func (l *Listener) handle(m zmtp.Message) {
	// A REQ peer puts an empty frame first; the payload is the last one.
	reg, err := decode(m.Frames[len(m.Frames)-1])
	if err == nil {
		err = l.register(reg)
	}
	if err != nil {
		l.refuse(m.Peer.Addr, reason(err), err)
	}
}

var errNotAllowed = errors.New("announces an address that --registration-allow does not cover")

func (l *Listener) register(reg worker.Registration) error {
	host, err := hostOf(reg.ID.URL)
	if err != nil {
		return err
	}
	if !l.cfg.Allowed.Has(host) {
		return errNotAllowed
	}
	if reg.Endpoint.Dialect == "" {
		reg.Endpoint.Dialect = l.cfg.Dialect
		if l.cfg.Dialect == "nixl" {
			reg.Endpoint.Dialect = "p2p"
		}
	}
	_, change, err := l.deps.Registry.Register(Source, reg, l.cfg.TTL)
	if err != nil {
		return err
	}
	l.counts.WithLabelValues(change.String()).Inc()
	return nil
}

// reason is the bounded word for why a registration was dropped.
func reason(err error) string {
	for _, r := range []struct {
		err  error
		word string
	}{
		{errMsgpack, "not_msgpack"},
		{errFields, "bad_field"},
		{errType, "unknown_type"},
		{errAddress, "bad_address"},
		{errMode, "bad_mode"},
		{errNotAllowed, "not_allowed"},
		{registry.ErrFull, "registry_full"},
		{registry.ErrRival, "rival"},
	} {
		if errors.Is(err, r.err) {
			return r.word
		}
	}
	return "other"
}

// dropped hears of messages and peers that ZMTP does not let through.
func (l *Listener) dropped(r zmtp.Reason, p zmtp.Peer) {
	if r.String() == "silent" {
		// A port probe, or a peer that asked for another mechanism: nothing to act on.
		l.counts.WithLabelValues("zmtp_silent").Inc()
		return
	}
	l.refuse(p.Addr, "zmtp_"+strings.ReplaceAll(r.String(), "-", "_"), nil)
}

// repeatWarning is how often one reason is logged.
const repeatWarning = 30 * time.Second

func (l *Listener) refuse(peer netip.AddrPort, reason string, err error) {
	l.counts.WithLabelValues(reason).Inc()
	l.mu.Lock()
	say := time.Since(l.warned[reason]) >= repeatWarning
	if say {
		l.warned[reason] = time.Now()
	}
	l.mu.Unlock()
	if say {
		l.log.Warn("registration dropped", "peer", peer, "reason", reason, "err", err)
	}
}
