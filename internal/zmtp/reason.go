package zmtp

import (
	"errors"
	"fmt"
	"os"
)

// Reason says why a connection or a message was dropped. The set is small and fixed, fit for a metric label.
type Reason uint8

// The reasons. All of them cost the peer its connection, except ReasonRate, which costs one message.
const (
	_                      Reason = iota
	ReasonAccept                  // the listener could not accept (for example, no file descriptor left)
	ReasonNotAllowed              // Config.Allow said no
	ReasonPeers                   // Config.MaxPeers are connected
	ReasonHandshakeTimeout        // the handshake was not over within Limits.HandshakeTimeout
	ReasonNotZMTP                 // the first bytes are no ZMTP signature (HTTP, ZMTP 1.0)
	ReasonVersion                 // ZMTP older than 3.0
	ReasonMechanism               // a security mechanism other than NULL
	ReasonSocketType              // a socket type that does not talk to ours, or none
	ReasonIdentity                // an identity longer than 255 bytes
	ReasonMalformed               // bytes that are not ZMTP 3
	ReasonFrameSize               // a frame larger than Limits.MaxFrame, or a command larger than 4 KiB
	ReasonFrameCount              // more frames in a message than Limits.MaxFrames
	ReasonMessageSize             // a message larger than Limits.MaxMessage
	ReasonCommands                // a flood of commands
	ReasonRate                    // a message beyond Config.Rate; the connection goes on
	ReasonSilent                  // the peer left without a word: a port probe, or libzmq that wants another mechanism
	ReasonTruncated               // the peer left in the middle of the handshake or of a message
	ReasonIdle                    // silence for Limits.IdleTimeout
	ReasonWrite                   // the peer did not take our bytes within Limits.WriteTimeout
	ReasonPeerError               // the peer sent ERROR
	reasonEnd
)

var reasonNames = [reasonEnd]string{
	"invalid", "accept", "not_allowed", "peers", "handshake_timeout", "not_zmtp", "version", "mechanism",
	"socket_type", "identity", "malformed", "frame_size", "frame_count", "message_size", "commands", "rate",
	"silent", "truncated", "idle", "write", "peer_error",
}

// String returns the reason in snake_case.
func (r Reason) String() string {
	if r >= reasonEnd {
		r = 0
	}
	return reasonNames[r]
}

// Reasons returns all reasons, so that a metric can start each of them at zero.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonEnd-1)
	for r := ReasonAccept; r < reasonEnd; r++ {
		all = append(all, r)
	}
	return all
}

// Error is a connection given up for a Reason.
type Error struct {
	Reason Reason
	Detail string // what was seen, without content
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return "zmtp: " + e.Reason.String()
	}
	return fmt.Sprintf("zmtp: %s: %s", e.Reason, e.Detail)
}

// cut is err for a read that ended where it should not, with the reason for that unless it was a deadline.
// A peer that leaves between messages is an everyday event without a Reason.
func cut(err error, reason Reason) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return &Error{reason, err.Error()}
}

// overdue gives a deadline that has passed its reason.
func overdue(err error, reason Reason) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &Error{reason, "deadline exceeded"}
	}
	return err
}
