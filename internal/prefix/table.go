package prefix

import (
	"sync"
	"sync/atomic"
)

const (
	placeSize = 8
	shardSize = 64
)

// shard is one part of the table that finds cells by their keys: open
// addressing with linear probing. A place holds the low half of the key above
// the number of the cell; 0 is empty. The low half alone says where the search
// for it begins, so that cells can be moved up without looking at them.
type shard struct {
	mu      sync.Mutex // guards the rest, and the fields of cells that say so
	entries int        // cells that are heads
	used    int        // places
	places  []uint64
	_       [16]byte // so that two locks do not share a cache line
}

// shard returns the part of the table that a key belongs to.
func (x *Index) shard(key uint64) *shard { return &x.shards[key>>x.shift] }

// home returns where the search for a key begins.
func (s *shard) home(low uint32) int {
	return int(uint64(low) * uint64(len(s.places)) >> 32)
}

// find returns the cell with this key, head or not, and its place. If there is
// none the cell is 0 and the place an empty one where it may be put.
func (s *shard) find(cells []cell, key uint64, kind uint8) (id uint32, place int) {
	low := uint32(key)
	for i := s.home(low); ; {
		p := s.places[i]
		if p == 0 {
			return 0, i
		}
		if uint32(p>>32) == low {
			if c := &cells[uint32(p)]; c.key == key && c.kind == kind {
				return uint32(p), i
			}
		}
		if i++; i == len(s.places) {
			i = 0
		}
	}
}

// warm reads the place of a key, so that it is in the processor's cache when the
// search comes. Reads for several keys in a row overlap, which those of searches
// do not, because each of them takes a lock.
func (x *Index) warm(key uint64) {
	s := x.shard(key)
	atomic.LoadUint64(&s.places[s.home(uint32(key))])
}

// full reports whether nothing more should be put here. The searches need an
// empty place to end at.
func (s *shard) full() bool { return s.used >= len(s.places)-len(s.places)/16 }

// set is atomic because of warm.
func (s *shard) set(place int, to uint64) { atomic.StoreUint64(&s.places[place], to) }

// put enters a cell at an empty place that find returned.
func (s *shard) put(place int, key uint64, id uint32) {
	s.set(place, uint64(uint32(key))<<32|uint64(id))
	s.used++
}

// remove empties a place and moves up those behind it that would not be found.
func (s *shard) remove(place int) {
	n := len(s.places)
	for i := place; ; {
		if i++; i == n {
			i = 0
		}
		p := s.places[i]
		if p == 0 {
			break
		}
		// It may move up if its home is not between the gap and itself.
		if s.behind(s.home(uint32(p>>32)), i) >= s.behind(place, i) {
			s.set(place, p)
			place = i
		}
	}
	s.set(place, 0)
	s.used--
}

// drop removes the head of a block.
func (s *shard) drop(place int) {
	s.remove(place)
	s.entries--
}

// behind returns how far place j is behind place i.
func (s *shard) behind(i, j int) int {
	if j < i {
		return j - i + len(s.places)
	}
	return j - i
}
