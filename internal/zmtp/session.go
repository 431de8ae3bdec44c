package zmtp

import (
	"bufio"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Commands a peer may send before it is taken for a flood. libzmq sends PING every few seconds at most.
const (
	commandRate  = 100
	commandBurst = 1000
)

// Peer is one connection to a socket.
type Peer struct {
	Addr     netip.AddrPort // zero on a network without such addresses
	Serial   uint64         // unique within one socket, never reused
	Identity string         // the bytes the peer calls itself; empty if none; neither unique nor to be trusted
}

// Message is one message and who sent it.
type Message struct {
	Peer   Peer
	Frames [][]byte // at least one; valid only until the handler returns
}

// session is one connection. One goroutine does the handshake and then serves; any may write.
type session struct {
	nc       net.Conn
	lim      Limits
	scan     scanner
	minor    byte // the peer's minor version
	commands bucket

	turn  chan struct{} // holds the one right to write, put in after the handshake
	done  chan struct{} // closed with nc
	once  sync.Once
	stuck atomic.Bool // closed because a write timed out
}

func newSession(nc net.Conn, lim Limits) *session {
	return &session{
		nc:       nc,
		lim:      lim,
		scan:     newScanner(bufio.NewReaderSize(nc, chunk), lim),
		commands: newBucket(commandRate, commandBurst, time.Now()),
		turn:     make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
}

func (s *session) close() {
	s.once.Do(func() {
		close(s.done)
		_ = s.nc.Close() // it is being given up; there is nobody to tell
	})
}

// serve hands each message to handle until the connection ends, and returns why it did.
func (s *session) serve(handle func(frames [][]byte)) error {
	for {
		if s.lim.IdleTimeout > 0 {
			if err := s.nc.SetReadDeadline(time.Now().Add(s.lim.IdleTimeout)); err != nil {
				return err
			}
		}
		it, err := s.scan.next()
		if err == nil && it.command != nil {
			err = s.command(it.command)
		}
		if err != nil {
			if s.stuck.Load() {
				return &Error{ReasonWrite, "deadline exceeded"}
			}
			return overdue(err, ReasonIdle)
		}
		if it.command == nil {
			handle(it.frames)
		}
	}
}

// command acts on a command after the handshake. Unknown ones are ignored, as the protocol asks.
func (s *session) command(body []byte) error {
	if !s.commands.take(time.Now()) {
		return &Error{ReasonCommands, "too many"}
	}
	name, data, err := parseCommand(body)
	if err != nil {
		return err
	}
	switch name {
	case cmdError:
		return &Error{ReasonPeerError, "ERROR"}
	case cmdPing:
		if s.minor == 0 {
			return nil // heartbeats came with 3.1
		}
		pong, err := appendPong(nil, data)
		if err != nil {
			return err
		}
		_, err = s.write(pong)
		return err
	}
	return nil
}

// write writes b, which is whole frames, when it is its turn. It blocks for WriteTimeout once for itself and once
// for each writer before it. After an error the session is closed: the peer may have half a frame. n counts as
// for io.Writer; while n is less than len(b) the peer cannot have the whole of it.
func (s *session) write(b []byte) (n int, err error) {
	select {
	case <-s.turn:
	case <-s.done:
		return 0, net.ErrClosed
	}
	defer func() { s.turn <- struct{}{} }()
	err = s.nc.SetWriteDeadline(time.Now().Add(s.lim.WriteTimeout))
	if err == nil {
		n, err = s.nc.Write(b)
	}
	if err != nil {
		err = overdue(err, ReasonWrite)
		if e, ok := errors.AsType[*Error](err); ok && e.Reason == ReasonWrite {
			s.stuck.Store(true)
		}
		s.close()
	}
	return n, err
}
