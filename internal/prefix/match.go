package prefix

// Match says how much of a key an owner holds.
type Match struct {
	Owner Owner
	Bytes int // length of the blocks it holds from the beginning, at least one
}

// Match appends to dst[:0] the living owners that hold a beginning of the key,
// each with the longest, the longest first, and returns it. With a dst that has
// room it does not allocate once the key has been used before. It waits for
// nothing but single changes of the table.
//
// What it returns was true of each owner at some instant of the call. An owner
// that left before the call is never in it, and what an owner was not sent is
// never part of its match unless hashes of 64 bits collide.
func (x *Index) Match(k *Key, dst []Match) []Match {
	m := matching{x: x, k: k, hashes: k.blocks(), rows: dst[:0]}
	k.known = 0
	n := len(m.hashes)
	if n == 0 {
		return m.rows
	}
	last := m.add(n - 1)
	if n > 1 {
		if first := m.holders(0); first > last {
			m.between(0, n-1, first, last)
		}
	}
	m.unmark()
	return m.rows
}

// matching is one call of Match.
type matching struct {
	x      *Index
	k      *Key
	hashes []uint64
	rows   []Match
	marked int // rows that are marked in k.seen
}

// holders returns the number of owners of block i, departed ones included.
func (m *matching) holders(i int) int {
	key := m.hashes[i]
	s := m.x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ := s.find(m.x.cells, key, head)
	if id == 0 {
		return 0
	}
	return m.x.holders(&m.x.cells[id])
}

// between adds the owners that hold block lo but not block hi, given how many
// hold each. The holders of a block are among those of the one before it, also
// with departed owners counted, so if there are as many there is nothing to add.
func (m *matching) between(lo, hi, atLo, atHi int) {
	if atLo <= atHi {
		return
	}
	if hi-lo == 1 {
		m.add(lo)
		return
	}
	mid := int(uint(lo+hi) / 2)
	atMid := m.holders(mid)
	m.between(mid, hi, atMid, atHi)
	m.between(lo, mid, atLo, atMid)
}

// add adds the living owners of block i that have no row yet, and returns the
// number of all its owners.
func (m *matching) add(i int) int {
	m.mark()
	key := m.hashes[i]
	s := m.x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _ := s.find(m.x.cells, key, head)
	if id == 0 {
		return 0
	}
	m.k.known = max(m.k.known, i+1)
	h := &m.x.cells[id]
	bytes := blockEnd(i)
	n := 0
	if h.slot != 0 {
		n++
		m.row(h.slot, bytes)
	}
	switch {
	case h.more == 0:
	case h.more&single != 0:
		n++
		m.row(uint16(h.more), bytes)
	default:
		c := &m.x.cells[h.more]
		n += int(c.slot)
		for in := inFirst(int(c.slot)); ; in = perCell {
			for i, w := range c.words() {
				for range min(4, in-4*i) {
					m.row(uint16(w), bytes)
					w >>= 16
				}
			}
			if c.more == 0 {
				break
			}
			c = &m.x.cells[c.more]
		}
	}
	return n
}

// row adds a row for the owner in a slot unless it has one or has left. The
// lock of the shard keeps the slot from being given to another owner.
func (m *matching) row(slot uint16, bytes int) {
	if m.marked > 0 && m.k.seen[slot>>6]>>(slot&63)&1 == 1 {
		return
	}
	p, i := m.x.at(slot)
	if state := p.state[i].Load(); state&1 == 1 {
		m.rows = append(m.rows, Match{Owner: Owner{slot: slot, use: state >> 1}, Bytes: bytes})
	}
}

// mark marks the owners that have a row.
func (m *matching) mark() {
	if len(m.rows) == m.marked {
		return
	}
	if m.k.seen == nil {
		m.k.seen = make([]uint64, (maxSlots+1)/64)
	}
	for _, r := range m.rows[m.marked:] {
		m.k.seen[r.Owner.slot>>6] |= 1 << (r.Owner.slot & 63)
	}
	m.marked = len(m.rows)
}

// unmark leaves the scratch clear.
func (m *matching) unmark() {
	for _, r := range m.rows[:m.marked] {
		m.k.seen[r.Owner.slot>>6] = 0
	}
}
