package worker

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"
	"unique"
)

// Worker is the routing state of one lifetime. Pools create it; it must not be
// copied. It outlives its membership for as long as leases refer to it.
type Worker struct {
	id    ID
	label string
	slot  int

	facts  atomic.Pointer[facts]  // stored by Pool.Reconcile under Pool.mu
	models atomic.Pointer[Models] // stored by health
	engine atomic.Pointer[Engine] // stored by health
	// foreign is the load that others put on the engine, stored by health.
	foreign atomic.Int64
	emptied atomic.Uint32 // how often the engine has lost its KV cache, counted by health
	block   atomic.Uint32 // each bit by its owner

	departed atomic.Bool // set once by Pool.Reconcile under Pool.mu

	// Changed only by leases and holds. Invariant: none is negative.
	load   gauge // leases
	holds  gauge // holds
	picked atomic.Uint64
	turn   atomic.Uint64 // number of this worker's last pick in its pool, 0 if none

	seen uint64 // reconcile round that last listed it; guarded by Pool.mu
}

// Work is what one lease adds to a worker's load, in tokens.
type Work struct {
	Waiting int64 // uncached prompt tokens still to be computed
	Held    int64 // prompt and expected output tokens that occupy its KV cache
}

// gauge is a count of leases or holds with the work they added.
type gauge struct {
	count, waiting, held atomic.Int64
}

func (g *gauge) add(n int64, work Work) {
	g.count.Add(n)
	g.waiting.Add(n * work.Waiting)
	g.held.Add(n * work.Held)
}

// facts are what the registry knows of a worker, swapped whole.
type facts struct {
	reg     Registration
	pair    unique.Handle[pairKey]
	dialect uint64 // one bit, or 0 if no dialect of that name is built
}

// pairKey is equal for two workers that can hand over to each other.
type pairKey struct{ dialect, group, mode string }

func newFacts(reg Registration, dialects func(Endpoint) uint64) *facts {
	f := &facts{reg: reg, pair: unique.Make(pairKey{
		dialect: reg.Endpoint.Dialect,
		group:   reg.Labels[GroupLabel],
		mode:    reg.Endpoint.Mode,
	})}
	if dialects != nil {
		f.dialect = dialects(reg.Endpoint)
	}
	return f
}

func (f *facts) equal(reg Registration) bool {
	return f.reg.Endpoint == reg.Endpoint && maps.Equal(f.reg.Labels, reg.Labels)
}

// ID returns the lifetime this state belongs to.
func (w *Worker) ID() ID { return w.id }

// Label returns the URL with @rank, as in [ID.Label].
func (w *Worker) Label() string { return w.label }

// Slot returns a small number that no other worker of the pool has while this one
// is in it, for tables that are indexed by it. It is given to another worker once
// this one has departed, so what a table says must be of the worker itself.
func (w *Worker) Slot() int { return w.slot }

// Endpoint returns what is known of the server.
func (w *Worker) Endpoint() Endpoint { return w.facts.Load().reg.Endpoint }

// Labels returns the worker's labels. The map must not be changed.
func (w *Worker) Labels() map[string]string { return w.facts.Load().reg.Labels }

// Group returns the compatibility group, "" if it has none.
func (w *Worker) Group() string { return w.Labels()[GroupLabel] }

// Departed reports whether the lifetime has left its pool. It never comes back.
func (w *Worker) Departed() bool { return w.departed.Load() }

// SetModels says which models the worker serves; nil means any. Only the owner
// of the worker's health calls it.
func (w *Worker) SetModels(m *Models) { w.models.Store(m) }

// EmptyCache says that the engine has lost what was in its KV cache, as one does
// that was put to sleep. Only the owner of the worker's health calls it.
func (w *Worker) EmptyCache() { w.emptied.Add(1) }

// Emptied returns how often [Worker.EmptyCache] was called. What was known of the
// cache at another number is not true any more.
func (w *Worker) Emptied() uint32 { return w.emptied.Load() }

// Models returns what [Worker.SetModels] stored last. The result is immutable.
func (w *Worker) Models() *Models { return w.models.Load() }

// Serves reports whether the worker serves the model. The zero handle asks for
// no model in particular.
func (w *Worker) Serves(model unique.Handle[string]) bool {
	m := w.models.Load()
	return m == nil || model == (unique.Handle[string]{}) || m.has(model)
}

// Block adds reasons. Only their owner may call it.
func (w *Worker) Block(b Block) { w.block.Or(uint32(b)) }

// Unblock takes reasons away. Only their owner may call it.
func (w *Worker) Unblock(b Block) { w.block.And(^uint32(b)) }

// Blocked returns the reasons why the worker gets no new work, 0 if there is
// none.
func (w *Worker) Blocked() Block { return Block(w.block.Load()) }

// Load returns the number of leases not yet released.
func (w *Worker) Load() int64 { return w.load.count.Load() }

// Holds returns the number of holds neither started nor dropped.
func (w *Worker) Holds() int64 { return w.holds.count.Load() }

// Chosen returns leases and holds together.
func (w *Worker) Chosen() int64 { return w.Load() + w.Holds() }

// Foreign returns the requests on the engine that are not this router's, as of
// the last figures that are fresh; 0 if there are none.
func (w *Worker) Foreign() int64 { return w.foreign.Load() }

// SetForeign stores what [Worker.Foreign] returns. Only the owner of the worker's
// health calls it.
func (w *Worker) SetForeign(n int64) { w.foreign.Store(n) }

// Demand returns what a choice compares: leases and holds, and the load that
// others put on the engine.
func (w *Worker) Demand() int64 { return w.Chosen() + w.Foreign() }

// Work returns the tokens of the leases; holds are not in it.
func (w *Worker) Work() Work {
	return Work{Waiting: w.load.waiting.Load(), Held: w.load.held.Load()}
}

// ChosenWork returns the tokens of leases and holds together.
func (w *Worker) ChosenWork() Work {
	work := w.Work()
	work.Waiting += w.holds.waiting.Load()
	work.Held += w.holds.held.Load()
	return work
}

// Picked returns the number of leases ever taken.
func (w *Worker) Picked() uint64 { return w.picked.Load() }

// Turn returns the number, counted over the whole pool, of the pick that last
// chose this worker: of two workers the one with the lower turn has waited
// longer. It is 0 until the first pick, so that a newcomer is chosen once
// and then waits like the others.
func (w *Worker) Turn() uint64 { return w.turn.Load() }

// Compatible reports whether w and other can hand over to each other: equal
// dialect, transfer mode and group.
func (w *Worker) Compatible(other *Worker) bool {
	return w.facts.Load().pair == other.facts.Load().pair
}

// Engine are an engine's own figures at one moment. A zero figure is unknown or
// zero.
type Engine struct {
	At          time.Time // when they were read
	Running     int64     // requests
	Waiting     int64     // requests
	KVUsage     float64   // used share of the KV cache, 0 to 1
	CacheTokens int64     // size of the KV cache
}

// SetEngine stores the engine's figures. Only the owner of the worker's health
// calls it.
func (w *Worker) SetEngine(e *Engine) { w.engine.Store(e) }

// Engine returns the figures stored last, nil if there are none. It is immutable
// and carries its own age.
func (w *Worker) Engine() *Engine { return w.engine.Load() }

// Models is an immutable list of model names.
type Models struct {
	names   []string
	handles []unique.Handle[string]
}

// NewModels returns the list of names. It may be empty: a worker that serves
// nothing yet.
func NewModels(names ...string) *Models {
	m := &Models{names: names, handles: make([]unique.Handle[string], len(names))}
	for i, name := range names {
		m.handles[i] = unique.Make(name)
	}
	return m
}

// Names returns the names in the order given. It must not be changed. A nil
// list has none.
func (m *Models) Names() []string {
	if m == nil {
		return nil
	}
	return m.names
}

func (m *Models) has(model unique.Handle[string]) bool {
	return slices.Contains(m.handles, model)
}
