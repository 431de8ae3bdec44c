package prefix

const cellSize = 32

// What a cell is.
const (
	idle   uint8 = iota // free
	head                // found by a block's hash: the entry of the block, and the first owner's reference
	second              // found by the hash and the slot: another owner's reference
	others              // slots of a block's owners
)

// cell is the unit of memory. As the head of a block it has the owners of the
// block: slot is one of them, 0 if that one has gone, and more has the others.
// Head or second, it is a reference as well, which the rest is about.
//
// The shard's lock guards key, more, slot and kind, the owner's lock the others.
type cell struct {
	key    uint64
	more   uint32 // see others.go
	parent uint32 // reference to the block before, 0 if it is the first
	prev   uint32 // leaf: the next colder one
	next   uint32 // leaf: the next hotter one; else the number of children
	stamp  uint32 // the insert that made it, 0 when another one has used it
	slot   uint16
	kind   uint8
	flags  uint8
}

// Flags of a reference.
const (
	levelMask uint8 = 3      // of the length of its block
	used      uint8 = 1 << 2 // since the ring came past
	leaf      uint8 = 1 << 3 // in the ring
)

// size returns the length of the block that is referred to.
func (c *cell) size() int64 { return 128 << (2 * (c.flags & levelMask)) }

// spread returns what tells the keys of a block's references apart.
func spread(slot uint16) uint64 { return uint64(slot) * 0x9e3779b97f4a7c15 }

// stock is a heap of free cells that one goroutine has, linked by next.
type stock struct {
	top uint32
	n   int
}

func (st *stock) push(cells []cell, id uint32) {
	c := &cells[id]
	c.kind = idle
	c.next = st.top
	st.top = id
	st.n++
}

func (st *stock) pop(cells []cell) uint32 {
	id := st.top
	st.top = cells[id].next
	st.n--
	return id
}

// take brings the stock up to n cells if there are as many.
func (x *Index) take(st *stock, n int) {
	x.free.Lock()
	defer x.free.Unlock()
	for st.n < n && x.free.stock.n > 0 {
		st.push(x.cells, x.free.stock.pop(x.cells))
	}
	for st.n < n && int(x.free.fresh) < len(x.cells) {
		st.push(x.cells, x.free.fresh)
		x.free.fresh++
	}
}

// giveBack frees what is left in the stock.
func (x *Index) giveBack(st *stock) {
	if st.n == 0 {
		return
	}
	x.free.Lock()
	defer x.free.Unlock()
	for st.n > 0 {
		x.free.stock.push(x.cells, st.pop(x.cells))
	}
}
