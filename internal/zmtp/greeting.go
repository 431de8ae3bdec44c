package zmtp

import (
	"bytes"
	"io"
)

// The greeting: FF, eight bytes to ignore, 7F, major, minor, mechanism (20), as-server (1), filler (31).
const (
	greetingSize  = 64
	signatureSize = 10
	majorAt       = 10
	minorAt       = 11
	mechanismAt   = 12
	mechanismSize = 20

	versionMajor = 3
	versionMinor = 1
)

func appendGreeting(b []byte) []byte {
	var g [greetingSize]byte
	g[0], g[signatureSize-1] = 0xff, 0x7f
	g[majorAt], g[minorAt] = versionMajor, versionMinor
	copy(g[mechanismAt:], "NULL")
	return append(b, g[:]...)
}

// readGreeting reads the peer's greeting and returns its minor version. It judges each part as soon as it is
// there, so that a peer of another protocol is refused without waiting for bytes it will never send. A major
// version above ours is fine: that peer steps down.
func readGreeting(r io.Reader) (minor byte, err error) {
	var g [greetingSize]byte
	at := 0
	read := func(upTo int) error {
		_, err := io.ReadFull(r, g[at:upTo])
		switch {
		case err == nil:
		case at == 0:
			err = cut(err, ReasonSilent)
		default:
			err = cut(err, ReasonTruncated)
		}
		at = upTo
		return err
	}

	if err := read(1); err != nil {
		return 0, err
	}
	if g[0] != 0xff {
		return 0, &Error{ReasonNotZMTP, "no signature"}
	}
	if err := read(signatureSize); err != nil {
		return 0, err
	}
	if g[signatureSize-1]&1 == 0 {
		return 0, &Error{ReasonNotZMTP, "unversioned"}
	}
	if err := read(majorAt + 1); err != nil {
		return 0, err
	}
	if g[majorAt] < versionMajor {
		return 0, &Error{ReasonVersion, "older than 3.0"}
	}
	if err := read(greetingSize); err != nil {
		return 0, err
	}
	mechanism := g[mechanismAt : mechanismAt+mechanismSize]
	if !bytes.Equal(bytes.TrimRight(mechanism, "\x00"), []byte("NULL")) {
		return 0, &Error{ReasonMechanism, "not NULL"}
	}
	if g[majorAt] > versionMajor {
		return versionMinor, nil
	}
	return g[minorAt], nil
}
