package prefix_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/prefix"
)

// hashes returns the hashes of a key that is written at once.
func hashes(x *prefix.Index, text string, root ...string) []uint64 {
	var k prefix.Key
	x.Start(&k, root...)
	k.WriteString(text)
	return slices.Clone(k.Hashes())
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	x := prefix.New(prefix.Config{MaxBytes: 1, MaxKey: 2 << 20})
	tests := []struct{ bytes, blocks int }{
		{0, 0},
		{127, 0},
		{128, 1},
		{4<<10 - 1, 31},
		{4 << 10, 32},
		{4<<10 + 511, 32},
		{4<<10 + 512, 33},
		{32 << 10, 88},
		{32<<10 + 2048, 89},
		{256 << 10, 200},
		{1 << 20, 296},
		{2<<20 + 1, 424},
		{3 << 20, 424}, // the limit
	}
	for _, tt := range tests {
		var k prefix.Key
		x.Start(&k)
		k.WriteString(strings.Repeat("x", tt.bytes))
		got := len(k.Hashes())
		if got != tt.blocks {
			t.Errorf("%d bytes have %d blocks, want %d", tt.bytes, got, tt.blocks)
		}
		if want := min(tt.bytes, 2<<20); k.Len() != want || k.Full() != (want == 2<<20) {
			t.Errorf("%d bytes: length %d, full %t", tt.bytes, k.Len(), k.Full())
		}
		if end := prefix.BlockEnd(got); end <= min(tt.bytes, 2<<20) {
			t.Errorf("block %d ends at %d, within %d bytes", got, end, tt.bytes)
		}
	}
}

func TestRootAndSeed(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 128)
	x := prefix.New(prefix.Config{MaxBytes: 1, Seed: 1})
	seen := map[uint64]string{}
	see := func(what string, x *prefix.Index, root ...string) {
		h := hashes(x, text, root...)[0]
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s share a hash", what, other)
		}
		seen[h] = what
	}
	see("no root", x)
	see("empty root", x, "")
	see("two empty roots", x, "", "")
	see("a bc", x, "a", "bc")
	see("ab c", x, "ab", "c")
	see("abc", x, "abc")
	see("abc NUL", x, "abc\x00")
	see("8 bytes", x, "12345678")
	see("9 bytes", x, "12345678\x00")
	see("text as root", x, text)
	see("seed 2", prefix.New(prefix.Config{MaxBytes: 1, Seed: 2}))
	see("random seed", prefix.New(prefix.Config{MaxBytes: 1}))
	see("another random seed", prefix.New(prefix.Config{MaxBytes: 1}))
	if !slices.Equal(hashes(x, text, "a", "bc"), hashes(prefix.New(prefix.Config{MaxBytes: 1, Seed: 1}), text, "a", "bc")) {
		t.Error("indexes of one seed disagree")
	}
}

// TestHashesDiffer changes single bits all over a key: the hashes before stay
// and all others change.
func TestHashesDiffer(t *testing.T) {
	t.Parallel()
	x := prefix.New(prefix.Config{MaxBytes: 1, Seed: 1})
	text := make([]byte, 48<<10)
	base := hashes(x, string(text))
	seen := map[uint64]bool{}
	for _, h := range base {
		seen[h] = true
	}
	for at := 0; at < len(text); at += 61 {
		text[at] ^= 1 << (at % 8)
		for i, h := range hashes(x, string(text)) {
			before := prefix.BlockEnd(i) <= at
			if same := h == base[i]; same != before || !before && seen[h] {
				t.Fatalf("bit %d of byte %d: block %d has the hash of another key", at%8, at, i)
			}
			seen[h] = true
		}
		text[at] = 0
	}
}

// FuzzKey repeats a text and cuts it into pieces: the same bytes written in any pieces give the same key, and a key
// that begins as another one has the other's hashes.
func FuzzKey(f *testing.F) {
	f.Add([]byte("short"), uint16(1), []byte{1})
	f.Add([]byte("aé\x00\xff\"\\n你🙂\ufeff"), uint16(300), []byte{3, 0, 200, 1})
	f.Add([]byte("0123456789abcdef"), uint16(256), []byte{64, 128, 255})
	f.Add(make([]byte, 100), uint16(500), []byte{255, 254, 63})
	const limit = 40 << 10
	x := prefix.New(prefix.Config{MaxBytes: 1, Seed: 1, MaxKey: limit})
	big := prefix.New(prefix.Config{MaxBytes: 1, Seed: 1})
	f.Fuzz(func(t *testing.T, text []byte, times uint16, cuts []byte) {
		data := bytes.Repeat(text, min(int(times), limit*3/2/max(1, len(text))))
		want := hashes(x, string(data), "root")
		if all := hashes(big, string(data), "root"); !slices.Equal(want, all[:len(want)]) {
			t.Fatal("a length limit changes hashes")
		}
		var k prefix.Key
		for range 2 { // also when used again
			x.Start(&k, "root")
			pieces(t, &k, data, cuts)
			if got := k.Hashes(); !slices.Equal(got, want) {
				t.Fatalf("%d bytes in pieces have other hashes", len(data))
			}
			if k.Len() != min(len(data), limit) {
				t.Fatalf("length %d of %d bytes", k.Len(), len(data))
			}
		}
		for _, c := range cuts[:min(len(cuts), 4)] {
			n := len(data) * int(c) / 255
			if got := hashes(x, string(data[:n]), "root"); !slices.Equal(got, want[:len(got)]) {
				t.Fatalf("the beginning of %d bytes has other hashes", n)
			}
		}
	})
}

// pieces writes data as cuts says, and looks at the hashes now and then.
func pieces(t *testing.T, k *prefix.Key, data, cuts []byte) {
	for i := 0; len(data) > 0; i++ {
		n := len(data)
		if len(cuts) > 0 {
			n = min(n, int(cuts[i%len(cuts)])*(1+i%7))
		}
		if n == 0 {
			k.WriteByte(data[0])
			data = data[1:]
			continue
		}
		var m int
		var err error
		if i%2 == 0 {
			m, err = k.Write(data[:n])
		} else {
			m, err = k.WriteString(string(data[:n]))
		}
		if m != n || err != nil {
			t.Fatalf("write of %d bytes: %d, %v", n, m, err)
		}
		if i%5 == 0 {
			k.Hashes()
		}
		data = data[n:]
	}
}

// TestKeyOfAMegabyte has text that ends within characters at block boundaries.
func TestKeyOfAMegabyte(t *testing.T) {
	t.Parallel()
	x := prefix.New(prefix.Config{MaxBytes: 1, Seed: 1})
	text := strings.Repeat("aé你🙂", 1<<20/10+1)
	want := hashes(x, text)
	if len(want) != 296 {
		t.Fatalf("%d blocks, want 296", len(want))
	}
	var k prefix.Key
	x.Start(&k)
	for _, r := range text {
		k.WriteString(string(r))
	}
	if !slices.Equal(k.Hashes(), want) {
		t.Error("written by characters it has other hashes")
	}
}
