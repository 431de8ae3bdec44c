// Package registry is the table of registrations: which workers are announced,
// by whom and until when, and which generation each of them has. It probes
// nobody and keeps no routing state. All methods may be called from any
// goroutine; each role has a lock of its own, under which nobody is called.
package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// DefaultMaxEntries bounds the entries of one role, whatever is announced.
const DefaultMaxEntries = 10_000

// ErrFull is returned when a role has as many entries as it may have.
var ErrFull = errors.New("registry full")

// ErrRival is returned for a registration of a process whose address another one
// took over a short while ago and still claims: two processes announce one
// address. The later one keeps it until it has been silent for a TTL.
var ErrRival = errors.New("another process announces the same address")

// ErrUnknown is returned when no live registration is meant.
var ErrUnknown = errors.New("not registered")

// ClaimedError is returned when an entry cannot be removed because other
// sources claim it too and would bring it back.
type ClaimedError struct{ Sources []string }

func (e *ClaimedError) Error() string {
	return fmt.Sprintf("also registered by %v", e.Sources)
}

// Change is what a registration did.
type Change uint8

// The changes.
const (
	_        Change = iota
	Kept            // a heartbeat: nothing but the expiry moved
	Updated         // same lifetime; labels changed or an unknown fact became known
	Added           // a new lifetime where none was registered
	Replaced        // a new lifetime in place of another one
)

// String returns the change's name for logs.
func (c Change) String() string {
	return [...]string{"invalid", "kept", "updated", "added", "replaced"}[c]
}

// Registry holds the registrations of all roles. It implements
// [worker.Lister].
type Registry struct {
	base    time.Time
	max     int
	roles   [worker.NumRoles]table
	changed chan struct{} // one slot: something moved
}

// table holds the registrations of one role.
type table struct {
	stamp atomic.Uint64 // moves with every change of what List returns
	next  atomic.Int64  // no claim expires before; 0: none ever does

	mu         sync.Mutex // guards what follows, stores to stamp and next
	generation worker.Generation
	entries    map[place]*entry
}

// place is where a worker listens: an entry's key within its role.
type place struct {
	url  string
	rank worker.Rank
}

// entry is one registered lifetime and the claims that keep it alive.
type entry struct {
	reg    worker.Registration // labels and endpoint merged from the claims
	claims []claim             // the one whose facts changed last comes first
	rivals []rival             // processes that this one replaced, newest last
}

// rival is a process that announced the address before the present one.
type rival struct {
	zmq  string
	seen int64 // when it did so last, as Registry.now
}

// maxRivals bounds the processes remembered of one address.
const maxRivals = 8

// claim is one source's word that a worker is there.
type claim struct {
	source   string
	endpoint worker.Endpoint
	labels   map[string]string
	expires  int64 // as Registry.now; 0: never
}

// New returns an empty registry.
func New() *Registry {
	r := &Registry{base: time.Now(), max: DefaultMaxEntries, changed: make(chan struct{}, 1)}
	for i := range r.roles {
		r.roles[i].entries = make(map[place]*entry)
	}
	return r
}

// now is the time since the registry was made, on the monotonic clock, never 0.
func (r *Registry) now() int64 { return int64(time.Since(r.base)) + 1 }

// Register announces a worker on behalf of a source. The generation in reg.ID
// is ignored; the ID returned has the one that was allocated. The claim lasts
// for ttl, or for ever if ttl is 0, and each further call renews it. An entry
// whose claims have all expired counts as gone, so that the next registration
// is another lifetime; so is one that contradicts what is known of the
// endpoint.
func (r *Registry) Register(source string, reg worker.Registration, ttl time.Duration) (worker.ID, Change, error) {
	t := &r.roles[reg.ID.Role]
	t.mu.Lock()
	id, change, err := r.registerLocked(t, source, reg, ttl)
	t.mu.Unlock()
	if err == nil && change != Kept {
		r.signal()
	}
	return id, change, err
}

func (r *Registry) registerLocked(t *table, source string, reg worker.Registration, ttl time.Duration) (worker.ID, Change, error) {
	now := r.now()
	t.expireLocked(now)
	at := place{reg.ID.URL, reg.ID.Rank}
	e := t.entries[at]
	change := Kept
	if e == nil {
		if len(t.entries) >= r.max {
			return worker.ID{}, 0, ErrFull
		}
		e = &entry{reg: worker.Registration{ID: reg.ID}}
		t.entries[at] = e
		t.allocateLocked(e)
		change = Added
	}
	if change == Kept && e.rival(reg.Endpoint.ZMQ, now, int64(ttl)) {
		return worker.ID{}, 0, ErrRival
	}
	c := claim{source: source, endpoint: reg.Endpoint, labels: reg.Labels}
	before := e.reg.Endpoint.ZMQ
	if ttl > 0 {
		c.expires = now + int64(ttl)
		if next := t.next.Load(); next == 0 || c.expires < next {
			t.next.Store(c.expires)
		}
	}
	if moved := e.put(c); moved || change == Added {
		change = max(change, t.mergeLocked(e))
	}
	if change == Replaced && before != "" && before != e.reg.Endpoint.ZMQ {
		e.replaced(before, now)
	}
	if change != Kept {
		t.stamp.Add(1)
	}
	return e.reg.ID, change, nil
}

// allocateLocked gives the entry the next generation of its role.
func (t *table) allocateLocked(e *entry) {
	t.generation++
	e.reg.ID.Generation = t.generation
}

// mergeLocked brings the entry in line with its claims: labels, facts, and a
// new generation if the facts contradict those of the present one.
func (t *table) mergeLocked(e *entry) Change {
	endpoint, labels := e.merged()
	change := Kept
	switch old := e.reg.Endpoint; {
	case contradicts(old, endpoint):
		t.allocateLocked(e)
		change = Replaced
	default:
		endpoint = fill(endpoint, old)
		if endpoint != old || !maps.Equal(labels, e.reg.Labels) {
			change = Updated
		}
	}
	e.reg.Endpoint, e.reg.Labels = endpoint, labels
	return change
}

// Renew gives a worker a new generation while its claims stand: its process
// was found to be another one. It does nothing if that lifetime is not the
// present one, and reports whether it did.
func (r *Registry) Renew(id worker.ID) bool {
	t := &r.roles[id.Role]
	t.mu.Lock()
	t.expireLocked(r.now())
	e := t.entries[place{id.URL, id.Rank}]
	renewed := e != nil && e.reg.ID == id
	if renewed {
		t.allocateLocked(e)
		t.stamp.Add(1)
	}
	t.mu.Unlock()
	if renewed {
		r.signal()
	}
	return renewed
}

// Withdraw ends the claim of one source. The entry lives on while another
// source claims it. It reports whether there was such a claim.
func (r *Registry) Withdraw(source string, role worker.Role, url string, rank worker.Rank) bool {
	t := &r.roles[role]
	t.mu.Lock()
	t.expireLocked(r.now())
	at := place{url, rank}
	e := t.entries[at]
	found := e != nil && e.drop(source)
	if found {
		if len(e.claims) == 0 {
			delete(t.entries, at)
		} else {
			t.mergeLocked(e)
		}
		t.stamp.Add(1)
	}
	t.mu.Unlock()
	if found {
		r.signal()
	}
	return found
}

// Remove ends an entry that source alone claims. If others claim it as well
// nothing changes and the error is a [*ClaimedError]; if nobody does it is
// [ErrUnknown].
func (r *Registry) Remove(source string, role worker.Role, url string, rank worker.Rank) error {
	t := &r.roles[role]
	t.mu.Lock()
	t.expireLocked(r.now())
	err := t.removeLocked(source, place{url, rank})
	t.mu.Unlock()
	if err == nil {
		r.signal()
	}
	return err
}

func (t *table) removeLocked(source string, at place) error {
	e := t.entries[at]
	if e == nil {
		return ErrUnknown
	}
	var others []string
	for _, c := range e.claims {
		if c.source != source {
			others = append(others, c.source)
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		return &ClaimedError{Sources: others}
	}
	delete(t.entries, at)
	t.stamp.Add(1)
	return nil
}

// Stamp implements [worker.Lister]. It takes a lock only when a claim may have
// expired.
func (r *Registry) Stamp(role worker.Role) uint64 {
	t := &r.roles[role]
	if next := t.next.Load(); next != 0 {
		if now := r.now(); now >= next {
			t.mu.Lock()
			t.expireLocked(now)
			t.mu.Unlock()
		}
	}
	return t.stamp.Load()
}

// List implements [worker.Lister].
func (r *Registry) List(role worker.Role) []worker.Registration {
	t := &r.roles[role]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(r.now())
	regs := make([]worker.Registration, 0, len(t.entries))
	for _, e := range t.entries {
		regs = append(regs, e.reg)
	}
	return regs
}

// Sources returns who claims the entry, sorted; none if it is not registered.
func (r *Registry) Sources(role worker.Role, url string, rank worker.Rank) []string {
	t := &r.roles[role]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(r.now())
	e := t.entries[place{url, rank}]
	if e == nil {
		return nil
	}
	sources := make([]string, 0, len(e.claims))
	for _, c := range e.claims {
		sources = append(sources, c.source)
	}
	slices.Sort(sources)
	return sources
}

// expireLocked drops the claims that have expired by now, and the entries that
// have none left.
func (t *table) expireLocked(now int64) {
	if next := t.next.Load(); next == 0 || now < next {
		return
	}
	var next int64
	for at, e := range t.entries {
		lost := false
		e.claims = slices.DeleteFunc(e.claims, func(c claim) bool {
			gone := c.expires != 0 && c.expires <= now
			lost = lost || gone
			return gone
		})
		switch {
		case len(e.claims) == 0:
			delete(t.entries, at)
			t.stamp.Add(1)
		case lost && t.mergeLocked(e) != Kept:
			t.stamp.Add(1)
		}
		for _, c := range e.claims {
			if c.expires != 0 && (next == 0 || c.expires < next) {
				next = c.expires
			}
		}
	}
	t.next.Store(next)
}

// signal notes that something moved. One slot is enough: whoever wakes reads
// everything.
func (r *Registry) signal() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Watch calls reconcile after every change and whenever a claim expires, until
// ctx is done. Only one goroutine may watch.
func (r *Registry) Watch(ctx context.Context, reconcile func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		reconcile()
		if wait, ok := r.untilExpiry(); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-timer.C:
		}
	}
}

// untilExpiry returns the time until the first claim may expire.
func (r *Registry) untilExpiry() (time.Duration, bool) {
	var first int64
	for i := range r.roles {
		if next := r.roles[i].next.Load(); next != 0 && (first == 0 || next < first) {
			first = next
		}
	}
	return time.Duration(max(0, first-r.now())), first != 0
}
