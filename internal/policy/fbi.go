package policy

import "encoding/binary"

// The hash of vllm-project/router's hash policies, which has it from mcrouter's
// fbi library: FurcHash over a stream of bits made by MurmurHash64A, spread over
// 64 bits by MurmurHash64A again. It must agree bit for bit, so that a key is
// placed as it was there.
const (
	fbiSeed    = 4193360111
	murmurM    = 0xc6a4a7935bd1e995
	murmurR    = 47
	furcShift  = 23
	furcTries  = 32
	furcModule = 1<<23 - 1
)

// fbiHash returns one of 2^23-1 values.
func fbiHash(key []byte) uint64 {
	var bucket [4]byte
	binary.LittleEndian.PutUint32(bucket[:], furc(key, furcModule))
	return murmur(bucket[:])
}

func murmurMix(k uint64) uint64 {
	k *= murmurM
	k ^= k >> murmurR
	return k * murmurM
}

func murmurEnd(h uint64) uint64 {
	h ^= h >> murmurR
	h *= murmurM
	return h ^ h>>murmurR
}

// murmur is MurmurHash64A.
func murmur(p []byte) uint64 {
	h := fbiSeed ^ uint64(len(p))*murmurM
	for ; len(p) >= 8; p = p[8:] {
		h ^= murmurMix(binary.LittleEndian.Uint64(p))
		h *= murmurM
	}
	if len(p) > 0 {
		for i, c := range p {
			h ^= uint64(c) << (8 * i)
		}
		h *= murmurM
	}
	return murmurEnd(h)
}

// furcBits is the stream of bits that FurcHash draws from. Word 0 is the hash of
// the key, and each further word that of the one before it.
type furcBits struct {
	words [16]uint64 // the first ones: more are hardly ever needed
	made  int
}

func (b *furcBits) at(i int) uint64 {
	word := i >> 6
	for ; b.made <= min(word, len(b.words)-1); b.made++ {
		b.words[b.made] = rehash(b.words[b.made-1])
	}
	w := b.words[min(word, len(b.words)-1)]
	for range word - (len(b.words) - 1) {
		w = rehash(w)
	}
	return w >> (i & 63) & 1
}

// rehash is MurmurHash64A of one word.
func rehash(w uint64) uint64 {
	const begin = (fbiSeed ^ (8 * murmurM & (1<<64 - 1))) & (1<<64 - 1)
	return murmurEnd((begin ^ murmurMix(w)) * murmurM)
}

// furc places a key in one of m buckets.
func furc(key []byte, m uint32) uint32 {
	if m <= 1 {
		return 0
	}
	b := furcBits{made: 1}
	b.words[0] = murmur(key)
	d := 0
	for m > 1<<d {
		d++
	}
	a := d
	for range furcTries {
		for b.at(a) == 0 {
			if d == 0 {
				return 0
			}
			d--
			a = d
		}
		a += furcShift
		num := uint32(1)
		for range max(d-1, 0) {
			num = num<<1 | uint32(b.at(a))
			a += furcShift
		}
		if num < m {
			return num
		}
	}
	return 0
}
