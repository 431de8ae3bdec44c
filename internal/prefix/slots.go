package prefix

import (
	"errors"
	"sync"
	"sync/atomic"
)

// ErrFull is returned when there is no slot for another owner.
var ErrFull = errors.New("prefix index has no free slot")

// Owner names one lifetime of a worker: a slot and how often the slot had been
// used before. It is comparable; the zero Owner is nobody. What is done in the
// name of an owner that has left is ignored.
type Owner struct {
	slot uint16
	use  uint32
}

// Slot returns the owner's slot, for arrays that are indexed by it: a number of
// 1 to 65,535, kept small. Owners that live at the same time differ in it.
func (o Owner) Slot() int { return int(o.slot) }

// page is the state of a run of slots.
type page struct {
	state  [pageSize]atomic.Uint32 // twice the use count, plus one while it lives
	owners [pageSize]owner
}

// owner is the state of a slot. Its references stay until they are reclaimed
// after it has left; the slot is not used again before that.
type owner struct {
	mu        sync.Mutex // guards the fields below, and links and flags of references
	quota     int64      // of bytes
	bytes     int64      // length of the blocks held
	refs      int        // number of blocks held
	evicted   uint64     // references forgotten to make room
	cold, hot uint32     // ends of the ring of leaves; the coldest is forgotten first
	stamp     uint32     // number of the latest insert

	next   uint16       // in a list of slots; guarded by Index.slots
	weight atomic.Int64 // refs, for those who do not hold the lock
}

// unlock ends what may have changed refs.
func (ow *owner) unlock() {
	if w := int64(ow.refs); ow.weight.Load() != w {
		ow.weight.Store(w)
	}
	ow.mu.Unlock()
}

// at returns the page of a slot and the slot's place in it.
func (x *Index) at(slot uint16) (p *page, i int) {
	return x.pages[slot/pageSize].Load(), int(slot % pageSize)
}

// owner returns the state of an owner, nil if it is nobody's.
func (x *Index) owner(o Owner) *owner {
	p, i := x.at(o.slot)
	if p == nil || o.slot == 0 {
		return nil
	}
	return &p.owners[i]
}

// alive reports whether o has not left.
func (x *Index) alive(o Owner) bool {
	p, i := x.at(o.slot)
	return p != nil && p.state[i].Load() == o.use<<1|1
}

// Join returns a new owner, which holds nothing. It does a bounded amount of
// work, of which reclaiming 64 references of departed owners is a part. The
// error is [ErrFull].
func (x *Index) Join() (Owner, error) {
	x.reclaim(batch, nil)
	x.slots.Lock()
	defer x.slots.Unlock()
	slot := x.slots.free
	switch {
	case slot != 0:
		x.slots.free = x.owner(Owner{slot: slot}).next
	case x.slots.top < maxSlots:
		x.slots.top++
		slot = uint16(x.slots.top)
		if at := &x.pages[slot/pageSize]; at.Load() == nil {
			at.Store(new(page))
		}
	default:
		return Owner{}, ErrFull
	}
	p, i := x.at(slot)
	p.owners[i].quota = x.quota // nobody looks at it before the slot lives
	x.live.Add(1)
	return Owner{slot: slot, use: p.state[i].Add(1) >> 1}, nil
}

// Leave ends an owner. From now on it matches nothing, whoever gets its slot
// next. It takes constant time: the references stay, count as used memory, and
// are reclaimed bit by bit by later inserts and joins.
func (x *Index) Leave(o Owner) {
	p, i := x.at(o.slot)
	if p == nil || o.slot == 0 || !p.state[i].CompareAndSwap(o.use<<1|1, (o.use+1)<<1) {
		return
	}
	x.live.Add(-1)
	x.slots.Lock()
	defer x.slots.Unlock()
	p.owners[i].next = 0
	if x.slots.last == 0 {
		x.slots.first = o.slot
	} else {
		x.owner(Owner{slot: x.slots.last}).next = o.slot
	}
	x.slots.last = o.slot
	x.departed.Add(1)
}

// reclaim forgets up to n references of departed owners, and frees the slots of
// those that have none left. The cells go to st, or back if it is nil. It
// returns how many references it forgot. It does not wait for an owner's lock.
func (x *Index) reclaim(n int, st *stock) (done int) {
	if x.departed.Load() == 0 {
		return 0
	}
	var own stock
	if st == nil {
		st = &own
		defer func() { x.giveBack(&own) }()
	}
	for range n {
		slot := x.popDeparted()
		if slot == 0 {
			break
		}
		ow := x.owner(Owner{slot: slot})
		if !ow.mu.TryLock() { // an insert that began before it left
			x.pushDeparted(slot, ow, false)
			break
		}
		for ; done < n && ow.cold != 0; done++ {
			x.forget(ow, slot, ow.cold, st)
		}
		empty := ow.refs == 0
		ow.unlock()
		x.pushDeparted(slot, ow, empty)
		if done == n {
			break
		}
	}
	x.reclaimed.Add(uint64(done))
	return done
}

// popDeparted takes the first departed owner off the list. Its references are
// the caller's to reclaim. It returns 0 if there is none.
func (x *Index) popDeparted() uint16 {
	x.slots.Lock()
	defer x.slots.Unlock()
	slot := x.slots.first
	if slot == 0 {
		return 0
	}
	x.slots.first = x.owner(Owner{slot: slot}).next
	if x.slots.first == 0 {
		x.slots.last = 0
	}
	x.departed.Add(-1)
	return slot
}

// pushDeparted frees the slot of a departed owner, or puts it back in front if
// it has references still.
func (x *Index) pushDeparted(slot uint16, ow *owner, empty bool) {
	x.slots.Lock()
	defer x.slots.Unlock()
	if empty {
		ow.next = x.slots.free
		x.slots.free = slot
		return
	}
	ow.next = x.slots.first
	x.slots.first = slot
	if x.slots.last == 0 {
		x.slots.last = slot
	}
	x.departed.Add(1)
}

// SetQuota sets how many bytes of keys the owner may hold; shared beginnings
// count once. A lower quota is reached bit by bit, by the owner's next inserts.
func (x *Index) SetQuota(o Owner, bytes int64) {
	ow := x.owner(o)
	if ow == nil {
		return
	}
	ow.mu.Lock()
	defer ow.mu.Unlock()
	if x.alive(o) { // and the slot will not be another owner's before the lock is free
		ow.quota = bytes
	}
}
