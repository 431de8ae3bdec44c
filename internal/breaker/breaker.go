// Package breaker takes workers out that fail request after request, and lets
// them back in through single trial requests. It owns the block reasons Ejected
// and Trial and nothing else. State belongs to a lifetime: it is keyed by
// *worker.Worker and dropped when the worker leaves.
//
//	           threshold failures in a row
//	closed ────────────────────────────────> open (Ejected)
//	   ^                                      |  ^
//	   │ threshold successes            timeout  │ a failure
//	   └──────────────── half-open <──────────┘  │
//	                        └────────────────────┘
//
// The states, thresholds and flags are those of vllm-router; half-open lets one
// request through at a time (Trial) where vllm-router lets all. What counts as
// a failure is dispatch's to say. All methods may be called from any goroutine.
package breaker

import (
	"log/slog"
	"sync"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// Config holds the thresholds.
type Config struct {
	Failures  int           // in a row, until a worker is ejected
	Successes int           // trials in a row, until it is trusted again
	Timeout   time.Duration // from the ejection to the first trial
	Disabled  bool
}

// Default returns vllm-router's thresholds.
func Default() Config {
	return Config{Failures: 10, Successes: 3, Timeout: 60 * time.Second}
}

// State is one of the three states.
type State uint8

// The states.
const (
	Closed State = iota
	Open
	HalfOpen
)

// String returns the state's name.
func (s State) String() string { return [...]string{"closed", "open", "half_open"}[s] }

// Breaker holds the machines of all workers.
type Breaker struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex // guards what follows
	machines map[*worker.Worker]*machine
}

// machine is the state of one worker.
type machine struct {
	state State
	count int // failures in a row when closed, good trials in a row when half-open
	timer *time.Timer
	moves Moves
}

// Moves count the changes of a worker's state, by the state before and after.
type Moves [3][3]uint64

// move changes the state. Called with mu held.
func (m *machine) move(to State) {
	m.moves[m.state][to]++
	m.state, m.count = to, 0
}

var _ worker.Observer = (*Breaker)(nil)

// New returns a breaker without workers; log may be nil.
func New(cfg Config, log *slog.Logger) *Breaker {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Breaker{cfg: cfg, log: log.With("component", "breaker"), machines: make(map[*worker.Worker]*machine)}
}

// WorkerAdded implements [worker.Observer].
func (b *Breaker) WorkerAdded(w *worker.Worker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machines[w] = &machine{}
}

// WorkerRemoved implements [worker.Observer].
func (b *Breaker) WorkerRemoved(w *worker.Worker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.machines[w]; m != nil && m.timer != nil {
		m.timer.Stop()
	}
	delete(b.machines, w)
}

// State returns a worker's state.
func (b *Breaker) State(w *worker.Worker) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.machines[w]; m != nil {
		return m.state
	}
	return Closed
}

// Moves returns how a worker's state has changed, zero once it has left.
func (b *Breaker) Moves(w *worker.Worker) Moves {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.machines[w]; m != nil {
		return m.moves
	}
	return Moves{}
}

// Begin says that a leg to the worker is about to be sent. In half-open it is
// the trial, and no other request gets through until it has ended.
func (b *Breaker) Begin(w *worker.Worker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.machines[w]; m != nil && m.state == HalfOpen {
		w.Block(worker.Trial)
	}
}

// Result is how a leg ended, as far as the worker is to blame.
type Result uint8

// The results. The zero Result is invalid.
const (
	_       Result = iota
	Good           // answered, be it with the client's own error
	Bad            // a transport error, or 5xx
	Unknown        // cut off before it could tell
)

// End says how a leg to the worker ended. Every Begin has one End.
func (b *Breaker) End(w *worker.Worker, r Result) {
	if b.cfg.Disabled {
		return
	}
	b.mu.Lock()
	m := b.machines[w]
	before := Closed
	after := Closed
	if m != nil {
		before = m.state
		b.end(w, m, r)
		after = m.state
	}
	b.mu.Unlock()
	if before != after {
		b.log.Warn("breaker", "worker", w.ID(), "from", before.String(), "to", after.String())
	}
}

// end moves the machine. Called with mu held.
func (b *Breaker) end(w *worker.Worker, m *machine, r Result) {
	if m.state == HalfOpen {
		defer w.Unblock(worker.Trial)
	}
	switch {
	case r == Unknown:
	case m.state == Closed && r == Bad:
		if m.count++; m.count >= b.cfg.Failures {
			b.open(w, m)
		}
	case m.state == Closed:
		m.count = 0
	case m.state == HalfOpen && r == Bad:
		b.open(w, m)
	case m.state == HalfOpen:
		if m.count++; m.count >= b.cfg.Successes {
			m.move(Closed)
		}
	}
	// Open: a leg that was sent before the ejection says nothing about after it.
}

// open ejects the worker until the timeout. Called with mu held.
func (b *Breaker) open(w *worker.Worker, m *machine) {
	m.move(Open)
	w.Block(worker.Ejected)
	m.timer = time.AfterFunc(b.cfg.Timeout, func() {
		b.mu.Lock()
		half := m.state == Open && b.machines[w] == m
		if half {
			m.move(HalfOpen)
			w.Unblock(worker.Ejected)
		}
		b.mu.Unlock()
		if half {
			b.log.Info("breaker lets a trial through", "worker", w.ID())
		}
	})
}
