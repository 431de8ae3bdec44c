package policy

import (
	"sync"
	"sync/atomic"

	"github.com/baton-llm/baton/internal/prefix"
	"github.com/baton-llm/baton/internal/worker"
)

// affinity is the prefix index of one role and the workers that are its owners.
// It is an observer of the role's pool. The index is made when the first worker
// arrives: a role without workers costs nothing.
type affinity struct {
	memory, quota int64
	index         atomic.Pointer[prefix.Index] // stored under pool.mu
	lookups       sync.Pool

	mu    sync.Mutex            // held to change seats; locked after pool.mu
	seats atomic.Pointer[seats] // stored under mu
}

// seat is a worker as an owner in the index.
type seat struct {
	w       *worker.Worker
	owner   prefix.Owner
	emptied uint32       // [worker.Worker.Emptied] when it was taken
	quota   atomic.Int64 // set last; 0: the index's own default
	given   recent       // uncached prompt tokens, for least_wait
}

// current reports whether the worker still has in its cache what the index knows
// of the seat, as far as its engine tells.
func (s *seat) current() bool { return s.emptied == s.w.Emptied() }

// seats are the workers by their slots. It is immutable.
type seats struct {
	byOwner  []*seat // by the owner's slot
	byWorker []*seat // by the worker's slot
}

var _ worker.Observer = (*affinity)(nil)

func newAffinity(cfg Config) *affinity {
	a := &affinity{memory: cfg.IndexMemory, quota: cfg.MaxTreeSize}
	a.seats.Store(&seats{})
	a.lookups.New = func() any { return new(lookup) }
	return a
}

// WorkerAdded implements [worker.Observer]. A worker for which the index has no
// slot is chosen by load.
func (a *affinity) WorkerAdded(w *worker.Worker) {
	x := a.index.Load()
	if x == nil {
		x = prefix.New(prefix.Config{MaxBytes: a.memory, DefaultQuota: a.quota})
		a.index.Store(x)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sit(x, w)
}

// sit gives the worker a seat, if the index has a slot. Called with mu held.
func (a *affinity) sit(x *prefix.Index, w *worker.Worker) {
	emptied := w.Emptied()
	owner, err := x.Join()
	if err != nil {
		return
	}
	s := &seat{w: w, owner: owner, emptied: emptied}
	old := a.seats.Load()
	a.seats.Store(&seats{
		byOwner:  replaced(old.byOwner, owner.Slot(), s),
		byWorker: replaced(old.byWorker, w.Slot(), s),
	})
}

// rise takes the worker's seat away, if it has one. Called with mu held.
func (a *affinity) rise(w *worker.Worker) {
	s := a.seat(w)
	if s == nil {
		return
	}
	a.index.Load().Leave(s.owner)
	old := a.seats.Load()
	a.seats.Store(&seats{
		byOwner:  replaced(old.byOwner, s.owner.Slot(), nil),
		byWorker: replaced(old.byWorker, w.Slot(), nil),
	})
}

// newSeat returns the worker's seat, another one if its engine has lost its cache
// since it took it; nil if it has none.
func (a *affinity) newSeat(w *worker.Worker) *seat {
	if s := a.seat(w); s == nil || s.current() {
		return s
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.seat(w); s == nil || s.current() {
		return s
	}
	a.rise(w)
	a.sit(a.index.Load(), w)
	return a.seat(w)
}

// WorkerRemoved implements [worker.Observer].
func (a *affinity) WorkerRemoved(w *worker.Worker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rise(w)
}

// IndexStats returns the figures of the prefix index, zero before the role has
// had a worker, and if the policy has no index. It is meant for a scrape.
func (a *affinity) IndexStats() prefix.Stats {
	if a == nil || a.index.Load() == nil {
		return prefix.Stats{}
	}
	return a.index.Load().Stats()
}

// replaced returns a copy of the list with one place set.
func replaced[T any](list []*T, at int, v *T) []*T {
	next := make([]*T, max(len(list), at+1))
	copy(next, list)
	next[at] = v
	return next
}

// seat returns the worker's seat, nil if it has none.
func (a *affinity) seat(w *worker.Worker) *seat {
	list := a.seats.Load().byWorker
	if at := w.Slot(); at < len(list) && list[at] != nil && list[at].w == w {
		return list[at]
	}
	return nil
}

// look finds out which workers were sent a beginning of the request's key. The
// key is made once per request. The result is the request's, nil if it has no
// key or nobody could own one.
func (a *affinity) look(r *Request) *lookup {
	x := a.index.Load()
	if x == nil || r.Source == nil {
		return nil
	}
	for _, l := range r.lookups {
		if l.a == a {
			return l.match(x, r)
		}
	}
	l := a.lookups.Get().(*lookup)
	l.a = a
	r.lookups = append(r.lookups, l)
	x.Start(&l.key, r.Source.KeyRoot()...)
	r.Source.WriteKey(&l.key)
	return l.match(x, r)
}

// lookup is one request's key and what the index knows of it.
type lookup struct {
	a       *affinity
	key     prefix.Key
	rows    []prefix.Match
	ratio   float64
	size    int64   // bytes of the whole key, what the index does not look at included
	matched []match // by the worker's slot
}

// match is how much of a key a worker was sent.
type match struct {
	w     *worker.Worker
	bytes int64
}

func (l *lookup) match(x *prefix.Index, r *Request) *lookup {
	if l.key.Len() == 0 {
		return nil
	}
	l.clear()
	l.ratio = r.ratio()
	l.size = int64(l.key.Len())
	if l.key.Full() {
		l.size = max(l.size, int64(float64(r.Work.Waiting)*l.ratio))
	}
	l.rows = x.Match(&l.key, l.rows)
	owners := l.a.seats.Load().byOwner
	for _, row := range l.rows {
		at := row.Owner.Slot()
		if at >= len(owners) || owners[at] == nil || owners[at].owner != row.Owner {
			continue // it has left since, or has just come
		}
		if !owners[at].current() {
			continue
		}
		w := owners[at].w
		for len(l.matched) <= w.Slot() {
			l.matched = append(l.matched, match{})
		}
		l.matched[w.Slot()] = match{w, int64(row.Bytes)}
	}
	return l
}

// clear forgets what was matched.
func (l *lookup) clear() {
	clear(l.matched)
	l.matched = l.matched[:0]
}

func (l *lookup) release() {
	l.clear()
	l.a.lookups.Put(l)
}

// bytes returns how much of the key the worker was sent. A nil lookup knows of
// nothing. It is fit for use under a lock.
func (l *lookup) bytes(w *worker.Worker) int64 {
	if l == nil || w.Slot() >= len(l.matched) || l.matched[w.Slot()].w != w {
		return 0
	}
	return l.matched[w.Slot()].bytes
}

// uncached returns how many of the prompt's tokens are probably not in the
// worker's KV cache. It is fit for use under a lock.
func (l *lookup) uncached(w *worker.Worker, prompt int64) int64 {
	b := l.bytes(w)
	if b == 0 {
		return prompt
	}
	return max(0, prompt-prompt*b/l.size)
}

// keep records that the worker is sent the request, and returns what takes that
// back.
func (l *lookup) keep(w *worker.Worker) (undo func()) {
	if l == nil {
		return nil
	}
	s := l.a.newSeat(w)
	if s == nil {
		return nil
	}
	x := l.a.index.Load()
	if q := l.quota(w); q != 0 && q != s.quota.Load() {
		s.quota.Store(q)
		x.SetQuota(s.owner, q)
	}
	return x.Insert(&l.key, s.owner).Undo
}

// quotaStep is what quotas are rounded down to a multiple of, so that not every
// change of the ratio moves them.
const quotaStep = 1 << 20

// quota returns the bytes of keys that the worker's KV cache has room for, 0 if
// its size is not known.
func (l *lookup) quota(w *worker.Worker) int64 {
	e := w.Engine()
	if e == nil || e.CacheTokens <= 0 {
		return 0
	}
	q := int64(float64(e.CacheTokens) * l.ratio)
	return max(q-q%quotaStep, min(q, quotaStep))
}

// indexed is what choices that look at prefixes have in common.
type indexed struct {
	plain
	l      *lookup
	reason string
}

func (ch *indexed) Why(w *worker.Worker) Why {
	why := Why{Reason: ch.reason}
	if ch.l != nil {
		why.Matched, why.Key = ch.l.bytes(w), ch.l.size
	}
	return why
}

func (ch *indexed) Keep(w *worker.Worker) func() { return ch.l.keep(w) }

// Work leaves out of the prompt what the worker has cached.
func (ch *indexed) Work(w *worker.Worker) worker.Work {
	work := ch.work
	work.Waiting = ch.l.uncached(w, work.Waiting)
	return work
}

// preference orders workers by longest match, then least demand, then longest
// since the last pick, then position. The zero preference is nobody's.
type preference struct {
	w             *worker.Worker
	match, demand int64
	turn          uint64
}

// prefer keeps the better of p and w.
func (p *preference) prefer(w *worker.Worker, match int64) {
	demand, turn := w.Demand(), w.Turn()
	switch {
	case p.w == nil, match > p.match:
	case match < p.match:
		return
	case demand < p.demand, demand == p.demand && turn < p.turn:
	default:
		return
	}
	*p = preference{w, match, demand, turn}
}
