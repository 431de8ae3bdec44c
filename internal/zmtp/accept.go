package zmtp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// How dead connections are found: silent for 15 s, then three probes 5 s apart.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

const (
	acceptPause    = 5 * time.Millisecond // after a failed accept, doubling
	maxAcceptPause = time.Second
)

// acceptor is the listening side of a socket: one goroutine per peer, each with its handshake and then serve.
type acceptor struct {
	l       net.Listener
	meta    metadata
	lim     Limits
	max     int
	allow   func(netip.AddrPort) bool
	dropped func(Reason, Peer)
	serve   func(*session, Peer) error // on the peer's goroutine, after the handshake

	mu     sync.Mutex
	serial uint64
	peers  map[uint64]*session // by Peer.Serial, from accept to the end of the connection
	closed bool
}

// run accepts until ctx ends (nil) or the listener is closed by somebody else (its error).
func (a *acceptor) run(ctx context.Context) error {
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		<-stop.Done()
		_ = a.l.Close() // accept returns its error
		a.closeAll()
	})
	err := a.accept(stop, &wg)
	cancel()
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// accept returns when the listener is closed. Other errors pass: out of file descriptors, for one, must not
// end a process's discovery of workers.
func (a *acceptor) accept(ctx context.Context, wg *sync.WaitGroup) error {
	pause := acceptPause
	for {
		nc, err := a.l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = nc.Close() // arrived too late to be anybody's
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			a.drop(ReasonAccept, Peer{})
			wait(ctx, pause)
			pause = min(2*pause, maxAcceptPause)
			continue
		}
		pause = acceptPause
		s, peer, reason := a.admit(nc)
		if reason != 0 {
			_ = nc.Close() // nothing was said
			a.drop(reason, peer)
			continue
		}
		wg.Go(func() { a.attend(ctx, s, peer) })
	}
}

// admit numbers the peer and enters it, unless there is a reason not to.
func (a *acceptor) admit(nc net.Conn) (*session, Peer, Reason) {
	peer := Peer{Addr: addrPort(nc.RemoteAddr())}
	allowed := a.allow == nil || a.allow(peer.Addr)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serial++
	peer.Serial = a.serial
	switch {
	case !allowed:
		return nil, peer, ReasonNotAllowed
	case len(a.peers) >= a.max:
		return nil, peer, ReasonPeers
	}
	s := newSession(nc, a.lim)
	a.peers[peer.Serial] = s
	if a.closed {
		s.close()
	}
	return s, peer, 0
}

// attend is the life of one peer.
func (a *acceptor) attend(ctx context.Context, s *session, peer Peer) {
	defer a.remove(peer.Serial)
	defer s.close()
	theirs, err := s.handshake(a.meta)
	if err == nil {
		peer.Identity = theirs.identity
		err = a.serve(s, peer)
	}
	if e, ok := errors.AsType[*Error](err); ok && ctx.Err() == nil {
		a.drop(e.Reason, peer)
	}
}

func (a *acceptor) drop(reason Reason, peer Peer) {
	if a.dropped != nil {
		a.dropped(reason, peer)
	}
}

func (a *acceptor) peer(serial uint64) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peers[serial]
}

func (a *acceptor) remove(serial uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.peers, serial)
}

func (a *acceptor) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.peers)
}

func (a *acceptor) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, s := range a.peers {
		s.close()
	}
}

// wait reports whether d passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
