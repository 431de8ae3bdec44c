package prefix

// The references of an owner are a tree: parents are counted by their children
// and never go before them. Those without children are in a ring, an ordinary
// list from cold to hot. All of this is guarded by the owner's lock.

// chances is how many leaves in a row get a second chance.
const chances = 8

// ahead is how many places are warmed at a time.
const ahead = 16

// locate returns how many blocks an owner holds and its reference to the last
// of them. As it holds all blocks before one that it holds, a few looks are
// enough, fewest if guess is right.
func (x *Index) locate(hashes []uint64, slot uint16, guess int) (depth int, tip uint32) {
	held, missing := 0, len(hashes)
	look := func(i int) {
		if i < held || i >= missing {
			return
		}
		if id := x.reference(hashes[i], slot); id != 0 {
			held, tip = i+1, id
		} else {
			missing = i
		}
	}
	look(len(hashes) - 1)
	look(guess - 1)
	look(guess)
	for held < missing {
		look(int(uint(held+missing) / 2))
	}
	return held, tip
}

// reference returns an owner's reference to a block, 0 if it does not hold it.
func (x *Index) reference(hash uint64, slot uint16) uint32 {
	id, more := x.first(hash, slot)
	if more == 0 || more&single != 0 && uint16(more) != slot {
		return id
	}
	key := hash ^ spread(slot)
	s := x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ = s.find(x.cells, key, second)
	return id
}

// first returns the head of a block if it is the owner's reference, or else the
// head's field more.
func (x *Index) first(hash uint64, slot uint16) (id, more uint32) {
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ = s.find(x.cells, hash, head)
	if id == 0 {
		return 0, 0
	}
	if h := &x.cells[id]; h.slot != slot {
		return 0, h.more
	}
	return id, 0
}

// link makes a reference to a block and returns its cell, whose links are still
// to be set. It takes up to two cells from st. It returns 0 if the table has no
// place for it, or if the owner has the reference already, which takes two
// blocks with equal hashes.
func (x *Index) link(hash uint64, slot uint16, st *stock) uint32 {
	id, ok := x.linkFirst(hash, slot, st)
	if id != 0 || !ok {
		return id
	}
	key := hash ^ spread(slot)
	s := x.shard(key)
	s.mu.Lock()
	id, place := s.find(x.cells, key, second)
	if id != 0 || s.full() {
		s.mu.Unlock()
		x.unlinkOther(hash, slot, st)
		return 0
	}
	defer s.mu.Unlock()
	id = st.pop(x.cells)
	c := &x.cells[id]
	c.key, c.slot, c.kind = key, slot, second
	s.put(place, key, id)
	return id
}

// linkFirst makes the head of a block the owner's reference if it can be, and
// returns it. If the block has another owner, it adds this one to the others,
// and a second cell is needed. It is not ok if neither can be done.
func (x *Index) linkFirst(hash uint64, slot uint16, st *stock) (id uint32, ok bool) {
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	id, place := s.find(x.cells, hash, head)
	if id != 0 {
		switch h := &x.cells[id]; h.slot {
		case 0:
			h.slot = slot
			return id, true
		case slot:
			return 0, false
		default:
			x.addOther(h, slot, st)
			return 0, true
		}
	}
	if s.full() {
		return 0, false
	}
	id = st.pop(x.cells)
	c := &x.cells[id]
	c.key, c.more, c.slot, c.kind = hash, 0, slot, head
	s.put(place, hash, id)
	s.entries++
	return id, true
}

// unlinkOther takes an owner off the others of a block.
func (x *Index) unlinkOther(hash uint64, slot uint16, st *stock) {
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	id, place := s.find(x.cells, hash, head)
	h := &x.cells[id]
	x.removeOther(h, slot, st)
	if h.slot == 0 && h.more == 0 {
		s.drop(place)
		st.push(x.cells, id)
	}
}

// unlinkFirst takes the owner off that the head of a block belongs to. The cell
// stays while there are others.
func (x *Index) unlinkFirst(h *cell, st *stock) {
	s := x.shard(h.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.slot = 0
	if h.more == 0 {
		id, place := s.find(x.cells, h.key, head)
		s.drop(place)
		st.push(x.cells, id)
	}
}

// unlinkSecond removes a cell that is not the head of its block.
func (x *Index) unlinkSecond(c *cell, st *stock) {
	s := x.shard(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	id, place := s.find(x.cells, c.key, second)
	s.remove(place)
	st.push(x.cells, id)
}

// forget removes a leaf. A parent that it leaves without children becomes the
// coldest leaf.
func (x *Index) forget(ow *owner, slot uint16, id uint32, st *stock) {
	c := &x.cells[id]
	x.unlink(ow, c)
	if c.parent != 0 {
		p := &x.cells[c.parent]
		if p.stamp != c.stamp {
			p.stamp = 0 // whoever used this one used that one too
		}
		if p.next--; p.next == 0 {
			x.linkCold(ow, c.parent)
		}
	}
	ow.bytes -= c.size()
	ow.refs--
	if c.kind == head {
		x.unlinkFirst(c, st)
		return
	}
	x.unlinkOther(c.key^spread(slot), slot, st)
	x.unlinkSecond(c, st)
}

// evict forgets the coldest leaf that was not used since it was last looked at,
// or, if many in a row were, the next one. It reports whether there was a leaf.
func (x *Index) evict(ow *owner, slot uint16, st *stock) bool {
	if ow.evicted%ahead == 0 {
		x.warmCold(ow)
	}
	for range chances {
		id := ow.cold
		if id == 0 {
			return false
		}
		c := &x.cells[id]
		if c.flags&used == 0 {
			break
		}
		c.flags &^= used
		x.unlink(ow, c)
		x.linkHot(ow, id)
	}
	x.forget(ow, slot, ow.cold, st)
	ow.evicted++
	return true
}

// warmCold warms the places of what will be forgotten next, more or less.
func (x *Index) warmCold(ow *owner) {
	n := 0
	for end := ow.cold; end != 0; end = x.cells[end].next {
		for id := end; ; {
			c := &x.cells[id]
			x.warm(c.key)
			if n++; n == ahead {
				return
			}
			if id = c.parent; id == 0 || x.cells[id].next > 1 {
				break
			}
		}
	}
}

// heaviest returns the slot that has most references, 0 if none has more than
// the given one. With very many owners it looks at some of them only, others
// each time.
func (x *Index) heaviest(than uint16) uint16 {
	const most = 1024
	p, i := x.at(than)
	best, weight := uint16(0), p.owners[i].weight.Load()
	x.slots.Lock()
	top := x.slots.top
	x.slots.Unlock()
	n := min(top, most)
	start := int(x.turn.Add(most) % uint64(top))
	for j := range n {
		slot := uint16((start+j)%top + 1)
		p, i := x.at(slot)
		if w := p.owners[i].weight.Load(); w > weight {
			best, weight = slot, w
		}
	}
	return best
}

// linkCold makes a reference the coldest leaf.
func (x *Index) linkCold(ow *owner, id uint32) {
	c := &x.cells[id]
	c.flags |= leaf
	c.prev, c.next = 0, ow.cold
	if ow.cold != 0 {
		x.cells[ow.cold].prev = id
	} else {
		ow.hot = id
	}
	ow.cold = id
}

// linkHot makes a reference the hottest leaf.
func (x *Index) linkHot(ow *owner, id uint32) {
	c := &x.cells[id]
	c.flags |= leaf
	c.prev, c.next = ow.hot, 0
	if ow.hot != 0 {
		x.cells[ow.hot].next = id
	} else {
		ow.cold = id
	}
	ow.hot = id
}

// unlink takes a leaf out of the ring.
func (x *Index) unlink(ow *owner, c *cell) {
	c.flags &^= leaf
	if c.prev != 0 {
		x.cells[c.prev].next = c.next
	} else {
		ow.cold = c.next
	}
	if c.next != 0 {
		x.cells[c.next].prev = c.prev
	} else {
		ow.hot = c.prev
	}
}
