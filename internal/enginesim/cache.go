package enginesim

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// blockHash names the content of a full block and of all before it.
type blockHash [16]byte

// chain returns the hashes of the full blocks of tokens. extra distinguishes
// what shares no cache (adapter, cache salt).
func chain(tokens []int, size int, extra string) []blockHash {
	return chainFrom([]byte(extra), tokens, size)
}

// chainFrom goes on after a block: prev is its hash.
func chainFrom(prev []byte, tokens []int, size int) []blockHash {
	hashes := make([]blockHash, 0, len(tokens)/size)
	buf := append(make([]byte, 0, len(prev)+16+8*size), prev...)
	for len(tokens) >= size {
		for _, id := range tokens[:size] {
			buf = binary.LittleEndian.AppendUint64(buf, uint64(id)) //nolint:gosec // only hashed
		}
		sum := sha256.Sum256(buf)
		h := blockHash(sum[:16])
		hashes = append(hashes, h)
		buf = append(buf[:0], h[:]...)
		tokens = tokens[size:]
	}
	return hashes
}

// block is one block of the KV cache. It is in the free list iff refs is 0.
type block struct {
	id         int
	refs       int
	hash       blockHash
	hashed     bool
	prev, next *block
}

// cache is the block pool of an engine: blocks that requests and hand-offs hold,
// and a free list, least recently used first, whose blocks keep their content
// until they are taken. Guarded by Engine.mu.
type cache struct {
	size   int // tokens in a block
	blocks []block
	byHash map[blockHash]*block
	root   block // of the free list
	nfree  int
}

func newCache(size, n int) *cache {
	c := &cache{size: size, blocks: make([]block, n), byHash: map[blockHash]*block{}}
	c.root.next, c.root.prev = &c.root, &c.root
	for i := 1; i < n; i++ { // block 0 is the null block
		c.blocks[i].id = i
		c.push(&c.blocks[i], c.root.prev)
	}
	return c
}

// push puts b into the free list after at.
func (c *cache) push(b, at *block) {
	b.prev, b.next = at, at.next
	at.next.prev, at.next = b, b
	c.nfree++
}

func (c *cache) unlink(b *block) {
	b.prev.next, b.next.prev = b.next, b.prev
	b.prev, b.next = nil, nil
	c.nfree--
}

// hold is the set of blocks that one prompt uses.
type hold struct {
	hashes []blockHash // of the full blocks
	need   int         // blocks for the whole prompt
	limit  int         // of the blocks that may be hits
	blocks []*block
	hits   int // leading blocks that were cached
}

func (c *cache) newHold(tokens []int, extra string) *hold {
	return &hold{
		hashes: chain(tokens, c.size, extra),
		need:   (len(tokens) + c.size - 1) / c.size,
		limit:  max(0, len(tokens)-1) / c.size, // the last token is always computed
	}
}

// hitting returns the cached blocks at the start of h.
func (c *cache) hitting(h *hold) []*block {
	var found []*block
	for _, hash := range h.hashes[:min(len(h.hashes), h.limit)] {
		b := c.byHash[hash]
		if b == nil {
			break
		}
		found = append(found, b)
	}
	return found
}

// reserve fills all holds or, if there are not enough free blocks, none.
func (c *cache) reserve(holds []*hold) bool {
	for i, h := range holds {
		if !c.reserveOne(h) {
			for _, done := range holds[:i] {
				c.release(done.blocks)
				done.blocks, done.hits = nil, 0
			}
			return false
		}
	}
	return true
}

func (c *cache) reserveOne(h *hold) bool {
	hits := c.hitting(h)
	idle := 0
	for _, b := range hits {
		if b.refs == 0 {
			idle++
		}
	}
	if c.nfree-idle < h.need-len(hits) {
		return false
	}
	h.blocks = make([]*block, 0, h.need)
	for _, b := range hits {
		c.touch(b)
		h.blocks = append(h.blocks, b)
	}
	for len(h.blocks) < h.need {
		h.blocks = append(h.blocks, c.take())
	}
	h.hits = len(hits)
	return true
}

// touch adds a reference to b.
func (c *cache) touch(b *block) {
	if b.refs == 0 {
		c.unlink(b)
	}
	b.refs++
}

// take returns the least recently used free block, emptied, or nil.
func (c *cache) take() *block {
	b := c.root.next
	if b == &c.root {
		return nil
	}
	c.unlink(b)
	c.forget(b)
	b.refs = 1
	return b
}

func (c *cache) forget(b *block) {
	if b.hashed {
		delete(c.byHash, b.hash)
		b.hashed = false
	}
}

// keep makes blocks findable under hashes. A content that is already there stays
// where it is.
func (c *cache) keep(blocks []*block, hashes []blockHash) {
	for i, h := range hashes[:min(len(blocks), len(hashes))] {
		if b := blocks[i]; !b.hashed && c.byHash[h] == nil {
			b.hash, b.hashed = h, true
			c.byHash[h] = b
		}
	}
}

// release gives one reference to each of blocks back, the last first, so that
// the end of a prompt is evicted before its start.
func (c *cache) release(blocks []*block) {
	for _, b := range slices.Backward(blocks) {
		b.refs--
		switch {
		case b.refs < 0:
			panic("BUG: block released twice")
		case b.refs > 0:
		case b.hashed:
			c.push(b, c.root.prev)
		default:
			c.push(b, &c.root)
		}
	}
}

// used counts the blocks that somebody holds.
func (c *cache) used() int { return len(c.blocks) - 1 - c.nfree }

// usage is the used part of the pool, 0 to 1.
func (c *cache) usage() float64 { return float64(c.used()) / float64(len(c.blocks)-1) }

// clear forgets all content; it fails while a block is held.
func (c *cache) clear() bool {
	if c.used() > 0 {
		return false
	}
	for i := range c.blocks {
		c.forget(&c.blocks[i])
	}
	return true
}
