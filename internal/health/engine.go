package health

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// Figures are stale after so many intervals without a good scrape.
const staleAfter = 3

// fullUsage is the used share of a KV cache from which a worker is the last
// resort.
const fullUsage = 0.95

// extraTime bounds what an admission waits for beyond health and models, and
// what is asked of an engine beyond its figures.
const extraTime = time.Second

const metricsPath = "/metrics"

// gauge is what is known of one server's engine: of the process that answered
// last. Guarded by Checker.mu.
type gauge struct {
	began    uint64 // the last good scrape, on the checker's clock; older ones are late
	at       time.Time
	start    float64             // when the process started, 0 if unknown
	date     time.Time           // latest Date of a good scrape
	counters map[counter]float64 // as of the last good scrape
	asleep   map[string]bool     // by source: what says that there is to be no work
	missing  map[string]bool     // paths that the server does not have
	err      error               // of the last scrape that failed
	unread   bool                // there are no figures; said once
}

// scrape is the result of one read of /metrics.
type scrape struct {
	began   uint64 // on the checker's clock
	status  int
	date    time.Time
	figures *figures
	err     error
	own     map[*worker.Worker]int64 // our leases during the scrape, at the most
}

// runGauge reads the engine's figures until ctx is done or the server has no
// workers left.
func (c *Checker) runGauge(ctx context.Context, b *base) {
	// Servers are not all read at the same moment.
	timer := time.NewTimer(time.Duration(rand.Int64N(int64(c.cfg.EngineInterval))))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.gone:
			return
		case <-timer.C:
		}
		began := time.Now()
		c.checkEngine(ctx, b)
		if ctx.Err() != nil {
			return
		}
		wait := c.cfg.EngineInterval*9/10 + time.Duration(rand.Int64N(int64(c.cfg.EngineInterval)/5+1)) - time.Since(began)
		if fresh := c.fresh(b); fresh > 0 {
			wait = min(wait, fresh)
		}
		timer.Reset(wait)
	}
}

// checkEngine reads all that the server is not known to lack.
func (c *Checker) checkEngine(ctx context.Context, b *base) {
	c.mu.Lock()
	c.expire(b)
	deserted, missing := len(b.workers) == 0, b.gauge.missing[metricsPath]
	c.unlock()
	if deserted {
		return
	}
	timeout := c.cfg.Timeout
	if fresh := c.fresh(b); fresh > 0 {
		timeout = min(timeout, fresh) // figures go stale on time, whatever hangs
	}
	s := c.readEngine(ctx, b, !missing, timeout)
	if s == nil || ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	renew := c.takeScrape(b, *s)
	c.unlock()
	c.renew(renew, "engine figures")
}

// readEngine returns a scrape, if figures are asked for. Whether the engine takes
// work is brought to the workers as soon as it is known.
func (c *Checker) readEngine(ctx context.Context, b *base, figures bool, timeout time.Duration) *scrape {
	var asking sync.WaitGroup
	defer asking.Wait()
	for path, field := range controls {
		asking.Go(func() { c.checkControl(ctx, b, path, field) })
	}
	if !figures {
		return nil
	}
	s := c.scrape(ctx, b, timeout)
	return &s
}

// fresh returns for how long the figures are fresh yet: not above 0 if they are
// stale or there are none.
func (c *Checker) fresh(b *base) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return staleAfter*c.cfg.EngineInterval - time.Since(b.gauge.at)
}

// errNoMetrics is the error of a server that answers and has no figures for us.
var errNoMetrics = errors.New("no vLLM metrics")

// scrape reads /metrics within the timeout.
func (c *Checker) scrape(ctx context.Context, b *base, timeout time.Duration) scrape {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began, before := c.beginScrape(b)
	s := scrape{began: began}
	resp, err := c.open(ctx, b.url+metricsPath)
	if err != nil {
		s.err = err
		return s
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it was wanted
	s.date, _ = http.ParseTime(resp.Header.Get("Date"))
	s.status = resp.StatusCode
	switch {
	case s.status == http.StatusServiceUnavailable: // so it answers while it is scaled
		s.err = fmt.Errorf("GET %s: status %d", metricsPath, s.status)
	case s.status != http.StatusOK:
		s.err = fmt.Errorf("%w: status %d", errNoMetrics, s.status)
	default:
		if s.figures, s.err = readExposition(resp.Body); s.err == nil && !s.figures.vllm {
			s.err = errNoMetrics
		}
	}
	s.own = c.ownLeases(b, before)
	return s
}

// leases are those on a worker at one moment.
type leases struct {
	picked uint64
	load   int64
}

// beginScrape returns the time of a scrape that begins now on the checker's
// clock, and our leases.
func (c *Checker) beginScrape(b *base) (began uint64, before map[*worker.Worker]leases) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = make(map[*worker.Worker]leases, len(b.workers))
	for w := range b.workers {
		before[w] = leases{picked: w.Picked(), load: w.Load()} // in this order, so that none is missed
	}
	return c.tick(), before
}

// ownLeases returns how many of our leases each worker may have had at once
// since before. What came or went during a scrape is ours and not foreign; that
// some of it had gone when the rest came is not known.
func (c *Checker) ownLeases(b *base, before map[*worker.Worker]leases) map[*worker.Worker]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := make(map[*worker.Worker]int64, len(b.workers))
	for w := range b.workers {
		own[w] = before[w].load + int64(w.Picked()-before[w].picked)
	}
	return own
}

// takeScrape brings a scrape to the workers attached before it began, and
// returns those whose process is another one than it was. Called with mu held.
func (c *Checker) takeScrape(b *base, s scrape) (renew []worker.ID) {
	if s.began < b.gauge.began || len(b.workers) == 0 {
		return nil
	}
	if s.err != nil {
		c.scrapeFailed(b, s)
		return nil
	}
	if c.isRestart(b, s) {
		for w, st := range b.workers {
			if st.admitted() && st.measured {
				renew = append(renew, w.ID())
			}
		}
		c.resetGauge(b)
	}
	g := &b.gauge
	g.began, g.at, g.start, g.counters = s.began, time.Now(), s.figures.start, s.figures.counters
	if s.date.After(g.date) {
		g.date = s.date
	}
	g.unread = false
	delete(g.missing, metricsPath)
	for w, st := range b.workers {
		if st.since > s.began {
			continue
		}
		st.measured = true
		setEngine(w, s.figures.of(w.ID().Rank), g.at, s.ownAt(w.ID().Rank))
	}
	c.setAsleep(b, sleepSource, s.figures.of(0).asleep)
	return renew
}

// of returns the figures of a rank: those of all ranks together if it is not
// pinned, or if there is only one.
func (f *figures) of(at worker.Rank) rank {
	var sum rank
	measured := 0.0
	i, pinned := at.Index()
	for name, r := range f.ranks {
		if pinned && len(f.ranks) > 1 && name != strconv.Itoa(i) {
			continue
		}
		sum.running += r.running
		sum.waiting += r.waiting
		sum.cacheTokens += r.cacheTokens
		sum.asleep = sum.asleep || r.asleep
		if r.measured {
			measured++
			sum.usage += (r.usage - sum.usage) / measured // the mean
		}
	}
	return sum
}

// ownAt returns our leases on the rank, whatever roles they are in: on all of
// the server if it is not pinned.
func (s *scrape) ownAt(at worker.Rank) int64 {
	_, pinned := at.Index()
	own := int64(0)
	for w, n := range s.own {
		if !pinned || w.ID().Rank == at {
			own += n
		}
	}
	return own
}

// setEngine stores a worker's figures, own being the part of its load that is
// ours.
func setEngine(w *worker.Worker, r rank, at time.Time, own int64) {
	w.SetEngine(&worker.Engine{
		At: at, Running: whole(r.running), Waiting: whole(r.waiting), KVUsage: r.usage,
		CacheTokens: whole(r.cacheTokens),
	})
	w.SetForeign(max(0, whole(r.running+r.waiting)-own))
	if r.usage >= fullUsage {
		w.Block(worker.Full)
	} else {
		w.Unblock(worker.Full)
	}
}

// whole returns a count that has come as a float.
func whole(v float64) int64 { return int64(min(v, 1<<53)) }

// scrapeFailed notes that there are no figures. Called with mu held.
func (c *Checker) scrapeFailed(b *base, s scrape) {
	g := &b.gauge
	g.err = s.err
	if absent(s.status) {
		g.lacks(metricsPath)
	}
	switch {
	case errors.Is(s.err, syscall.ECONNREFUSED):
		c.refused(b, s)
	case errors.Is(s.err, errNoMetrics), g.at.IsZero() && b.fit():
		c.unread(b)
	}
	c.expire(b)
}

// refused makes workers pending whose process is gone, as a probe would have
// found out. Called with mu held.
func (c *Checker) refused(b *base, s scrape) {
	c.connectFailed(b.url)
	for w, st := range b.workers {
		if st.since < s.began && w.Blocked()&worker.Pending == 0 && c.suspect(w, st, s.err) {
			signal(b.wake)
		}
	}
}

// expire lets figures that have grown stale count no more. Called with mu held.
func (c *Checker) expire(b *base) {
	g := &b.gauge
	if g.at.IsZero() || time.Since(g.at) < staleAfter*c.cfg.EngineInterval {
		return
	}
	g.at = time.Time{}
	for w := range b.workers {
		w.SetForeign(0)
		w.Unblock(worker.Full)
	}
	c.setAsleep(b, sleepSource, false)
	if b.fit() {
		c.unread(b)
	}
}

// unread says once that there are no figures. Called with mu held.
func (c *Checker) unread(b *base) {
	if b.gauge.unread {
		return
	}
	b.gauge.unread = true
	url, err := b.url, b.gauge.err
	c.note(func() {
		c.log.Warn("no engine figures: this worker is chosen by this router's own load alone", "worker", url, "err", err)
	})
}

// fit reports whether a worker of the server passes its probes. Called with
// Checker.mu held.
func (b *base) fit() bool {
	for w := range b.workers {
		if w.Blocked()&(worker.Pending|worker.Down) == 0 {
			return true
		}
	}
	return false
}

// lacks notes a path that the server does not have.
func (g *gauge) lacks(path string) {
	if g.missing == nil {
		g.missing = make(map[string]bool)
	}
	g.missing[path] = true
}

// resetGauge forgets what the process told that has been behind the address.
// Called with mu held.
func (c *Checker) resetGauge(b *base) {
	for w := range b.workers {
		w.SetForeign(0)
		w.Unblock(worker.Full | worker.Asleep)
	}
	b.gauge = gauge{began: c.tick()}
}
