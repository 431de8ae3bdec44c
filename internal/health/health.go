// Package health decides which workers are fit for new work: it probes them,
// reads their engines' own figures, hears from dispatch when a connect fails,
// and sets the block reasons Pending, Down, Asleep and Full. It learns which
// models they serve and what load others put on them. It never touches load and
// never removes a worker; if it finds that another process answers at an
// address, it asks the registry for a new lifetime.
//
//	           one success                 3 failures
//	pending ───────────────> ready ───────────────────────> down
//	   ^                      |  ^        2 successes         |
//	   └── connect refused ───┘  └────────────────────────────┘
//	       or reset
//
// There is one checker per base URL, whatever roles and ranks are behind it. A
// probe's result touches only workers attached before it began. Checker.mu
// guards all state and is never held during I/O.
package health

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// Config holds the times and thresholds of probing.
type Config struct {
	Interval    time.Duration // between probes of a worker that is not pending
	Timeout     time.Duration // of one probe
	DownAfter   int           // consecutive failures
	UpAfter     int           // consecutive successes
	Path        string        // probed with GET; 2xx is a success
	APIKey      string        // sent as a bearer token, "" for none
	FirstRetry  time.Duration // between probes of a pending worker, doubling
	LastRetry   time.Duration // up to this
	ModelsEvery time.Duration // how often the model list of a ready worker is read anew
	// EngineInterval is how often the engine's own figures are read, give or take
	// a tenth; 0: never.
	EngineInterval time.Duration
}

// Default returns the configuration used unless flags say otherwise.
func Default() Config {
	return Config{
		Interval:    5 * time.Second,
		Timeout:     5 * time.Second,
		DownAfter:   3,
		UpAfter:     2,
		Path:        "/health",
		FirstRetry:  250 * time.Millisecond,
		LastRetry:   2 * time.Second,
		ModelsEvery: 30 * time.Second,

		EngineInterval: 5 * time.Second,
	}
}

// Renewer gives a worker a new generation, as registry.Registry does.
type Renewer interface {
	Renew(id worker.ID) bool
}

// Deps are the collaborators of a checker.
type Deps struct {
	Renewer Renewer
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error) // nil: net.Dialer
	Logger  *slog.Logger                                                      // nil: discard
}

// Checker probes workers. It is an observer of every pool.
type Checker struct {
	cfg    Config
	deps   Deps
	log    *slog.Logger
	client *http.Client
	wake   chan struct{} // one slot: a base was added

	mu     sync.Mutex // guards what follows; left by unlock
	bases  map[string]*base
	recent map[string]time.Time // models that somebody stopped serving, and when
	signs  map[string]signs     // restarts seen, by base URL
	// vouches are for lifetimes about to begin, by ID without generation.
	vouches map[worker.ID]vouch
	clock   uint64   // orders what happens to workers and the start of probes
	notes   []func() // log lines to write once mu is free
}

// base is one server: the workers behind one base URL.
type base struct {
	url     string
	running bool
	wake    chan struct{} // one slot: probe now
	gone    chan struct{} // closed when it has no workers left
	gauge   gauge
	workers map[*worker.Worker]*state
	keyed   bool // its model list may not be read; said once
	warned  time.Time
	refused int // probes in a row whose connect was refused; kept from DownAfter on until one succeeds
}

// state is the machine of one worker.
type state struct {
	since     uint64 // when it was attached or became pending; older probes do not count
	failures  int    // in a row
	successes int    // in a row
	lastError string
	cards     []Card
	modelsAt  time.Time
	measured  bool // a scrape was taken since it came: a restart seen by the next one is its own
}

// Card is one entry of a worker's model list, as the worker sent it.
type Card struct {
	ID  string
	Raw []byte // JSON object
}

var _ worker.Observer = (*Checker)(nil)

// New returns a checker that probes once Run is called.
func New(cfg Config, deps Deps) *Checker {
	log := deps.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dial := deps.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return &Checker{
		cfg:  cfg,
		deps: deps,
		log:  log.With("component", "health"),
		client: &http.Client{
			// Each probe connects anew: it is the connect that tells a dead process.
			Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		wake:   make(chan struct{}, 1),
		bases:  make(map[string]*base),
		recent: make(map[string]time.Time),
		signs:  make(map[string]signs),

		vouches: make(map[worker.ID]vouch),
	}
}

// WorkerAdded implements [worker.Observer].
func (c *Checker) WorkerAdded(w *worker.Worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.bases[w.ID().URL]
	if b == nil {
		b = &base{
			url: w.ID().URL, wake: make(chan struct{}, 1), gone: make(chan struct{}),
			workers: make(map[*worker.Worker]*state),
		}
		c.bases[w.ID().URL] = b
		signal(c.wake)
	}
	s := &state{since: c.tick()}
	b.workers[w] = s
	c.admitVouched(w, s)
	if b.gauge.sleeps() {
		w.Block(worker.Asleep)
	}
	signal(b.wake)
}

// WorkerRemoved implements [worker.Observer].
func (c *Checker) WorkerRemoved(w *worker.Worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.bases[w.ID().URL]
	if b == nil {
		return
	}
	c.forgetModels(w.Models().Names(), nil)
	delete(b.workers, w)
	if len(b.workers) == 0 {
		c.resetGauge(b)
		signal(b.wake) // its goroutine ends
	}
}

// tick moves the checker's clock. Called with mu held.
func (c *Checker) tick() uint64 {
	c.clock++
	return c.clock
}

// note has something logged once mu is free. Called with mu held.
func (c *Checker) note(write func()) { c.notes = append(c.notes, write) }

// unlock frees mu and writes the log lines noted under it.
func (c *Checker) unlock() {
	notes := c.notes
	c.notes = nil
	c.mu.Unlock()
	for _, write := range notes {
		write()
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// ConnectFailed says that a leg could not connect. A refused or reset connect
// makes the worker pending until it has been probed; a connect that timed out
// counts like a failed probe.
func (c *Checker) ConnectFailed(w *worker.Worker, err error) {
	c.mu.Lock()
	defer c.unlock()
	b := c.bases[w.ID().URL]
	if b == nil {
		return
	}
	s := b.workers[w]
	if s == nil {
		return
	}
	if !refusedOrReset(err) {
		c.failed(w, s, err)
		return
	}
	c.connectFailed(b.url)
	if c.suspect(w, s, err) {
		signal(b.wake)
	}
}

func refusedOrReset(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// LastError returns the last error of the worker's probes and connects, "" if
// the last of them went well.
func (c *Checker) LastError(w *worker.Worker) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.bases[w.ID().URL]; b != nil {
		if s := b.workers[w]; s != nil {
			return s.lastError
		}
	}
	return ""
}

// suspect makes a worker pending and reports whether it was not. Called with mu
// held.
func (c *Checker) suspect(w *worker.Worker, s *state, err error) bool {
	s.successes = 0
	s.since = c.tick()
	s.lastError = err.Error()
	if w.Blocked()&worker.Pending != 0 {
		return false
	}
	w.Block(worker.Pending)
	c.note(func() { c.log.Warn("worker pending", "worker", w.ID(), "err", err) })
	return true
}

// failed counts a failure towards the down threshold. Called with mu held.
func (c *Checker) failed(w *worker.Worker, s *state, err error) {
	s.successes = 0
	s.failures++
	s.lastError = err.Error()
	if s.failures >= c.cfg.DownAfter && w.Blocked()&(worker.Down|worker.Pending) == 0 {
		w.Block(worker.Down)
		c.note(func() { c.log.Warn("worker down", "worker", w.ID(), "err", err) })
	}
}

// passed counts a success. Called with mu held.
func (c *Checker) passed(w *worker.Worker, s *state) {
	s.failures = 0
	s.successes++
	s.lastError = ""
	if w.Blocked()&worker.Pending != 0 {
		// A pending worker is admitted by one success; that it was down before no
		// longer matters.
		w.Unblock(worker.Pending | worker.Down)
		models := w.Models().Names()
		c.note(func() { c.log.Info("worker ready", "worker", w.ID(), "models", models) })
		return
	}
	if w.Blocked()&worker.Down != 0 && s.successes >= c.cfg.UpAfter {
		w.Unblock(worker.Down)
		c.note(func() { c.log.Info("worker up", "worker", w.ID()) })
	}
}

// modelMemory is how long a model is remembered that nobody serves any more.
const modelMemory = 5 * time.Minute

// maxRecent bounds the models remembered.
const maxRecent = 10_000

// forgetModels remembers which of the old names are not among the new. Called
// with mu held.
func (c *Checker) forgetModels(old, current []string) {
	now := time.Now()
	for name, at := range c.recent {
		if now.Sub(at) > modelMemory {
			delete(c.recent, name)
		}
	}
	for _, name := range old {
		_, known := c.recent[name]
		if !slices.Contains(current, name) && (known || len(c.recent) < maxRecent) {
			c.recent[name] = now
		}
	}
}

// Recently reports whether a worker stopped serving the model, or left, less
// than five minutes ago.
func (c *Checker) Recently(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.recent[model]
	return ok && time.Since(at) <= modelMemory
}

// Cards returns the model list of a worker, in its order.
func (c *Checker) Cards(w *worker.Worker) []Card {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.bases[w.ID().URL]; b != nil {
		if s := b.workers[w]; s != nil {
			return s.cards
		}
	}
	return nil
}
