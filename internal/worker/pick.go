package worker

import (
	"errors"
	"slices"
	"unique"
)

// Take says what a pick does with the worker it chooses.
type Take uint8

// The ways to take.
const (
	_           Take = iota
	Check            // only require that there is a candidate; choose none
	AcquireHold      // choose and hold
	Acquire          // choose and lease
)

// Want narrows the candidates of a need.
type Want struct {
	Model    unique.Handle[string] // zero: any
	Dialects uint64                // bits of PoolConfig.Dialects; 0: any
	Pair     *Worker               // compatible with this worker; nil: any
	Except   []*Worker             // lifetimes not to be chosen again
}

// Need asks for one worker of one pool.
type Need struct {
	Pool    *Pool
	Take    Take
	Want    Want
	Chooser Chooser // not used with Check
}

// Grant is what a need got. Check grants nothing.
type Grant struct {
	Lease *Lease // with Acquire
	Hold  *Hold  // with AcquireHold
}

// Worker returns the worker chosen, nil with Check.
func (g Grant) Worker() *Worker {
	switch {
	case g.Lease != nil:
		return g.Lease.w
	case g.Hold != nil:
		return g.Hold.w
	default:
		return nil
	}
}

// Chooser chooses among candidates while the pool is locked: it works on
// integers it has at hand, does not block, allocate or call back.
type Chooser interface {
	// Choose returns one of the candidates, or nil if none will do. There is at
	// least one.
	Choose(c *Candidates) *Worker
	// Work returns what the request will add to the worker chosen.
	Work(w *Worker) Work
}

// Candidates are the workers a Chooser may choose from, ordered by position.
// They are valid only during the call.
type Candidates struct{ workers []*Worker }

// Len returns the number of candidates.
func (c *Candidates) Len() int { return len(c.workers) }

// At returns the i-th candidate.
func (c *Candidates) At(i int) *Worker { return c.workers[i] }

// ErrNone is the error of a pick that found no candidate. The error is a
// [*NoneError].
var ErrNone = errors.New("no candidate")

// NoneError says which role had no candidate.
type NoneError struct {
	Role Role
	// Unpaired is set when prefill workers were there but no decode candidate
	// could take over from any of them.
	Unpaired bool
}

func (e *NoneError) Error() string {
	if e.Unpaired {
		return "no " + e.Role.String() + " candidate has a compatible decode candidate"
	}
	return "no " + e.Role.String() + " candidate"
}

// Unwrap returns ErrNone.
func (e *NoneError) Unwrap() error { return ErrNone }

const maxNeeds = NumRoles - 1

// Pick meets all needs or none. In one critical section over the pools it
// locks them in role order, reconciles each that moved, checks that every need
// has a candidate, chooses, and takes. On error nothing has changed but
// membership. Grants come in the order of the needs.
//
// A candidate is ready, serves the model, speaks a dialect asked for and is not
// excepted. If no worker is that ready, those with a nearly full KV cache are
// candidates too, and then those that the breaker has ejected. If both a prefill and a decode worker are needed, prefill
// candidates are those with a compatible decode candidate, and the decode
// worker chosen is compatible with the prefill worker chosen. At most one need
// per role.
func Pick(needs ...Need) ([]Grant, error) {
	if len(needs) == 0 || len(needs) > maxNeeds {
		panic("BUG: pick without needs or with too many")
	}
	grants := make([]Grant, len(needs))
	var byRole [NumRoles]int // index in needs plus one
	for i, n := range needs {
		if byRole[n.Pool.role] != 0 {
			panic("BUG: two needs of one role")
		}
		byRole[n.Pool.role] = i + 1
	}
	for _, i := range byRole {
		if i != 0 {
			mu := &needs[i-1].Pool.mu
			mu.Lock()
			defer mu.Unlock()
		}
	}
	// Every pool is reconciled before any is judged, so that a request that
	// cannot start still leaves all of them up to date.
	for _, i := range byRole {
		if i != 0 {
			needs[i-1].Pool.reconcileLocked()
		}
	}
	chosen, err := chooseLocked(needs, byRole)
	if err != nil {
		return nil, err
	}
	for i, w := range chosen[:len(needs)] {
		if w != nil {
			grants[i] = needs[i].takeLocked(w)
		}
	}
	return grants, nil
}

// chooseLocked returns the worker chosen for each need, nil for a check.
func chooseLocked(needs []Need, byRole [NumRoles]int) (chosen [maxNeeds]*Worker, err error) {
	for i := range needs {
		if err := needs[i].filterLocked(); err != nil {
			return chosen, err
		}
	}
	pi, di := byRole[Prefill], byRole[Decode]
	if pi != 0 && di != 0 {
		if err := pairLocked(needs[pi-1].Pool, needs[di-1].Pool); err != nil {
			return chosen, err
		}
	}
	for _, i := range byRole {
		if i == 0 || needs[i-1].Take == Check {
			continue
		}
		n := &needs[i-1]
		if i == di && pi != 0 && chosen[pi-1] != nil {
			prefill := chosen[pi-1]
			n.Pool.cands.keep(func(w *Worker) bool { return w.Compatible(prefill) })
		}
		w := n.Chooser.Choose(&n.Pool.cands)
		if w == nil {
			return chosen, &NoneError{Role: n.Pool.role}
		}
		chosen[i-1] = w
	}
	return chosen, nil
}

// filterLocked fills the pool's scratch list with the need's candidates.
func (n *Need) filterLocked() error {
	p := n.Pool
	for _, overlooked := range resorts {
		p.cands.workers = p.cands.workers[:0]
		blocked := false
		for _, w := range p.snap.Load().Workers {
			switch b := w.Blocked(); {
			case b&^overlooked != 0:
				blocked = true
			case n.Want.admits(w):
				p.cands.workers = append(p.cands.workers, w)
			}
		}
		if len(p.cands.workers) > 0 {
			return nil
		}
		if !blocked {
			break
		}
	}
	return &NoneError{Role: p.role}
}

// admits reports whether the worker would do, whatever blocks it.
func (want *Want) admits(w *Worker) bool {
	if !w.Serves(want.Model) {
		return false
	}
	f := w.facts.Load()
	if want.Dialects != 0 && want.Dialects&f.dialect == 0 {
		return false
	}
	if want.Pair != nil && f.pair != want.Pair.facts.Load().pair {
		return false
	}
	return !slices.Contains(want.Except, w)
}

// pairLocked drops the prefill candidates that no decode candidate can take
// over from. There are few distinct pair keys, whatever the number of workers.
func pairLocked(prefill, decode *Pool) error {
	pairs := prefill.pairs[:0]
	for _, w := range decode.cands.workers {
		if pair := w.facts.Load().pair; !slices.Contains(pairs, pair) {
			pairs = append(pairs, pair)
		}
	}
	prefill.pairs = pairs
	prefill.cands.keep(func(w *Worker) bool { return slices.Contains(pairs, w.facts.Load().pair) })
	if prefill.cands.Len() == 0 {
		return &NoneError{Role: Prefill, Unpaired: true}
	}
	return nil
}

func (c *Candidates) keep(good func(*Worker) bool) {
	kept := c.workers[:0]
	for _, w := range c.workers {
		if good(w) {
			kept = append(kept, w)
		}
	}
	c.workers = kept
}

func (n *Need) takeLocked(w *Worker) Grant {
	p := n.Pool
	p.turns++
	w.turn.Store(p.turns)
	work := n.Chooser.Work(w)
	if n.Take == Acquire {
		return Grant{Lease: p.leaseLocked(w, work)}
	}
	w.holds.add(1, work)
	return Grant{Hold: &Hold{pool: p, w: w, work: work}}
}
