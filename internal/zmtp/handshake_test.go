package zmtp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// greetingOf builds a greeting as libzmq does: eight bytes of old-style length in the signature.
func greetingOf(major, minor byte, mechanism string) []byte {
	g := make([]byte, greetingSize)
	copy(g, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f")
	g[majorAt], g[minorAt] = major, minor
	copy(g[mechanismAt:], mechanism)
	return g
}

func TestAppendGreeting(t *testing.T) {
	want := "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01NULL" + strings.Repeat("\x00", 48)
	if diff := cmp.Diff(want, string(appendGreeting(nil))); diff != "" {
		t.Error(diff)
	}
}

var errWouldBlock = errors.New("would block")

type blocked struct{}

func (blocked) Read([]byte) (int, error) { return 0, errWouldBlock }

// TestReadGreeting gives no byte more than is needed to judge.
func TestReadGreeting(t *testing.T) {
	tests := []struct {
		name string
		in   []byte
		end  io.Reader
		at   Reason
	}{
		{"3.0", greetingOf(3, 0, "NULL"), blocked{}, 0},
		{"3.1", greetingOf(3, 1, "NULL"), blocked{}, 0},
		{"4.0", greetingOf(4, 0, "NULL"), blocked{}, 0},
		{"3.0 so far", greetingOf(3, 0, "NULL")[:11], blocked{}, ReasonTruncated},
		{"HTTP", []byte("G"), blocked{}, ReasonNotZMTP},
		{"TLS", []byte{0x16}, blocked{}, ReasonNotZMTP},
		{"1.0 anonymous", []byte{1}, blocked{}, ReasonNotZMTP},
		{"1.0 with a long length", []byte("\xff\x00\x00\x00\x00\x00\x00\x01\x2c\x00"), blocked{}, ReasonNotZMTP},
		{"2.0", greetingOf(1, 5, "")[:11], blocked{}, ReasonVersion},
		{"2.1", greetingOf(2, 5, "")[:11], blocked{}, ReasonVersion},
		{"PLAIN", greetingOf(3, 0, "PLAIN"), blocked{}, ReasonMechanism},
		{"CURVE", greetingOf(3, 1, "CURVE"), blocked{}, ReasonMechanism},
		{"NULLX", greetingOf(3, 1, "NULLX"), blocked{}, ReasonMechanism},
		{"NULL and rubbish", greetingOf(3, 1, "NULL\x00x"), blocked{}, ReasonMechanism},
		{"no mechanism", greetingOf(3, 1, ""), blocked{}, ReasonMechanism},
		{"nothing", nil, strings.NewReader(""), ReasonSilent},
		{"cut", greetingOf(3, 0, "NULL")[:40], strings.NewReader(""), ReasonTruncated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			minor, err := readGreeting(io.MultiReader(bytes.NewReader(tt.in), tt.end))
			switch {
			case reason(err) != tt.at || (err == nil) != (tt.at == 0):
				t.Errorf("got %v, want %v", err, tt.at)
			case err == nil && tt.in[majorAt] == 3 && minor != tt.in[minorAt]:
				t.Errorf("got minor %d, want %d", minor, tt.in[minorAt])
			}
		})
	}
}

// A READY as libzmq 4.3 sends it for a DEALER with the identity "id".
const libzmqReady = "\x04\x2b\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x02id"

func TestReady(t *testing.T) {
	dealer := metadata{socketType: "DEALER", identity: "id"}
	if diff := cmp.Diff(libzmqReady, string(appendCommand(nil, cmdReady, dealer.properties()))); diff != "" {
		t.Error(diff)
	}
	full := metadata{socketType: "DEALER", identity: strings.Repeat("x", 255)}
	tests := []struct {
		name string
		in   string
		want metadata
		at   Reason
	}{
		{"libzmq", libzmqReady, dealer, 0},
		{"longest identity", string(appendCommand(nil, cmdReady, full.properties())), full, 0},
		{"case and unknown", "\x04\x22\x05READY\x0bsocket-type\x00\x00\x00\x03REQ\x03X-y\x00\x00\x00\x01z", metadata{socketType: "REQ"}, 0},
		{"empty", "\x04\x06\x05READY", metadata{}, 0},
		{"identity of 256", string(appendCommand(nil, cmdReady, metadata{"DEALER", strings.Repeat("x", 256)}.properties())), metadata{}, ReasonIdentity},
		{"value of 2^32-1", "\x04\x12\x05READY\x01a\xff\xff\xff\xff123456", metadata{}, ReasonMalformed},
		{"value length cut", "\x04\x0a\x05READY\x01a\x00\x00", metadata{}, ReasonMalformed},
		{"name cut", "\x04\x08\x05READY\x05a", metadata{}, ReasonMalformed},
		{"empty name", "\x04\x07\x05READY\x00", metadata{}, ReasonMalformed},
		{"ERROR", "\x04\x07\x05ERROR\x00", metadata{}, ReasonPeerError},
		{"PING", "\x04\x07\x04PING\x00\x00", metadata{}, ReasonMalformed},
		{"no name", "\x04\x00", metadata{}, ReasonMalformed},
		{"name of nothing", "\x04\x01\x00", metadata{}, ReasonMalformed},
		{"name longer than the body", "\x04\x02\x05R", metadata{}, ReasonMalformed},
		{"a message", "\x00\x05READY", metadata{}, ReasonMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readReady(scan([]byte(tt.in), small.withDefaults()))
			if got != tt.want || reason(err) != tt.at || (err == nil) != (tt.at == 0) {
				t.Errorf("got %v, %v, want %v, %v", got, err, tt.want, tt.at)
			}
		})
	}
}

func TestPong(t *testing.T) {
	tests := []struct {
		name, ping, want string
		at               Reason
	}{
		{"no context", "\x00\x1e", "\x04\x05\x04PONG", 0},
		{"context", "\x00\x1ehello", "\x04\x0a\x04PONGhello", 0},
		{"context too long", "\x00\x1e0123456789abcdefXYZ", "\x04\x15\x04PONG0123456789abcdef", 0},
		{"no time to live", "\x00", "", ReasonMalformed},
	}
	for _, tt := range tests {
		got, err := appendPong(nil, []byte(tt.ping))
		if string(got) != tt.want || reason(err) != tt.at {
			t.Errorf("%s: got %q, %v, want %q, %v", tt.name, got, err, tt.want, tt.at)
		}
	}
}

func TestReasons(t *testing.T) {
	seen := map[string]bool{Reason(0).String(): true}
	for _, r := range Reasons() {
		if s := r.String(); s == "" || seen[s] {
			t.Errorf("%d: got the name %q, want one of its own", r, s)
		} else {
			seen[s] = true
		}
	}
	if got, want := (reasonEnd + 7).String(), "invalid"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// playback is a connection whose peer has said all it will say, and listens to nothing.
type playback struct{ io.Reader }

func (playback) Write(b []byte) (int, error)      { return len(b), nil }
func (playback) Close() error                     { return nil }
func (playback) LocalAddr() net.Addr              { return nil }
func (playback) RemoteAddr() net.Addr             { return nil }
func (playback) SetDeadline(time.Time) error      { return nil }
func (playback) SetReadDeadline(time.Time) error  { return nil }
func (playback) SetWriteDeadline(time.Time) error { return nil }

func FuzzGreeting(f *testing.F) {
	f.Add(greetingOf(3, 1, "NULL"))
	f.Add(greetingOf(3, 0, "CURVE"))
	f.Add(greetingOf(1, 5, ""))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		minor, err := readGreeting(bytes.NewReader(in))
		if err == nil && (len(in) < greetingSize || in[0] != 0xff || in[majorAt] < 3 || in[majorAt] == 3 && minor != in[minorAt]) {
			t.Errorf("accepted %q", in)
		}
	})
}

// FuzzHandshake plays a whole connection: greeting, READY, traffic.
func FuzzHandshake(f *testing.F) {
	hello := string(greetingOf(3, 1, "NULL")) + libzmqReady
	f.Add([]byte(hello))
	f.Add([]byte(hello + "\x00\x02hi\x04\x07\x04PING\x00\x00\x01\x01a\x00\x01b"))
	f.Add([]byte(string(greetingOf(3, 0, "NULL")) + "\x04\x07\x05ERROR\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := newSession(playback{bytes.NewReader(in)}, small.withDefaults())
		theirs, err := s.handshake(metadata{socketType: typeRouter})
		if err != nil {
			return
		}
		if len(theirs.identity) > maxIdentity {
			t.Errorf("got an identity of %d bytes", len(theirs.identity))
		}
		again, err := parseMetadata(theirs.properties())
		if err != nil || again != theirs {
			t.Errorf("got %v, %v when written again, want %v", again, err, theirs)
		}
		if err := s.serve(func([][]byte) {}); err == nil {
			t.Error("serve returned without an error")
		}
	})
}
