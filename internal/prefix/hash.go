package prefix

import "math/bits"

// The hash is made of 64 by 64 bit multiplications, as wyhash is: four lanes
// take 64 bytes at a time, and the end of a block folds them into the chain.
// It is keyed by the index's seed, so that keys which collide cannot be made up
// by a client. If some do, a request goes to a worker that lacks its prefix.

// stripe is the number of bytes that go into the lanes at a time. All block
// lengths are multiples of it.
const stripe = 64

type text interface{ ~string | ~[]byte }

type lanes [4]uint64

// secret is what makes the hashes of one index differ from those of another.
type secret struct {
	lanes lanes // state at the start of a block
	in    [4]uint64
	out   [3]uint64
}

func newSecret(seed uint64) secret {
	next := func() uint64 { // splitmix64
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	var s secret
	for i := range s.lanes {
		s.lanes[i] = next()
	}
	for i := range s.in {
		s.in[i] = next()
	}
	for i := range s.out {
		s.out[i] = next()
	}
	return s
}

// fold multiplies and xors the halves of the product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// block returns the hash of a whole block p and of all that comes before it,
// which chain stands for.
func block[T text](s *secret, chain uint64, p T) uint64 {
	l0, l1, l2, l3 := s.lanes[0], s.lanes[1], s.lanes[2], s.lanes[3]
	s0, s1, s2, s3 := s.in[0], s.in[1], s.in[2], s.in[3]
	for len(p) >= stripe {
		l0 = fold(load(p, 0)^s0, load(p, 8)^l0)
		l1 = fold(load(p, 16)^s1, load(p, 24)^l1)
		l2 = fold(load(p, 32)^s2, load(p, 40)^l2)
		l3 = fold(load(p, 48)^s3, load(p, 56)^l3)
		p = p[stripe:]
	}
	a := fold(l0^s.out[0], l1)
	b := fold(l2^s.out[1], l3)
	return fold(a^chain, b^s.out[2])
}

// mix takes p, which is made of whole stripes, into the lanes. With end, it
// does in parts what block does at once.
func mix[T text](l *lanes, s *secret, p T) {
	l0, l1, l2, l3 := l[0], l[1], l[2], l[3]
	s0, s1, s2, s3 := s.in[0], s.in[1], s.in[2], s.in[3]
	for len(p) >= stripe {
		l0 = fold(load(p, 0)^s0, load(p, 8)^l0)
		l1 = fold(load(p, 16)^s1, load(p, 24)^l1)
		l2 = fold(load(p, 32)^s2, load(p, 40)^l2)
		l3 = fold(load(p, 48)^s3, load(p, 56)^l3)
		p = p[stripe:]
	}
	l[0], l[1], l[2], l[3] = l0, l1, l2, l3
}

// end returns the hash of the block that is in the lanes.
func (s *secret) end(l *lanes, chain uint64) uint64 {
	a := fold(l[0]^s.out[0], l[1])
	b := fold(l[2]^s.out[1], l[3])
	return fold(a^chain, b^s.out[2])
}

// root returns what the chain of a key with this root starts from.
func (s *secret) root(parts []string) uint64 {
	h := s.out[0]
	for _, p := range parts {
		h = fold(h^uint64(len(p)), s.in[0])
		for ; len(p) >= 8; p = p[8:] {
			h = fold(h^load(p, 0), s.in[1])
		}
		var last uint64
		for i := range len(p) {
			last |= uint64(p[i]) << (8 * i)
		}
		h = fold(h^last, s.in[2])
	}
	return h
}

// load reads eight bytes of p from offset i.
func load[T text](p T, i int) uint64 {
	_ = p[i+7]
	return uint64(p[i]) | uint64(p[i+1])<<8 | uint64(p[i+2])<<16 | uint64(p[i+3])<<24 |
		uint64(p[i+4])<<32 | uint64(p[i+5])<<40 | uint64(p[i+6])<<48 | uint64(p[i+7])<<56
}
