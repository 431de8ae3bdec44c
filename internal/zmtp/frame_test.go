package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var small = Limits{MaxFrame: 1000, MaxFrames: 4, MaxMessage: 2000}

func scan(b []byte, lim Limits) *scanner {
	s := newScanner(bufio.NewReaderSize(bytes.NewReader(b), 16), lim)
	return &s
}

// reason is 0 for an error without one.
func reason(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return 0
}

func TestParseHeader(t *testing.T) {
	tests := []struct {
		name   string
		in     []byte
		want   header
		n      int
		reason Reason
	}{
		{"nothing", nil, header{}, 0, 0},
		{"half", []byte{0}, header{}, 0, 0},
		{"short", []byte{0, 7}, header{0, 7}, 2, 0},
		{"short more", []byte{1, 255, 9}, header{1, 255}, 2, 0},
		{"short command", []byte{4, 5}, header{4, 5}, 2, 0},
		{"long cut", []byte{2, 0, 0, 0, 0, 0, 0, 1}, header{}, 0, 0},
		{"long", []byte{2, 0, 0, 0, 0, 0, 0, 1, 2}, header{2, 258}, 9, 0},
		{"long command", []byte{6, 0, 0, 0, 0, 0, 0, 0, 1}, header{6, 1}, 9, 0},
		{"largest", []byte{3, 255, 255, 255, 255, 255, 255, 255, 255}, header{3, 1<<64 - 1}, 9, 0},
		{"reserved bit", []byte{8, 0}, header{}, 0, ReasonMalformed},
		{"HTTP", []byte("GET / HTTP/1.1"), header{}, 0, ReasonMalformed},
		{"command of several frames", []byte{5, 0}, header{}, 0, ReasonMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, n, err := parseHeader(tt.in)
			if got != tt.want && err == nil && n > 0 || n != tt.n || reason(err) != tt.reason {
				t.Errorf("got %v, %d, %v, want %v, %d, %v", got, n, err, tt.want, tt.n, tt.reason)
			}
		})
	}
}

func TestAppendMessage(t *testing.T) {
	got := appendMessage(nil, []byte("a"), nil, bytes.Repeat([]byte("b"), 256))
	want := append([]byte{1, 1, 'a', 1, 0, 2, 0, 0, 0, 0, 0, 0, 1, 0}, bytes.Repeat([]byte("b"), 256)...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := appendMessage(nil, make([]byte, 255)); got[0] != 0 || got[1] != 255 {
		t.Errorf("255 bytes: got header % x, want the short form", got[:2])
	}
}

func TestScannerRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 0, 600)
		messages := rapid.SliceOfN(rapid.SliceOfN(body, 1, 4), 0, 5).Draw(t, "messages")
		var wire []byte
		for _, m := range messages {
			wire = appendMessage(wire, m...)
			wire = appendCommand(wire, "NOISE", m[0])
		}
		var r io.Reader = bytes.NewReader(wire)
		if rapid.Bool().Draw(t, "trickled") {
			r = iotest.OneByteReader(r)
		}
		s := newScanner(bufio.NewReaderSize(r, 64), Limits{MaxFrame: 600, MaxFrames: 4, MaxMessage: 2400})
		for i, m := range messages {
			it, err := s.next()
			if err != nil || it.command != nil {
				t.Fatalf("message %d: got %v, %v", i, it, err)
			}
			if len(it.frames) != len(m) {
				t.Fatalf("message %d: got %d frames, want %d", i, len(it.frames), len(m))
			}
			for j := range m {
				if !bytes.Equal(it.frames[j], m[j]) {
					t.Fatalf("message %d frame %d differs", i, j)
				}
			}
			it, err = s.next()
			if name, data, _ := parseCommand(it.command); err != nil || name != "NOISE" || !bytes.Equal(data, m[0]) {
				t.Fatalf("command %d: got %q, %v", i, name, err)
			}
		}
		if _, err := s.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("end: got %v, want EOF", err)
		}
	})
}

func TestScannerLimits(t *testing.T) {
	long := func(flags byte, size uint64) []byte {
		return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
	}
	frames := func(n, size int) (all [][]byte) {
		for range n {
			all = append(all, make([]byte, size))
		}
		return all
	}
	tests := []struct {
		name string
		in   []byte
		want Reason
	}{
		{"frame at the limit", appendMessage(nil, make([]byte, 1000)), 0},
		{"frame above the limit", long(0, 1001), ReasonFrameSize},
		{"2^31", long(0, 1<<31), ReasonFrameSize},
		{"2^63-1", long(flagMore, 1<<63-1), ReasonFrameSize},
		{"2^63", long(0, 1<<63), ReasonFrameSize},
		{"2^64-1", long(0, 1<<64-1), ReasonFrameSize},
		{"command at the limit", append(long(flagCommand, maxCommand), make([]byte, maxCommand)...), 0},
		{"command above the limit", long(flagCommand, maxCommand+1), ReasonFrameSize},
		{"command of 2^63", long(flagCommand, 1<<63), ReasonFrameSize},
		{"frames at the limit", appendMessage(nil, frames(4, 1)...), 0},
		{"frames above the limit", appendMessage(nil, frames(5, 1)...), ReasonFrameCount},
		{"empty frames above the limit", bytes.Repeat([]byte{1, 0}, 1000), ReasonFrameCount},
		{"message at the limit", appendMessage(nil, frames(2, 1000)...), 0},
		{"message above the limit", appendMessage(nil, frames(3, 700)...), ReasonMessageSize},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := scan(tt.in, small).next()
			if reason(err) != tt.want || (err == nil) != (tt.want == 0) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestScannerCommandInsideMessage(t *testing.T) {
	wire := appendFrame(nil, flagMore, []byte("one"))
	wire = appendCommand(wire, cmdPing, []byte("\x00\x00ctx"))
	wire = appendFrame(wire, 0, []byte("two"))
	s := scan(wire, small)
	if it, err := s.next(); err != nil || string(it.command) != "\x04PING\x00\x00ctx" {
		t.Fatalf("got %q, %v, want the PING", it.command, err)
	}
	it, err := s.next()
	if diff := cmp.Diff([][]byte{[]byte("one"), []byte("two")}, it.frames); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestScannerEnd(t *testing.T) {
	wire := appendMessage(nil, []byte("one"), make([]byte, 300))
	for n := range wire {
		_, err := scan(wire[:n], small).next()
		if n == 0 && !errors.Is(err, io.EOF) || n > 0 && reason(err) != ReasonTruncated {
			t.Errorf("cut after %d bytes: got %v", n, err)
		}
	}
}

// TestScannerMemory: what is allocated follows what has arrived, whatever a header claims.
func TestScannerMemory(t *testing.T) {
	const claimed = 1 << 30
	lim := Limits{MaxFrame: claimed, MaxFrames: 8, MaxMessage: claimed}
	for _, arrived := range []int{0, 1, chunk, 10 * chunk, 100*chunk + 1} {
		wire := binary.BigEndian.AppendUint64([]byte{flagLong}, claimed)
		wire = append(wire, make([]byte, arrived)...)
		s := scan(wire, lim)
		if _, err := s.next(); reason(err) != ReasonTruncated {
			t.Errorf("got %v, want an unexpected end", err)
		}
		if got, most := cap(s.buf), 3*arrived+2*chunk; got > most {
			t.Errorf("%d bytes arrived: got a buffer of %d, want at most %d", arrived, got, most)
		}
	}
}

func TestScannerLetsLargeBufferGo(t *testing.T) {
	wire := appendMessage(nil, make([]byte, 50*chunk))
	wire = appendMessage(wire, []byte("small"))
	s := scan(wire, Limits{MaxFrame: 100 * chunk, MaxFrames: 1, MaxMessage: 100 * chunk})
	for range 2 {
		if _, err := s.next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(s.buf) > 2*chunk {
		t.Errorf("got a buffer of %d kept for a small message", cap(s.buf))
	}
}

func TestScannerAllocatesNothingWhenWarm(t *testing.T) {
	wire := appendMessage(nil, make([]byte, 128))
	r := bytes.NewReader(wire)
	s := newScanner(bufio.NewReader(r), small)
	got := testing.AllocsPerRun(100, func() {
		r.Reset(wire)
		if _, err := s.next(); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations for a message, want 0", got)
	}
}

// FuzzFrames: the scanner never panics, never exceeds its limits, does not care how bytes are cut, and what it
// returns means the same when written again.
func FuzzFrames(f *testing.F) {
	f.Add(appendMessage(nil, []byte("payload")))
	f.Add(appendMessage(nil, nil, []byte("a"), make([]byte, 300)))
	f.Add(appendCommand(appendFrame(nil, flagMore, []byte("x")), cmdPing, []byte("\x00\x01ctx")))
	f.Add([]byte("\x02\x80\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(bytes.Repeat([]byte{1, 0}, 100))
	f.Fuzz(func(t *testing.T, in []byte) {
		whole := scan(in, small)
		cut := newScanner(bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(in)), 16), small)
		for {
			a, errA := whole.next()
			b, errB := cut.next()
			if (errA == nil) != (errB == nil) || reason(errA) != reason(errB) {
				t.Fatalf("got %v whole, %v cut", errA, errB)
			}
			if cap(whole.buf) > 3*len(in)+2*chunk || cap(whole.cmd) > 3*len(in)+2*chunk {
				t.Fatal("more memory than the input explains")
			}
			if errA != nil {
				return
			}
			if !bytes.Equal(a.command, b.command) || len(a.frames) != len(b.frames) {
				t.Fatal("whole and cut differ")
			}
			if a.command != nil {
				if len(a.command) > maxCommand {
					t.Fatalf("got a command of %d bytes", len(a.command))
				}
				if name, data, err := parseCommand(a.command); err == nil {
					again, err := scan(appendCommand(nil, name, data), small).next()
					if err != nil || !bytes.Equal(again.command, a.command) {
						t.Fatal("command differs when written again")
					}
				}
				continue
			}
			total := 0
			for i := range a.frames {
				if len(a.frames[i]) > small.MaxFrame || !bytes.Equal(a.frames[i], b.frames[i]) {
					t.Fatalf("frame %d: too large, or whole and cut differ", i)
				}
				total += len(a.frames[i])
			}
			if n := len(a.frames); n == 0 || n > small.MaxFrames || total > small.MaxMessage {
				t.Fatalf("got %d frames, %d bytes", n, total)
			}
			again, err := scan(appendMessage(nil, a.frames...), small).next()
			if err != nil || !cmp.Equal(again.frames, b.frames) {
				t.Fatal("message differs when written again")
			}
		}
	})
}

func BenchmarkFrameParse(b *testing.B) {
	wire := bytes.Repeat(appendMessage(nil, make([]byte, 128)), 1000)
	r := bytes.NewReader(wire)
	s := newScanner(bufio.NewReader(r), small)
	b.SetBytes(130)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%1000 == 0 {
			r.Reset(wire)
		}
		if _, err := s.next(); err != nil {
			b.Fatal(err)
		}
	}
}
