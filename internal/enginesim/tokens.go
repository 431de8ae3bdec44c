package enginesim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// Token ids below firstByte are special.
const (
	eosToken  = 2
	firstByte = 3 // id of byte 0
	vocabSize = firstByte + 256
)

// tokenize turns text into one token for each byte.
func tokenize(text string) []int {
	ids := make([]int, len(text))
	for i := range len(text) {
		ids[i] = int(text[i]) + firstByte
	}
	return ids
}

// detokenize is the inverse of tokenize. Ids that are no bytes give nothing.
func detokenize(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		if id >= firstByte && id < vocabSize {
			b.WriteByte(byte(id - firstByte))
		}
	}
	return b.String()
}

// checksum identifies a prompt. It is what a hand-off carries over.
func checksum(ids []int) string {
	h := sha256.New()
	var b []byte
	for len(ids) > 0 {
		n := min(len(ids), 1024)
		b = b[:0]
		for _, id := range ids[:n] {
			b = binary.LittleEndian.AppendUint32(b, uint32(id)) //nolint:gosec // ids are small
		}
		h.Write(b)
		ids = ids[n:]
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

var words = strings.Fields(`amber anchor arrow basin beacon birch bridge canyon cedar cloud
	copper coral delta ember falcon fern field flint forest garnet glacier granite harbor
	hazel heron island jasper juniper lagoon lantern ledger maple marble meadow mesa orbit
	otter pebble pine prairie quartz raven reef ridge river saffron shore silver spruce
	stone summit thicket timber tundra valley velvet willow winter`)

// story is the text that follows a prompt: words without end, chosen by the
// prompt's checksum and the number of the choice.
type story struct {
	state uint64
	buf   []byte
}

func newStory(sum string, choice int) *story {
	h := sha256.Sum256(append([]byte(sum), byte(choice), byte(choice>>8)))
	return &story{state: binary.LittleEndian.Uint64(h[:])}
}

// head returns the first n bytes of the story.
func (s *story) head(n int) []byte {
	for len(s.buf) < n {
		if len(s.buf) > 0 {
			s.buf = append(s.buf, ' ')
		}
		s.buf = append(s.buf, s.next()...)
	}
	return s.buf[:n]
}

// next returns the next word.
func (s *story) next() string { return words[s.random()%uint64(len(words))] }

// random is splitmix64.
func (s *story) random() uint64 {
	s.state += 0x9e3779b97f4a7c15
	z := s.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
