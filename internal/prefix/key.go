package prefix

// A key is cut into blocks by offset alone, so that all keys with a common
// beginning agree on the blocks of it. Blocks are 128 bytes long in the first
// 4 KiB, and each further stretch has blocks four times as long:
//
//	offset      block   blocks
//	0           128 B   32
//	4 KiB       512 B   56
//	32 KiB      2 KiB   112
//	256 KiB     8 KiB   one for each further 8 KiB
//
// A match is thus known to about an eighth of its length or better, and a key
// of 1 MiB has 296 blocks instead of 8,192.
const (
	start1, from1 = 32, 4 << 10
	start2, from2 = start1 + 56, 32 << 10
	start3, from3 = start2 + 112, 256 << 10
)

// blockLevel returns how often the length of block i has grown.
func blockLevel(i int) uint8 {
	switch {
	case i < start1:
		return 0
	case i < start2:
		return 1
	case i < start3:
		return 2
	default:
		return 3
	}
}

// blockSize returns the length of block i in bytes.
func blockSize(i int) int { return 128 << (2 * blockLevel(i)) }

// blockEnd returns the offset of the first byte after block i.
func blockEnd(i int) int {
	switch i++; {
	case i <= start1:
		return i << 7
	case i <= start2:
		return from1 + (i-start1)<<9
	case i <= start3:
		return from2 + (i-start2)<<11
	default:
		return from3 + (i-start3)<<13
	}
}

// Key is the routing key of one request as the index sees it: a chain of
// hashes, each of them of a block and of all that comes before it. It keeps no
// text.
//
// [Index.Start] begins a key; whatever is then written is hashed at once, so
// that a caller feeds pieces of text without joining them. How the bytes are
// divided among writes makes no difference. A last block that is not full does
// not count, so a key that goes on after the end of another one extends it.
//
// A Key belongs to one goroutine at a time, also while it is matched or
// inserted. It is meant to be used again and must not be copied.
type Key struct {
	hashes []uint64 // one for each whole block
	chain  uint64   // the last of hashes; the root's before there is one
	lanes  lanes    // of the block under way
	left   int      // bytes of the block under way that have not gone into lanes
	size   int      // bytes taken
	max    int      // bytes that will be taken
	secret *secret
	part   int // bytes in buf: taken and not yet hashed
	buf    [512]byte

	known int      // blocks that anybody held at the last Match
	seen  []uint64 // scratch of Match: a bit for each slot
}

// Start begins a key. The root is what keys must have in common to share
// anything at all, such as model, adapter and cache salt; it is not counted in
// the key's length. A key may only be used with the index that started it.
func (x *Index) Start(k *Key, root ...string) {
	k.secret = &x.secret
	k.hashes = k.hashes[:0]
	k.chain = k.secret.root(root)
	k.lanes = k.secret.lanes
	k.left = blockSize(0)
	k.size, k.max = 0, x.maxKey
	k.part = 0
	k.known = 0
}

// Write adds bytes to the key. It takes those that the length limit leaves
// room for, says that it took all, and never fails.
func (k *Key) Write(p []byte) (int, error) {
	write(k, p)
	return len(p), nil
}

// WriteString is like [Key.Write].
func (k *Key) WriteString(s string) (int, error) {
	write(k, s)
	return len(s), nil
}

// WriteByte is like [Key.Write].
func (k *Key) WriteByte(c byte) error {
	if k.part < len(k.buf) && k.size < k.max {
		k.buf[k.part] = c
		k.part++
		k.size++
		return nil
	}
	write(k, []byte{c})
	return nil
}

// Len returns the length of the key in bytes, a last block that is not full
// included and what was over the limit not.
func (k *Key) Len() int { return k.size }

// Full reports whether the key has reached its length limit, so that writing
// more makes no difference.
func (k *Key) Full() bool { return k.size >= k.max }

// write adds p to the key.
func write[T text](k *Key, p T) {
	if room := k.max - k.size; len(p) > room {
		p = p[:room]
	}
	k.size += len(p)
	if len(p) <= len(k.buf)-k.part {
		k.part += copy(k.buf[k.part:], p)
		return
	}
	n := -k.part & (stripe - 1)
	copy(k.buf[k.part:], p[:n])
	absorb(k, k.buf[:k.part+n])
	whole := n + (len(p)-n)&^(stripe-1)
	absorb(k, p[n:whole])
	k.part = copy(k.buf[:], p[whole:])
}

// blocks returns the hashes of the whole blocks.
func (k *Key) blocks() []uint64 {
	if k.part >= stripe {
		whole := k.part &^ (stripe - 1)
		absorb(k, k.buf[:whole])
		k.part = copy(k.buf[:], k.buf[whole:k.part])
	}
	return k.hashes
}

// absorb hashes p, which is made of whole stripes.
func absorb[T text](k *Key, p T) {
	for len(p) > 0 {
		full := blockSize(len(k.hashes))
		if k.left == full && len(p) >= full {
			k.chain = block(k.secret, k.chain, p[:full])
			k.hashes = append(k.hashes, k.chain)
			p = p[full:]
			k.left = blockSize(len(k.hashes))
			continue
		}
		n := min(k.left, len(p))
		mix(&k.lanes, k.secret, p[:n])
		p = p[n:]
		if k.left -= n; k.left == 0 {
			k.chain = k.secret.end(&k.lanes, k.chain)
			k.hashes = append(k.hashes, k.chain)
			k.lanes = k.secret.lanes
			k.left = blockSize(len(k.hashes))
		}
	}
}
