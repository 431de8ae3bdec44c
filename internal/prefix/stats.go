package prefix

// Usage is what one owner holds.
type Usage struct {
	Bytes      int64 // length of the blocks held
	Quota      int64
	References int // number of the blocks held
}

// Usage returns what an owner holds, nothing for one that has left.
func (x *Index) Usage(o Owner) Usage {
	ow := x.owner(o)
	if ow == nil {
		return Usage{}
	}
	ow.mu.Lock()
	defer ow.mu.Unlock()
	if !x.alive(o) {
		return Usage{}
	}
	return Usage{Bytes: ow.bytes, Quota: ow.quota, References: ow.refs}
}

// Stats are figures of the whole index. Those of different owners and shards
// are not of one instant.
type Stats struct {
	Owners     int    // living owners
	Entries    int    // blocks that somebody holds, departed owners included
	References int    // blocks that living owners hold, counted for each of them
	Stale      int    // references of departed owners, not reclaimed yet
	KeyBytes   int64  // length of the blocks that living owners hold, for each of them
	Bytes      int64  // memory of the index, allocated by New
	Used       int64  // the part of Bytes in use
	Evicted    uint64 // references of living owners forgotten to make room
	Reclaimed  uint64 // references of departed owners forgotten
	Short      uint64 // inserts that recorded only the beginning of their key
}

// Stats returns the figures. It visits every slot and is meant for a scrape,
// not for a request.
func (x *Index) Stats() Stats {
	s := Stats{
		Owners:    int(x.live.Load()),
		Reclaimed: x.reclaimed.Load(),
		Short:     x.short.Load(),
	}
	x.slots.Lock()
	top := x.slots.top
	x.slots.Unlock()
	for slot := 1; slot <= top; slot++ {
		p, i := x.at(uint16(slot))
		ow := &p.owners[i]
		ow.mu.Lock()
		if p.state[i].Load()&1 == 1 {
			s.References += ow.refs
			s.KeyBytes += ow.bytes
		} else {
			s.Stale += ow.refs
		}
		s.Evicted += ow.evicted
		ow.mu.Unlock()
	}
	places := 0
	for i := range x.shards {
		sh := &x.shards[i]
		sh.mu.Lock()
		s.Entries += sh.entries
		sh.mu.Unlock()
		places += len(sh.places)
	}
	x.free.Lock()
	free := len(x.cells) - int(x.free.fresh) + x.free.stock.n
	x.free.Unlock()
	all := len(x.cells)
	s.Bytes = int64(all)*cellSize + int64(places)*placeSize + int64(len(x.shards))*shardSize
	s.Used = s.Bytes * int64(all-free) / int64(all)
	return s
}
