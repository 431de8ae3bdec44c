package health_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/worker"
)

// interval is that of the reads of figures in these tests. With its tenth of
// jitter a read begins at the latest after longRound.
const (
	interval  = 5 * time.Second
	longRound = interval + interval/10
)

// withFigures has the checker read figures.
func withFigures(c *health.Config) { c.EngineInterval = interval }

// process is a vLLM process as its /metrics shows it. Times are those of its
// own clock.
type process struct {
	mu     sync.Mutex
	skew   time.Duration // of its clock
	start  time.Time     // zero: it exports none
	ranks  []shown
	before func() // called by every read before it looks at the figures
	after  func() // and after it
}

// shown are the figures of one rank.
type shown struct {
	running, waiting         int
	usage                    float64
	tokens                   int // size of the KV cache
	prompt, generation, done int // counters
	asleep                   bool
}

// newProcess starts a process whose clock is off by skew.
func newProcess(skew time.Duration, ranks ...shown) *process {
	return &process{skew: skew, start: time.Now().Add(skew), ranks: ranks}
}

func (p *process) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	before, after := p.before, p.after
	p.mu.Unlock()
	if before != nil {
		before()
	}
	p.mu.Lock()
	text := p.text()
	w.Header().Set("Date", time.Now().Add(p.skew).UTC().Format(http.TimeFormat))
	p.mu.Unlock()
	if after != nil {
		after()
	}
	io.WriteString(w, text)
}

func (p *process) text() string {
	var out strings.Builder
	if !p.start.IsZero() {
		fmt.Fprintf(&out, "process_start_time_seconds %.3f\n", float64(p.start.UnixMilli())/1000)
	}
	for i, r := range p.ranks {
		awake := 1
		if r.asleep {
			awake = 0
		}
		line := func(name, labels string, value float64) {
			fmt.Fprintf(&out, "vllm:%s{engine=\"%d\"%s} %.3f\n", name, i, labels, value)
		}
		line("num_requests_running", "", float64(r.running))
		line("num_requests_waiting", "", float64(r.waiting))
		line("num_requests_waiting_by_reason", `,reason="capacity"`, 1000)
		line("kv_cache_usage_perc", "", r.usage)
		line("cache_config_info", fmt.Sprintf(`,kv_cache_size_tokens="%d"`, r.tokens), 1)
		line("engine_sleep_state", `,sleep_state="awake"`, float64(awake))
		line("prompt_tokens_total", "", float64(r.prompt))
		line("generation_tokens_total", "", float64(r.generation))
		line("request_success_total", `,finished_reason="stop"`, float64(r.done))
	}
	return out.String()
}

// set changes the figures of rank 0.
func (p *process) set(edit func(*shown)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit(&p.ranks[0])
}

// restart makes it another process: as at its start, with no traffic yet.
func (p *process) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.start.IsZero() {
		p.start = time.Now().Add(p.skew)
	}
	for i := range p.ranks {
		p.ranks[i] = shown{}
	}
}

// during has every read held while f runs, at the moment of the read that it is
// told.
func (p *process) during(before, after func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}

// busy are the figures of a process that has served.
var busy = shown{prompt: 1000, generation: 100, done: 10, tokens: 4096}

// serveProcess runs a server at the address with the process behind it.
func (s *stage) serveProcess(addr string, p *process) *engine {
	s.t.Helper()
	e := s.serve(addr)
	e.set("/metrics", p.ServeHTTP)
	return e
}

// only chooses one worker.
type only struct{ w *worker.Worker }

func (o only) Choose(*worker.Candidates) *worker.Worker { return o.w }
func (only) Work(*worker.Worker) worker.Work            { return worker.Work{} }

// lease takes n leases on the worker.
func (s *stage) lease(w *worker.Worker, n int) (leases []*worker.Lease) {
	for range n {
		grants, err := worker.Pick(worker.Need{Pool: s.pools[w.ID().Role-1], Take: worker.Acquire, Chooser: only{w}})
		if err != nil {
			s.t.Error(err)
			return leases
		}
		leases = append(leases, grants[0].Lease)
	}
	return leases
}

func release(leases []*worker.Lease) {
	for _, l := range leases {
		l.Release()
	}
}

func (s *stage) wantForeign(w *worker.Worker, want int64) {
	s.t.Helper()
	if got := w.Foreign(); got != want {
		s.t.Errorf("at %v, %v has a foreign load of %d, want %d", s.since(), w.ID(), got, want)
	}
}

// wantWarnings checks how many lines of at least level WARN have the text.
func (s *stage) wantWarnings(text string, want int) {
	s.t.Helper()
	n := 0
	for _, l := range s.log.with(s.t, text) {
		if l.Level == "WARN" {
			n++
		}
	}
	if n != want {
		s.t.Errorf("at %v there are %d warnings with %q, want %d:\n%s", s.since(), n, text, want, s.log)
	}
}

// inBubble runs f on a stage whose checker reads figures.
func inBubble(t *testing.T, f func(*stage), edits ...func(*health.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(newStage(t, append([]func(*health.Config){withFigures}, edits...)...))
	})
}
