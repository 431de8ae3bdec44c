// Package dispatch carries a client's request out: it asks for workers, sends
// the legs, tries again elsewhere where that is safe, and streams the answer.
// It parses no client bytes and decides no policy.
//
// The request path, file by file:
//
//	route.go       which plan a request gets: one leg, or prefill and decode
//	plain.go       one leg
//	sequential.go  prefill, hand-off, decode
//	concurrent.go  both legs at once
//	source.go      what policies ask of the request
//	leg.go         one exchange with one worker, under its lease
//	relay.go       the answer's way to the client
//	discard.go     a hand-off that nobody will use
//	errors.go      every error a client can get from here
//
// A request's state belongs to its goroutine. What outlives it (a leg that must
// not be cut off, a discard) runs on goroutines that Wait waits for.
package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// Config holds the times and limits of requests. A zero time means none.
type Config struct {
	FirstByteTimeout time.Duration // from sending to the first byte of the answer's body
	IdleTimeout      time.Duration // between two reads of an answer's body
	DecodeWait       time.Duration // for a decode worker when prefill has answered
	DiscardTimeout   time.Duration // for the exchange that gives a hand-off back
	MaxPrefillAnswer int64         // bytes
	AllowRecompute   bool          // let decode compute the prompt when prefill handed nothing over
	StartupTime      time.Duration // for which an unknown model is not yet said to be unknown
}

// Default returns the configuration used unless flags say otherwise.
func Default() Config {
	return Config{
		FirstByteTimeout: 1800 * time.Second,
		IdleTimeout:      300 * time.Second,
		DecodeWait:       time.Second,
		DiscardTimeout:   5 * time.Second,
		MaxPrefillAnswer: 32 << 20,
	}
}

// Health hears how legs went and remembers models. Its methods do not block.
type Health interface {
	// ConnectFailed says that no connection to the worker could be made.
	ConnectFailed(w *worker.Worker, err error)
	// LastError returns the last error known of the worker, "" if none.
	LastError(w *worker.Worker) string
	// Restarted says that another process was found behind the worker.
	Restarted(w *worker.Worker, why string)
	// Recently reports whether a worker served the model a short while ago.
	Recently(model string) bool
}

// Deps are the collaborators of a dispatcher.
type Deps struct {
	Pools      map[worker.Role]*worker.Pool // one for each role
	Policies   map[worker.Role]policy.Policy
	Dialects   pd.Set
	NewCarrier func(base string) (exchange.Carrier, error)
	Health     Health
	Breaker    *breaker.Breaker // nil: none
	Logger     *slog.Logger     // nil: discard
}

// Dispatcher carries requests out. It is an observer of every pool: it keeps a
// connection pool and counters for each worker for as long as the worker lives.
type Dispatcher struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	started time.Time

	takes      []takeGroup
	workers    sync.Map // *worker.Worker -> *perWorker
	tokens     estimator
	counts     counts
	background sync.WaitGroup // legs and discards that outlive their requests
}

var _ worker.Observer = (*Dispatcher)(nil)

// New returns a dispatcher. Its pools may be set in deps.Pools later, before
// the first request: they need the dispatcher as an observer.
func New(cfg Config, deps Deps) *Dispatcher {
	log := deps.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Dispatcher{cfg: cfg, deps: deps, log: log.With("component", "dispatch"), started: time.Now(), takes: takeGroups(deps.Dialects)}
}

// Wait waits for what outlived its request, or until ctx is done.
func (d *Dispatcher) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		d.background.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Call is one client request.
type Call struct {
	Request *openai.Request
	Head    exchange.Head // as the client sent it
	ID      string        // request id, fit for a header
}

// Leg says how one exchange with a worker went.
type Leg struct {
	Worker    worker.ID
	Attempt   int
	Policy    string // name of the one that chose the worker
	Why       policy.Why
	Status    int           // 0 if no answer came
	Start     time.Duration // from Do to the leg's beginning
	FirstByte time.Duration // from its beginning to the first byte of the answer's body
	Duration  time.Duration // 0 while it runs
	Err       error
}

// Outcome says how a request went.
type Outcome struct {
	Err        *Error // nil if the answer is complete
	Started    bool   // the answer's head was sent: Err can no longer be told by a status
	ClientGone bool
	FirstByte  time.Duration // from Do to the first byte sent to the client
	Paired     bool          // prefill and decode shared the work
	Retries    int           // legs tried again on another worker
	Legs       []Leg
}

// Do carries one request out and returns when its answer is complete, broken or
// impossible. If Outcome.Err is set and Started is not, nothing was sent and the
// caller answers. ctx ends when the client leaves.
func (d *Dispatcher) Do(ctx context.Context, call *Call, sink exchange.Sink) Outcome {
	r := &run{d: d, ctx: ctx, call: call, sink: sink, start: time.Now()}
	r.choosing.Source = source{call}
	defer r.choosing.Done()
	err := r.route()
	return r.outcome(err)
}

// run is one request being carried out.
type run struct {
	d     *Dispatcher
	ctx   context.Context //nolint:containedctx // a run lives exactly as long as its request
	call  *Call
	sink  exchange.Sink
	start time.Time

	choosing policy.Request // what policies are told
	undo     func()         // takes back the affinity of the plain leg picked last, may be nil

	attempts  int  // legs tried in either role, for ids
	retries   int  // how many of them on another worker, after a failure
	paired    bool // prefill and decode share the work
	started   bool
	firstByte time.Duration

	mu   sync.Mutex // guards legs: a leg may outlive its run
	legs []*Leg
}

func (r *run) outcome(err error) Outcome {
	out := Outcome{Started: r.started, FirstByte: r.firstByte, Paired: r.paired, Retries: r.retries}
	if err != nil {
		out.Err = r.classify(err)
		out.ClientGone = r.gone(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, leg := range r.legs {
		out.Legs = append(out.Legs, *leg)
	}
	return out
}
