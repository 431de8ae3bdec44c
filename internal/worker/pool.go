package worker

import (
	"slices"
	"sync"
	"sync/atomic"
	"unique"
)

// Lister says which lifetimes are registered. Both methods may be called with a
// Pool locked and must not block or call back into it.
type Lister interface {
	// Stamp returns a number that differs from every earlier one if the list of
	// the role has changed since, be it only because a registration expired.
	Stamp(role Role) uint64
	// List returns the live registrations of the role, at most one per URL and
	// rank, in any order. The caller owns the slice.
	List(role Role) []Registration
}

// Observer hears of membership changes while the pool is locked. It must not
// block or call back into the pool. A replaced worker is removed before its
// successor is added.
type Observer interface {
	WorkerAdded(w *Worker)
	WorkerRemoved(w *Worker)
}

// Snapshot is an immutable list of a pool's workers, ordered by URL and rank.
type Snapshot struct {
	Workers []*Worker
}

// PoolConfig is what a pool is made of.
type PoolConfig struct {
	Role      Role
	Lister    Lister
	Observers []Observer // told in this order
	Initial   Block      // reasons a new worker starts with, such as Pending
	// Dialects returns the bit in Want.Dialects of the dialect that an endpoint
	// speaks, 0 if it is not built; nil if there are no dialects.
	Dialects func(Endpoint) uint64
	Leaked   func(ID) // called, from any goroutine, for a lease collected before its release; for tests
}

// Pool keeps one Worker for each registered lifetime of one role.
type Pool struct {
	role      Role
	lister    Lister
	observers []Observer
	initial   Block
	dialects  func(Endpoint) uint64
	leaked    func(ID)

	snap    atomic.Pointer[Snapshot] // stored under mu
	current atomic.Uint64            // stamp of the last reconcile that is over, plus one; stored under mu

	mu      sync.Mutex // guards what follows, every reconcile and every pick
	byPlace map[place]*Worker
	slots   []*Worker // by Worker.Slot; nil if free
	stamp   uint64
	listed  bool // false until the first reconcile
	round   uint64
	turns   uint64
	cands   Candidates               // scratch of Pick
	pairs   []unique.Handle[pairKey] // scratch of Pick
}

// place is where a worker listens in its role: an ID without its generation.
type place struct {
	url  string
	rank Rank
}

// NewPool returns an empty pool. The first reconcile or pick fills it.
func NewPool(cfg PoolConfig) *Pool {
	p := &Pool{
		role:      cfg.Role,
		lister:    cfg.Lister,
		observers: cfg.Observers,
		initial:   cfg.Initial,
		dialects:  cfg.Dialects,
		leaked:    cfg.Leaked,
		byPlace:   make(map[place]*Worker),
	}
	p.snap.Store(&Snapshot{})
	return p
}

// Role returns the role of the pool's workers.
func (p *Pool) Role() Role { return p.role }

// Snapshot returns the workers as of the last reconcile. It takes no lock.
func (p *Pool) Snapshot() *Snapshot { return p.snap.Load() }

// Reconcile makes the pool hold exactly the registered lifetimes.
func (p *Pool) Reconcile() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reconcileLocked()
}

// Replaced reports whether another lifetime has the worker's place: its process
// is not there any more. Of a worker that has only left nothing is known. It takes
// no lock as long as the worker is there and the registry has not moved.
func (p *Pool) Replaced(w *Worker) bool {
	if current := p.current.Load(); current == p.lister.Stamp(p.role)+1 && !w.departed.Load() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reconcileLocked()
	other := p.byPlace[place{w.id.URL, w.id.Rank}]
	return other != nil && other != w
}

// reconcileLocked reads the registry with mu held, so that a stale list can
// never overwrite a newer one. The stamp is read before the list: a change in
// between is listed now and reconciled once more, for nothing, next time.
func (p *Pool) reconcileLocked() {
	stamp := p.lister.Stamp(p.role)
	if p.listed && stamp == p.stamp {
		return
	}
	regs := p.lister.List(p.role)
	p.stamp, p.listed = stamp, true
	p.round++

	var added []Registration
	for _, reg := range regs {
		w := p.byPlace[place{reg.ID.URL, reg.ID.Rank}]
		if w == nil || w.id != reg.ID {
			added = append(added, reg)
			continue
		}
		w.seen = p.round
		if !w.facts.Load().equal(reg) {
			w.facts.Store(newFacts(reg, p.dialects))
		}
	}
	removed := p.removeUnseenLocked()
	for _, reg := range added {
		p.addLocked(reg)
	}
	if removed || len(added) > 0 {
		p.publishLocked()
	}
	p.current.Store(stamp + 1)
}

// removeUnseenLocked takes out the workers that the current round did not
// list, replaced ones included, and reports whether there were any.
func (p *Pool) removeUnseenLocked() bool {
	var gone []*Worker
	for at, w := range p.byPlace {
		if w.seen != p.round {
			gone = append(gone, w)
			delete(p.byPlace, at)
		}
	}
	slices.SortFunc(gone, func(a, b *Worker) int { return a.id.compare(b.id) })
	for _, w := range gone {
		w.departed.Store(true)
		for _, o := range p.observers {
			o.WorkerRemoved(w)
		}
		p.slots[w.slot] = nil
	}
	return len(gone) > 0
}

func (p *Pool) addLocked(reg Registration) {
	w := &Worker{id: reg.ID, label: reg.ID.Label(), seen: p.round, slot: slices.Index(p.slots, nil)}
	if w.slot < 0 {
		w.slot = len(p.slots)
		p.slots = append(p.slots, nil)
	}
	p.slots[w.slot] = w
	w.facts.Store(newFacts(reg, p.dialects))
	w.Block(p.initial)
	p.byPlace[place{reg.ID.URL, reg.ID.Rank}] = w
	for _, o := range p.observers {
		o.WorkerAdded(w)
	}
}

func (p *Pool) publishLocked() {
	s := &Snapshot{Workers: make([]*Worker, 0, len(p.byPlace))}
	for _, w := range p.byPlace {
		s.Workers = append(s.Workers, w)
	}
	slices.SortFunc(s.Workers, func(a, b *Worker) int { return a.id.compare(b.id) })
	p.snap.Store(s)
}
