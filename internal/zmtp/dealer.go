package zmtp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Errors of Dealer.Send.
var (
	ErrFull   = errors.New("zmtp: queue full")
	ErrClosed = errors.New("zmtp: socket closed")
)

const defaultQueue = 1000 // libzmq's high-water mark

// DealerConfig is the configuration of a Dealer. The zero value of each field means its default.
type DealerConfig struct {
	Limits
	Identity string // at most 255 bytes; default none
	Queue    int    // messages waiting to be sent; default 1000

	// Dial connects to a host and port; default TCP with keep-alive. Its ctx ends after 5 s.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Backoff is the wait before connecting again, by the number of failures in a row, from 0;
	// default 100 ms doubling to 2 s.
	Backoff func(failures int) time.Duration

	// Handle is called for each message received, on the one goroutine that reads. nil discards messages.
	Handle func(Message)
	// Connected is called after each handshake, before anything is sent or handled; Lost after each
	// connection lost and each attempt that failed, with the reason. One goroutine calls both.
	Connected func(Peer)
	Lost      func(error)
}

func (c DealerConfig) withDefaults() DealerConfig {
	c.Limits = c.Limits.withDefaults()
	c.Queue = cmp.Or(c.Queue, defaultQueue)
	if c.Dial == nil {
		c.Dial = dialTCP
	}
	if c.Backoff == nil {
		c.Backoff = defaultBackoff
	}
	return c
}

func (c DealerConfig) validate() error {
	if len(c.Identity) > maxIdentity {
		return errors.New("zmtp: identity longer than 255 bytes")
	}
	if c.Queue < 0 {
		return errors.New("zmtp: negative queue")
	}
	return c.Limits.validate()
}

// Dealer is a DEALER socket that connects to one ROUTER (or REP, or DEALER) and keeps connecting.
type Dealer struct {
	addr    string
	cfg     DealerConfig
	queue   chan []byte // whole messages as on the wire
	unsent  []byte      // taken from the queue but not written; belongs to the one flush that runs
	done    chan struct{}
	started atomic.Bool
}

// NewDealer returns a Dealer for addr ("tcp://10.0.0.1:30001"). Run returns the error of a bad address or
// configuration.
func NewDealer(addr string, cfg DealerConfig) *Dealer {
	cfg = cfg.withDefaults()
	return &Dealer{
		addr:  addr,
		cfg:   cfg,
		queue: make(chan []byte, max(0, cfg.Queue)),
		done:  make(chan struct{}),
	}
}

// Send queues a message, and copies it. It never blocks: when the queue is full it returns ErrFull, and after
// Run has ended ErrClosed. Messages are sent in order whenever there is a connection; those written to a
// connection that then breaks may be lost, and what is queued when Run ends is discarded.
func (d *Dealer) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return errNoFrames
	}
	select {
	case <-d.done:
		return ErrClosed
	default:
	}
	select {
	case d.queue <- appendMessage(nil, frames...):
		return nil
	default:
		return ErrFull
	}
}

// Run connects, and connects again, until ctx ends, and returns nil then. It may be called once.
func (d *Dealer) Run(ctx context.Context) error {
	if d.started.Swap(true) {
		return errRunTwice
	}
	defer close(d.done)
	addr, err := dialAddr(d.addr)
	if err != nil {
		return err
	}
	if err := d.cfg.validate(); err != nil {
		return err
	}
	c := connector{
		addr:      addr,
		meta:      metadata{socketType: typeDealer, identity: d.cfg.Identity},
		lim:       d.cfg.Limits,
		dial:      d.cfg.Dial,
		backoff:   d.cfg.Backoff,
		connected: d.cfg.Connected,
		lost:      d.cfg.Lost,
		serve:     d.serve,
	}
	c.run(ctx)
	return nil
}

// serve reads and writes one connection until it ends.
func (d *Dealer) serve(s *session, peer Peer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.close()
	wg.Go(func() { d.flush(s) })
	return s.serve(func(frames [][]byte) {
		if d.cfg.Handle != nil {
			d.cfg.Handle(Message{Peer: peer, Frames: frames})
		}
	})
}

// flush writes what is queued until the connection ends. A message that the peer cannot have whole is kept for
// the next connection; one that was written in full is never sent again.
func (d *Dealer) flush(s *session) {
	for {
		if d.unsent == nil {
			select {
			case d.unsent = <-d.queue:
			case <-s.done:
				return
			}
		}
		n, err := s.write(d.unsent)
		if n == len(d.unsent) {
			d.unsent = nil
		}
		if err != nil {
			return
		}
	}
}
