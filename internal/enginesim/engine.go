package enginesim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Engine is one simulated vLLM server. Make it with New.
type Engine struct {
	cfg         Config
	log         *slog.Logger
	start       time.Time
	fingerprint string
	models      []model
	done        chan struct{} // closed by Close
	closing     sync.Once
	lanes       chan struct{} // slots for prefill; nil for no limit
	peers       *http.Client  // to other engines
	conn        connector

	mu          sync.Mutex // guards all below; never held while waiting
	cache       *cache
	queue       []*ticket     // waiting for admission, in order
	running     int           // sequences
	ranks       []rank        // never resized
	left        chan struct{} // closed and replaced when requests leave
	life        *life
	dead        bool // from the end of life to Revive
	sleepLevel  int  // 0 is awake
	scaling     bool
	resumed     chan struct{} // closed by /resume; nil while not paused
	aborts      chan struct{} // closed and replaced by /pause?mode=abort
	thaw        func()        // undoes /pause?mode=keep; nil for nothing
	pingsPaused bool
	faults      []*fault
	faultID     int
	gates       map[string]*gate
	posts       ring
	gets        ring
	bodies      []*Record // those that keep a body
	arrived     int
	byPath      map[string]int
	outcomes    map[string]int
	conns       map[net.Conn]http.ConnState
	connsTotal  int
	violations  []string
	violated    int
	seen        map[string]bool
	seenOrder   []string
	stored      map[string][]byte // answers of /v1/responses
	storeOrder  []string
	count       counters
}

// counters are the monotonic figures that belong to no rank.
type counters struct {
	produced, collected, freed      int // hand-offs
	expired, failedLoads, ignoredKV int
}

// New returns an engine. It starts no goroutine.
func New(cfg Config) (*Engine, error) {
	cfg.fill()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("enginesim: %w", err)
	}
	e := &Engine{
		cfg:      cfg,
		log:      cfg.Logger,
		start:    time.Now(),
		models:   parseModels(cfg.Models),
		done:     make(chan struct{}),
		cache:    newCache(cfg.BlockSize, cfg.Blocks),
		gates:    map[string]*gate{},
		posts:    ring{size: keptRecords},
		gets:     ring{size: keptGets},
		byPath:   map[string]int{},
		outcomes: map[string]int{},
		conns:    map[net.Conn]http.ConnState{},
		seen:     map[string]bool{},
		stored:   map[string][]byte{},
		ranks:    newRanks(cfg.DPSize),
		left:     make(chan struct{}),
		aborts:   make(chan struct{}),
		life:     newLife(),
		// A connection per hand-off leaves nothing behind that could outlive it.
		peers: &http.Client{Transport: &http.Transport{DialContext: cfg.Dial, DisableKeepAlives: true}},
	}
	if cfg.PrefillSlots > 0 {
		e.lanes = make(chan struct{}, cfg.PrefillSlots)
	}
	sum := sha256.Sum256([]byte(cfg.Models[0]))
	e.fingerprint = "vllm-" + Version + "-tp1-" + hex.EncodeToString(sum[:4])
	conn, err := newConnector(e)
	if err != nil {
		return nil, fmt.Errorf("enginesim: %w", err)
	}
	e.conn = conn
	return e, nil
}

// Close ends whatever waits: running requests are answered with finish_reason
// "abort" and what they have, as vLLM does when it is told to stop; everything
// else, and what comes later, loses its connection. Connections stay the
// server's.
func (e *Engine) Close() {
	e.closing.Do(func() {
		close(e.done)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.conn.closeLocked()
	})
}

// Handler returns the engine's HTTP surface.
func (e *Engine) Handler() http.Handler { return http.HandlerFunc(e.serve) }

// NewServer returns a server of Handler that keeps idle connections for
// Config.KeepAlive, as uvicorn does, and counts connections for Stats.
func (e *Engine) NewServer() *http.Server {
	return &http.Server{
		Handler:           e.Handler(),
		IdleTimeout:       e.cfg.KeepAlive,
		ReadHeaderTimeout: 0,
		ConnState:         e.connState,
		ConnContext:       withConn,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
}

func (e *Engine) connState(c net.Conn, s http.ConnState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch s {
	case http.StateHijacked, http.StateClosed:
		delete(e.conns, c)
		return
	case http.StateNew:
		e.connsTotal++
	default:
	}
	e.conns[c] = s
}
