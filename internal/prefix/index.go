package prefix

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Limits and defaults.
const (
	minBytes     = 64 << 10
	defaultBytes = 64 << 20
	defaultKey   = 1 << 20

	maxSlots = 1<<16 - 1
	pageSize = 256 // slots
	maxCells = 1<<31 - 1

	batch    = 64 // references that are forgotten for another owner while a lock is held; twice as many for its own
	perBlock = 4  // references that an insert may forget for each that it makes: blocks differ in length
	sweep    = 16 // references of departed owners that an insert reclaims unasked
)

// Config is what an index is made with. The zero value is usable.
type Config struct {
	// MaxBytes is the memory of the index, all of which New allocates; 0 is 64
	// MiB, and less than 64 KiB is 64 KiB. A reference takes 44 bytes of it,
	// and up to 59 where a block has a few owners more than two. On top come 17
	// KiB for each 256 owners that ever lived at a time.
	MaxBytes int64

	// DefaultQuota is the quota of owners for which none has been set, in bytes
	// of keys; 0 is no limit but MaxBytes.
	DefaultQuota int64

	// MaxKey is how many bytes of a key are looked at; 0 is 1 MiB.
	MaxKey int

	// Seed keys the hashes; 0 is a random one.
	Seed uint64
}

// Index is the prefix index. Make one with [New].
type Index struct {
	secret secret
	maxKey int
	quota  int64

	cells  []cell // the first is not used: 0 is no cell
	shards []shard
	shift  uint // from a hash to its shard

	free struct {
		sync.Mutex
		stock stock
		fresh uint32 // the first cell that was never used
	}

	slots struct {
		sync.Mutex
		top         int    // slots ever used
		free        uint16 // head of the free slots
		first, last uint16 // departed owners whose references are not reclaimed yet
	}
	pages    [maxSlots/pageSize + 1]atomic.Pointer[page]
	live     atomic.Int64
	departed atomic.Int64 // length of the list at slots.first
	turn     atomic.Uint64

	reclaimed atomic.Uint64
	short     atomic.Uint64
}

// New returns an empty index and allocates all its memory.
func New(cfg Config) *Index {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultBytes
	}
	if cfg.DefaultQuota == 0 {
		cfg.DefaultQuota = math.MaxInt64
	}
	if cfg.MaxKey == 0 {
		cfg.MaxKey = defaultKey
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	x := &Index{secret: newSecret(cfg.Seed), maxKey: cfg.MaxKey, quota: cfg.DefaultQuota}
	cells, shards, places := layout(max(cfg.MaxBytes, minBytes))
	x.cells = make([]cell, cells)
	x.free.fresh = 1
	x.shards = make([]shard, shards)
	x.shift = 64
	for n := shards; n > 1; n >>= 1 {
		x.shift--
	}
	table := make([]uint64, shards*places)
	for i := range x.shards {
		x.shards[i].places = table[i*places : (i+1)*places : (i+1)*places]
	}
	return x
}

// layout divides the memory between cells and the table.
func layout(bytes int64) (cells, shards, places int) {
	cells = int(min(bytes*2/(2*cellSize+3*placeSize), maxCells))
	for shards = 1; shards < 64 && cells/shards > 2048; {
		shards *= 2
	}
	// Hashes are not spread evenly over shards, and less so over small ones.
	places = cells*3/2/shards + 128
	cells -= shards * (128*placeSize + shardSize) / cellSize
	return cells, shards, places
}
