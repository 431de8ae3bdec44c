// Package prefix remembers which worker was sent which prompt, so that a policy
// can find the workers that probably hold a prompt's beginning in their KV
// cache. It never keeps text, starts no goroutine, reads no clock, and its
// memory is allocated once.
//
// A request's [Key] is cut into blocks, and each block is stood for by a hash of
// it and of all that comes before it. The [Index] maps such a hash to the owners
// that hold the block. An [Owner] is one lifetime of a worker.
//
// # References
//
// That an owner holds a block is a reference. Invariant: an owner that holds a
// block holds all blocks before it, at every instant. A block is added after
// the one before it and forgotten only when the owner holds no block after it:
// tail before head. The references of an owner are therefore a tree, a match is
// contiguous by construction, and the beginning that many conversations share
// outlives all of them. It also means that the owners of block i+1 are among
// those of block i, so that equal numbers are equal sets: a match looks at a
// few blocks of a key and skips the rest.
//
// Only the leaves of that tree, the ends of what an owner was sent, can be
// forgotten and are in its ring. A leaf that was used since the ring came past
// gets a second chance. What a forgotten leaf leaves bare is the next to go.
// Recording a prompt that is known already touches one reference, not all.
//
// # Memory
//
// [New] allocates cells of 32 bytes and a table of half as many places again.
// A cell is a reference, or twelve of the other owners of a block. Nothing grows
// later. When the cells are used up, an insert takes those of departed owners
// first, then its owner's own, or, while that owner has less than an equal
// share, those of the owner that has most.
//
// # Concurrency
//
// Everything here may be used from any goroutine, but a [Key] by one at a time.
// The table is divided into shards; a shard's lock is held for one lookup or one
// change. What an owner's inserts change is guarded by the owner's lock, which
// is held while at most 128 references are made or forgotten. A match takes
// shard locks only, so it does not wait for inserts.
// Lock order: an owner, then a shard; the lock of the free cells and that of the
// slots come last. Nobody holds two owners or two shards.
package prefix
