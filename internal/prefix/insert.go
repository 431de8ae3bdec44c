package prefix

// Insert records that an owner holds a key, as far as the key has whole blocks.
// It makes room by forgetting what has not been used for longest: four
// references for each block that it adds, and 64 more, at the most. If that is
// not enough, or if the quota or the memory is too small for the key, it records
// the key's beginning.
//
// It holds no lock for longer than it takes to make or forget 128 references.
// Inserts for different owners, and matches, do not wait for one another longer
// than for one change of the table.
func (x *Index) Insert(k *Key, o Owner) Undo {
	in := insertion{x: x, o: o, ow: x.owner(o), hashes: k.blocks(), guess: k.known}
	if in.ow == nil || len(in.hashes) == 0 {
		return Undo{}
	}
	for in.step() {
	}
	if in.made > 0 {
		x.reclaim(sweep, &in.stock)
	}
	x.giveBack(&in.stock)
	if in.less {
		x.short.Add(1)
	}
	return Undo{x: x, k: k, o: o, stamp: in.stamp, made: in.made, end: in.guess}
}

// insertion is one call of Insert.
type insertion struct {
	x      *Index
	o      Owner
	ow     *owner
	hashes []uint64
	guess  int    // number of blocks that the owner probably holds
	stamp  uint32 // 0 until there is something to change
	made   int    // references made
	todo   int    // references that may still be made
	budget int    // references that may still be forgotten
	steps  int    // the same for both, before the owner must be unlocked
	less   bool   // less than the whole key is recorded
	stock  stock
	dry    bool // all free cells are taken
	poor   bool // cells must come from another owner
	alone  bool // no other owner has cells to spare
}

// step adds blocks until it has held the owner's lock for long enough, and
// reports whether to go on.
func (in *insertion) step() (more bool) {
	in.steps, in.poor = 2*batch, false
	more = in.add()
	if in.poor {
		in.alone = !in.rob()
		return true
	}
	return more
}

// add is what step does with the owner locked.
func (in *insertion) add() (more bool) {
	x, ow, n := in.x, in.ow, len(in.hashes)
	ow.mu.Lock()
	defer ow.unlock()
	if !x.alive(in.o) {
		in.less = false
		return false
	}
	depth, tip := x.locate(in.hashes, in.o.slot, in.guess)
	if depth == n && ow.bytes <= ow.quota {
		in.guess, in.less = n, false
		in.touch(&x.cells[tip])
		return false
	}
	if in.stamp == 0 {
		in.begin(n - depth)
	}
	in.pin(tip)
	for depth < n && in.todo > 0 && in.steps > 0 && in.room(n-depth, int64(blockSize(depth))) {
		if in.made%ahead == 0 {
			for _, h := range in.hashes[depth:min(depth+ahead, n)] {
				x.warm(h)
			}
		}
		id := x.link(in.hashes[depth], in.o.slot, &in.stock)
		if id == 0 {
			break
		}
		in.adopt(id, tip, blockLevel(depth))
		tip = id
		depth++
	}
	in.shrink()
	x.unpin(ow, tip)
	if in.shrink() > 0 { // the quota is less than what was held of this key alone
		depth, _ = x.locate(in.hashes, in.o.slot, depth)
	}
	in.guess, in.less = depth, depth < n
	return in.steps == 0 && (depth < n || ow.bytes > ow.quota)
}

// begin is called before the first change, when n blocks are to be added.
func (in *insertion) begin(n int) {
	in.ow.stamp++
	if in.ow.stamp == 0 {
		in.ow.stamp++
	}
	in.stamp = in.ow.stamp
	in.todo, in.budget = n, batch+perBlock*n
}

// touch notes that a reference was used.
func (in *insertion) touch(c *cell) {
	if c.flags&used == 0 {
		c.flags |= used
	}
	if c.stamp != in.stamp {
		c.stamp = 0
	}
}

// pin keeps a reference from being forgotten while blocks are added after it.
func (in *insertion) pin(tip uint32) {
	if tip == 0 {
		return
	}
	c := &in.x.cells[tip]
	if c.stamp != in.stamp {
		c.stamp = 0
	}
	if c.flags&leaf == 0 {
		c.next++
		return
	}
	in.x.unlink(in.ow, c)
	c.flags &^= used // from now on its children tell
	c.next = 1
}

// unpin ends what pin began. A reference without children becomes the hottest
// leaf.
func (x *Index) unpin(ow *owner, tip uint32) {
	if tip == 0 {
		return
	}
	c := &x.cells[tip]
	if c.next--; c.next == 0 {
		x.linkHot(ow, tip)
	}
}

// room makes room for one more block of the given size in the quota and in the
// memory, and reports whether there is. n blocks are still to be added.
func (in *insertion) room(n int, size int64) bool {
	x, ow := in.x, in.ow
	for ow.bytes+size > ow.quota {
		if !in.evict() {
			return false
		}
	}
	// A block needs a cell, and may need another one for the list of its owners.
	const need = 2
	if in.stock.n < need && !in.dry {
		n = min(n, batch) + 1
		x.take(&in.stock, n)
		in.dry = in.stock.n < n
	}
	for in.stock.n < need {
		if !in.alone && (x.departed.Load() > 0 || int64(ow.refs)*x.live.Load() <= int64(len(x.cells))) {
			in.poor = true
			return false
		}
		if !in.evict() {
			return false
		}
	}
	return true
}

// shrink forgets what the owner holds over its quota, which has been lowered,
// and returns how many references that were.
func (in *insertion) shrink() (n int) {
	for in.ow.bytes > in.ow.quota && in.evict() {
		n++
	}
	return n
}

// evict forgets a reference of the owner itself.
func (in *insertion) evict() bool {
	if in.steps == 0 || in.budget == 0 || !in.x.evict(in.ow, in.o.slot, &in.stock) {
		return false
	}
	in.steps--
	in.budget--
	return true
}

// rob takes cells from departed owners, or else from the one that has most. It
// is called with the owner unlocked, and reports whether it got what a block
// needs.
func (in *insertion) rob() bool {
	x := in.x
	in.budget -= x.reclaim(min(batch, in.budget), &in.stock)
	if in.stock.n >= 2 {
		return true
	}
	slot := x.heaviest(in.o.slot)
	if slot == 0 {
		return false
	}
	ow := x.owner(Owner{slot: slot})
	ow.mu.Lock()
	defer ow.unlock()
	for range min(in.todo+1, batch, in.budget) {
		if !x.evict(ow, slot, &in.stock) {
			break
		}
		in.budget--
	}
	return in.stock.n >= 2
}

// adopt makes a cell that link returned the owner's reference after tip. The
// new one is pinned; the pin of tip becomes the count of its new child.
func (in *insertion) adopt(id, tip uint32, level uint8) {
	c := &in.x.cells[id]
	c.parent, c.prev, c.next = tip, 0, 1
	c.stamp = in.stamp
	c.flags = level
	in.ow.bytes += c.size()
	in.ow.refs++
	in.made++
	in.todo--
	in.steps--
}
