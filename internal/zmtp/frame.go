package zmtp

import (
	"bufio"
	"encoding/binary"
	"slices"
)

// A frame is a flags byte, a length of one byte or (flagLong) eight, and a body. A message is one or more
// frames, all but the last with flagMore. A command is one frame with flagCommand.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2

	shortHeader = 2
	longHeader  = 9

	maxCommand = 4 << 10 // bytes; a READY with a full identity and its own metadata stays far below
	chunk      = 4 << 10 // bytes; room made for bytes that have not arrived, while they are few
)

type header struct {
	flags byte
	size  uint64
}

func (h header) command() bool { return h.flags&flagCommand != 0 }
func (h header) more() bool    { return h.flags&flagMore != 0 }

// parseHeader reads the header at the front of b. n is its length, 0 if b is too short to hold it.
func parseHeader(b []byte) (h header, n int, err error) {
	if len(b) < shortHeader {
		return header{}, 0, nil
	}
	h.flags = b[0]
	if h.flags&^(flagMore|flagLong|flagCommand) != 0 {
		return header{}, 0, &Error{ReasonMalformed, "reserved flag bits"}
	}
	if h.command() && h.more() {
		return header{}, 0, &Error{ReasonMalformed, "a command of several frames"}
	}
	if h.flags&flagLong == 0 {
		h.size = uint64(b[1])
		return h, shortHeader, nil
	}
	if len(b) < longHeader {
		return header{}, 0, nil
	}
	h.size = binary.BigEndian.Uint64(b[1:])
	return h, longHeader, nil
}

// appendFrame appends a frame, in its short form where that can hold it.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) <= 0xff {
		b = append(b, flags, byte(len(body)))
	} else {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	}
	return append(b, body...)
}

// appendMessage appends a message of at least one frame.
func appendMessage(b []byte, frames ...[]byte) []byte {
	size := 0
	for _, f := range frames {
		size += longHeader + len(f)
	}
	b = slices.Grow(b, size)
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

// item is what a scanner found: the body of a command, or the frames of a message.
// It is valid until the scanner is asked for the next.
type item struct {
	command []byte   // nil for a message
	frames  [][]byte // nil for a command
}

// scanner splits a byte stream into commands and messages within limits.
// Invariant: cap(buf) is at most three times the bytes that have arrived for the current message, plus 2*chunk.
type scanner struct {
	br     *bufio.Reader
	lim    Limits
	buf    []byte // the bodies of the current message, one after the other
	ends   []int  // where each body ends in buf
	frames [][]byte
	cmd    []byte
	handed bool // buf and frames were given to the caller
}

func newScanner(br *bufio.Reader, lim Limits) scanner {
	return scanner{br: br, lim: lim}
}

// next returns the next command or whole message. An end of the stream between items is the reader's own error;
// elsewhere it has ReasonTruncated. A command may stand between the frames of a message: libzmq puts its
// heartbeats there.
func (s *scanner) next() (item, error) {
	if s.handed {
		s.reset()
	}
	for {
		h, err := s.header()
		if err != nil {
			return item{}, err
		}
		if err := s.check(h); err != nil {
			return item{}, err
		}
		if h.command() {
			s.cmd, err = s.body(s.cmd[:0], int(h.size))
			return item{command: s.cmd}, err
		}
		s.buf, err = s.body(s.buf, int(h.size))
		if err != nil {
			return item{}, err
		}
		s.ends = append(s.ends, len(s.buf))
		if !h.more() {
			return item{frames: s.split()}, nil
		}
	}
}

func (s *scanner) header() (header, error) {
	for want := shortHeader; ; want = longHeader {
		b, err := s.br.Peek(want)
		if err != nil {
			if len(b) > 0 || len(s.ends) > 0 {
				err = cut(err, ReasonTruncated)
			}
			return header{}, err
		}
		h, n, err := parseHeader(b)
		if err != nil {
			return header{}, err
		}
		if n > 0 {
			_, err = s.br.Discard(n)
			return h, err
		}
	}
}

// check refuses a frame by its header, before a byte of its body is read.
func (s *scanner) check(h header) error {
	switch {
	case h.command():
		if h.size > maxCommand {
			return &Error{ReasonFrameSize, "command too large"}
		}
	case h.size > uint64(s.lim.MaxFrame):
		return &Error{ReasonFrameSize, "frame too large"}
	case len(s.ends) == s.lim.MaxFrames:
		return &Error{ReasonFrameCount, "too many frames"}
	case uint64(len(s.buf))+h.size > uint64(s.lim.MaxMessage):
		return &Error{ReasonMessageSize, "message too large"}
	}
	return nil
}

// body appends the next n bytes of the stream to b, growing it as they arrive.
// The result is never nil, so that an empty command is still a command.
func (s *scanner) body(b []byte, n int) ([]byte, error) {
	if b == nil {
		b = make([]byte, 0, min(n, chunk))
	}
	for n > 0 {
		ahead := min(n, max(chunk, len(b)))
		b = slices.Grow(b, ahead)
		m, err := s.br.Read(b[len(b) : len(b)+ahead])
		b = b[:len(b)+m]
		n -= m
		if n > 0 && err != nil {
			return b, cut(err, ReasonTruncated)
		}
	}
	return b, nil
}

func (s *scanner) split() [][]byte {
	s.handed = true
	start := 0
	for _, end := range s.ends {
		s.frames = append(s.frames, s.buf[start:end:end])
		start = end
	}
	return s.frames
}

// reset forgets the message handed out. It keeps small buffers for the next one and lets large ones go, so that
// a peer that once sent a large message does not hold its memory from then on.
func (s *scanner) reset() {
	s.handed = false
	s.ends = s.ends[:0]
	clear(s.frames)
	s.frames = s.frames[:0]
	if s.buf = s.buf[:0]; cap(s.buf) > 2*chunk {
		s.buf = nil
	}
}
