package prefix

import (
	"errors"
	"fmt"
)

// Limits, for tests.
const (
	Batch    = batch
	PerBlock = perBlock
	MaxSlots = maxSlots
)

// BlockEnd returns the offset of the first byte after block i.
func BlockEnd(i int) int { return blockEnd(i) }

// Hashes returns the hashes of the key's whole blocks.
func (k *Key) Hashes() []uint64 { return k.blocks() }

// Holdings are the blocks that living owners hold, by their hashes.
type Holdings map[Owner]map[uint64]bool

// Check recounts everything and returns what living owners hold. Nothing else
// may be going on.
func (x *Index) Check() (Holdings, error) {
	c := checker{x: x, refs: map[uint16][]uint32{}, hash: map[uint32]uint64{}}
	for i := range x.shards {
		c.shard(i)
	}
	if len(c.errs) == 0 {
		c.seconds()
		c.owners()
		c.memory()
	}
	held := Holdings{}
	for slot, ids := range c.refs {
		p, i := x.at(slot)
		state := p.state[i].Load()
		if state&1 == 0 {
			continue
		}
		hashes := map[uint64]bool{}
		for _, id := range ids {
			hashes[c.hash[id]] = true
		}
		held[Owner{slot: slot, use: state >> 1}] = hashes
	}
	return held, errors.Join(c.errs...)
}

type checker struct {
	x       *Index
	refs    map[uint16][]uint32 // references by slot
	hash    map[uint32]uint64   // of the blocks that are referred to
	claims  []claim             // owners besides the first ones
	second  map[claim]uint32
	cells   int // in use
	entries int
	errs    []error
}

// claim is a block's word that an owner holds it.
type claim struct {
	hash uint64
	slot uint16
}

func (c *checker) errorf(format string, args ...any) {
	if len(c.errs) < 10 {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

// shard checks a part of the table and the heads in it.
func (c *checker) shard(i int) {
	s := &c.x.shards[i]
	if c.second == nil {
		c.second = map[claim]uint32{}
	}
	used, entries := 0, 0
	for place, p := range s.places {
		if p == 0 {
			continue
		}
		used++
		id := uint32(p)
		e := &c.x.cells[id]
		if uint32(e.key) != uint32(p>>32) || c.x.shard(e.key) != s {
			c.errorf("shard %d place %d: cell %d is not of this place", i, place, id)
			continue
		}
		if got, at := s.find(c.x.cells, e.key, e.kind); got != id || at != place {
			c.errorf("shard %d: cell %d is at place %d, found %d at %d", i, id, place, got, at)
		}
		c.cells++
		switch e.kind {
		case head:
			entries++
			c.head(id, e)
		case second:
			hash := e.key ^ spread(e.slot)
			c.second[claim{hash, e.slot}] = id
			c.reference(id, e.slot, hash)
		default:
			c.errorf("shard %d: cell %d has kind %d", i, id, e.kind)
		}
	}
	if used != s.used || entries != s.entries {
		c.errorf("shard %d has %d used and %d entries, counted %d and %d", i, s.used, s.entries, used, entries)
	}
	c.entries += entries
}

func (c *checker) reference(id uint32, slot uint16, hash uint64) {
	c.refs[slot] = append(c.refs[slot], id)
	c.hash[id] = hash
}

// head checks the owners of a block.
func (c *checker) head(id uint32, h *cell) {
	if h.slot != 0 {
		c.reference(id, h.slot, h.key)
	}
	seen := map[uint16]bool{h.slot: true}
	claimed := func(slot uint16) {
		if seen[slot] {
			c.errorf("block %x has owner %d twice", h.key, slot)
		}
		seen[slot] = true
		c.claims = append(c.claims, claim{h.key, slot})
	}
	switch {
	case h.more == 0:
		if h.slot == 0 {
			c.errorf("block %x has no owner", h.key)
		}
	case h.more&single != 0:
		claimed(uint16(h.more))
	default:
		n := int(c.x.cells[h.more].slot)
		if n < 2 {
			c.errorf("block %x has a list of %d", h.key, n)
		}
		for id, in := h.more, inFirst(n); n > 0; in = perCell {
			o := &c.x.cells[id]
			if o.kind != others {
				c.errorf("block %x has cell %d of kind %d in its list", h.key, id, o.kind)
				return
			}
			c.cells++
			for i := range in {
				claimed(o.at(i))
			}
			n -= in
			id = o.more
			if (n == 0) != (id == 0) {
				c.errorf("block %x has %d owners missing from its list", h.key, n)
				return
			}
		}
	}
	if got, want := c.x.holders(h), len(seen); h.slot != 0 && got != want || h.slot == 0 && got != want-1 {
		c.errorf("block %x counts %d owners, has %d", h.key, got, want)
	}
}

// seconds checks that heads and other references agree.
func (c *checker) seconds() {
	for _, cl := range c.claims {
		if c.second[cl] == 0 {
			c.errorf("block %x lists owner %d, which has no reference", cl.hash, cl.slot)
		}
	}
	if len(c.claims) != len(c.second) {
		c.errorf("%d owners are listed, %d have references", len(c.claims), len(c.second))
	}
}

// owners checks the tree, the ring and the figures of every slot.
func (c *checker) owners() {
	for slot := 1; slot <= c.x.slots.top; slot++ {
		c.owner(uint16(slot))
	}
	free, departed := 0, 0
	for slot := c.x.slots.free; slot != 0; slot = c.x.owner(Owner{slot: slot}).next {
		free++
		if len(c.refs[slot]) > 0 {
			c.errorf("slot %d is free and has %d references", slot, len(c.refs[slot]))
		}
	}
	last := uint16(0)
	for slot := c.x.slots.first; slot != 0; slot = c.x.owner(Owner{slot: slot}).next {
		departed++
		last = slot
	}
	live := int(c.x.live.Load())
	if departed != int(c.x.departed.Load()) || last != c.x.slots.last || free+departed+live != c.x.slots.top {
		c.errorf("%d slots: %d free, %d departed, %d live; counted %d departed, last %d of %d",
			c.x.slots.top, free, departed, live, c.x.departed.Load(), c.x.slots.last, last)
	}
}

func (c *checker) owner(slot uint16) {
	ow := c.x.owner(Owner{slot: slot})
	children := map[uint32]uint32{}
	mine := map[uint32]bool{}
	bytes := int64(0)
	for _, id := range c.refs[slot] {
		e := &c.x.cells[id]
		mine[id] = true
		children[e.parent]++
		bytes += e.size()
	}
	if n := len(mine); n != ow.refs || int64(n) != ow.weight.Load() || bytes != ow.bytes {
		c.errorf("slot %d has %d references (%d for others) and %d bytes, counted %d and %d",
			slot, ow.refs, ow.weight.Load(), ow.bytes, n, bytes)
	}
	leaves := 0
	for id := range mine {
		e := &c.x.cells[id]
		if e.parent != 0 && !mine[e.parent] {
			c.errorf("slot %d: the block before cell %d is not held", slot, id)
		}
		if e.flags&leaf != 0 {
			leaves++
		}
		if n := children[id]; (n == 0) != (e.flags&leaf != 0) || n > 0 && n != e.next {
			c.errorf("slot %d: cell %d has %d children, counted %d, flags %x", slot, id, e.next, n, e.flags)
		}
	}
	prev := uint32(0)
	for id := ow.cold; id != 0; id = c.x.cells[id].next {
		e := &c.x.cells[id]
		if leaves--; leaves < 0 || !mine[id] || e.flags&leaf == 0 || e.prev != prev {
			c.errorf("slot %d: cell %d does not belong where it is in the ring", slot, id)
			return
		}
		prev = id
	}
	if leaves != 0 || prev != ow.hot {
		c.errorf("slot %d: ring lacks %d leaves, ends at %d and not %d", slot, leaves, ow.hot, prev)
	}
}

// memory checks that no cell is lost.
func (c *checker) memory() {
	free := len(c.x.cells) - int(c.x.free.fresh)
	n := 0
	for id := c.x.free.stock.top; id != 0; id = c.x.cells[id].next {
		n++
		if c.x.cells[id].kind != idle {
			c.errorf("cell %d is free and of kind %d", id, c.x.cells[id].kind)
		}
	}
	if n != c.x.free.stock.n {
		c.errorf("%d free cells, counted %d", c.x.free.stock.n, n)
	}
	if got, want := free+n+c.cells+1, len(c.x.cells); got != want {
		c.errorf("%d cells in use, %d fresh, %d free: %d of %d", c.cells, free, n, got, want)
	}
}
