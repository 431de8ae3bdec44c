package prefix

// Undo is what one insert did, so that it can be taken back. The zero Undo is
// nothing. It refers to the key, which must not be started again before.
type Undo struct {
	x     *Index
	k     *Key
	o     Owner
	stamp uint32 // of the insert
	made  int    // references
	end   int    // number of blocks of the key that the owner held after the insert
}

// Undo forgets the blocks that the insert added, except those that another
// insert has used since: its own key has them too. What the insert made its
// owner forget does not come back.
func (u Undo) Undo() {
	if u.made == 0 {
		return
	}
	var st stock
	for u.takeBack(&st) == batch {
		u.end -= batch
	}
	u.x.giveBack(&st)
}

// takeBack forgets up to 64 blocks and returns how many.
func (u Undo) takeBack(st *stock) (n int) {
	x, ow := u.x, u.x.owner(u.o)
	ow.mu.Lock()
	defer ow.unlock()
	if !x.alive(u.o) {
		return 0
	}
	_, tip := x.locate(u.k.hashes, u.o.slot, u.end)
	for ; n < batch && tip != 0; n++ {
		c := &x.cells[tip]
		if c.stamp != u.stamp || c.flags&leaf == 0 {
			break
		}
		parent := c.parent
		x.forget(ow, u.o.slot, tip, st)
		tip = parent
	}
	if n > 0 && tip != 0 && x.cells[tip].flags&leaf != 0 { // it was not cold before
		x.unlink(ow, &x.cells[tip])
		x.linkHot(ow, tip)
	}
	return n
}
