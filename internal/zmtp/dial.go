package zmtp

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	dialTimeout      = 5 * time.Second
	reconnectFirst   = 100 * time.Millisecond
	reconnectLongest = 2 * time.Second
)

// connector is the connecting side of a socket: one connection, made again whenever it is lost.
type connector struct {
	addr      string // as for net.Dial
	meta      metadata
	lim       Limits
	dial      func(ctx context.Context, addr string) (net.Conn, error)
	backoff   func(failures int) time.Duration
	connected func(Peer)
	lost      func(error)
	serve     func(*session, Peer) error // returns when the connection has ended

	serial uint64 // Run's goroutine only
}

// run returns when ctx ends. A handshake that succeeds starts the back-off anew.
func (c *connector) run(ctx context.Context) {
	for failures := 0; ; failures++ {
		up, err := c.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if up {
			failures = 0
		}
		if c.lost != nil {
			c.lost(err)
		}
		if !wait(ctx, c.backoff(failures)) {
			return
		}
	}
}

// once is the life of one connection. up says whether its handshake succeeded.
func (c *connector) once(ctx context.Context) (up bool, err error) {
	nc, err := c.dialOnce(ctx)
	if err != nil {
		return false, err
	}
	s := newSession(nc, c.lim)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.close()
	wg.Go(func() {
		select {
		case <-ctx.Done():
			s.close()
		case <-s.done:
		}
	})
	theirs, err := s.handshake(c.meta)
	if err != nil {
		return false, err
	}
	c.serial++
	peer := Peer{Addr: addrPort(nc.RemoteAddr()), Serial: c.serial, Identity: theirs.identity}
	if c.connected != nil {
		c.connected(peer)
	}
	return true, c.serve(s, peer)
}

func (c *connector) dialOnce(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return c.dial(ctx, c.addr)
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive}
	return d.DialContext(ctx, "tcp", addr)
}

// defaultBackoff is 100 ms, doubling to 2 s.
func defaultBackoff(failures int) time.Duration {
	return min(reconnectFirst<<min(failures, 8), reconnectLongest)
}
