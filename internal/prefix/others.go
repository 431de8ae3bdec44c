package prefix

// The owners of a block besides the one in its head are in the head's field
// more: none if it is 0, a single slot if its top bit is set, or else the first
// of a chain of cells that hold twelve slots each, four of them in key and two
// in each of parent, prev, next and stamp. All cells of a chain but the first
// are full; the first has the number of all slots, two at least, in its field
// slot. The chain is guarded by the head's shard.

const (
	single  = 1 << 31
	perCell = 12
)

// inFirst returns how many of n slots are in the first cell of a chain.
func inFirst(n int) int { return (n-1)%perCell + 1 }

// words returns the slots in a cell of a chain, four to a word.
func (c *cell) words() [perCell / 4]uint64 {
	return [...]uint64{c.key, uint64(c.parent) | uint64(c.prev)<<32, uint64(c.next) | uint64(c.stamp)<<32}
}

// at returns slot i of a cell of a chain.
func (c *cell) at(i int) uint16 {
	w := c.words()
	return uint16(w[i/4] >> (i % 4 * 16))
}

// setAt sets slot i of a cell of a chain.
func (c *cell) setAt(i int, slot uint16) {
	w := c.words()
	shift := i % 4 * 16
	w[i/4] = w[i/4]&^(0xffff<<shift) | uint64(slot)<<shift
	c.key = w[0]
	c.parent, c.prev = uint32(w[1]), uint32(w[1]>>32)
	c.next, c.stamp = uint32(w[2]), uint32(w[2]>>32)
}

// holders returns how many owners a head has.
func (x *Index) holders(h *cell) int {
	n := 0
	if h.slot != 0 {
		n++
	}
	switch {
	case h.more == 0:
	case h.more&single != 0:
		n++
	default:
		n += int(x.cells[h.more].slot)
	}
	return n
}

// addOther adds an owner to a head. It takes at most one cell from st.
func (x *Index) addOther(h *cell, slot uint16, st *stock) {
	if h.more == 0 {
		h.more = single | uint32(slot)
		return
	}
	n := 1
	if h.more&single == 0 {
		n = int(x.cells[h.more].slot)
	}
	if n == 1 || n%perCell == 0 {
		id := st.pop(x.cells)
		c := &x.cells[id]
		c.kind = others
		if n == 1 {
			c.more = 0
			c.setAt(0, uint16(h.more))
		} else {
			c.more = h.more
		}
		h.more = id
	}
	c := &x.cells[h.more]
	c.setAt(n%perCell, slot)
	c.slot = uint16(n + 1)
}

// removeOther takes an owner off a head, which must have it.
func (x *Index) removeOther(h *cell, slot uint16, st *stock) {
	if h.more&single != 0 {
		h.more = 0
		return
	}
	// The latest of all takes its place.
	first := &x.cells[h.more]
	n := int(first.slot)
	latest := inFirst(n) - 1
	c, i := x.findOther(h, slot)
	c.setAt(i, first.at(latest))
	first.slot--
	switch {
	case n == 2:
		last := single | uint32(first.at(0))
		st.push(x.cells, h.more)
		h.more = last
	case latest == 0:
		rest := first.more
		st.push(x.cells, h.more)
		h.more = rest
		x.cells[rest].slot = uint16(n - 1)
	}
}

// findOther returns where in the chain of a head a slot is.
func (x *Index) findOther(h *cell, slot uint16) (c *cell, i int) {
	c = &x.cells[h.more]
	for n := inFirst(int(c.slot)); ; n = perCell {
		for i, w := range c.words() {
			for j := range min(4, n-4*i) {
				if uint16(w>>(16*j)) == slot {
					return c, 4*i + j
				}
			}
		}
		c = &x.cells[c.more]
	}
}
