package health

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// Figures are stale after so many intervals without a good scrape.
const staleAfter = 3

// fullUsage is the used share of a KV cache from which a worker is the last
// resort.
const fullUsage = 0.95

// doubtWindow is how long after a sign of a restart another one, with no failed
// connect between, means that the signs are wrong: several processes share the
// address.
const doubtWindow = time.Minute

// gauge is what is known of one server's engine. Guarded by Checker.mu.
type gauge struct {
	at       time.Time          // of the last good scrape
	date     time.Time          // latest Date of an answer of this process
	counters map[string]float64 // as of the last scrape, by rank
	asleep   map[string]bool    // by source: what says that there is to be no work
	control  map[string]bool    // paths such as /is_paused that the server does not have
	useless  bool               // /metrics is not vLLM's; said once
}

// signs remembers restarts seen at a URL, beyond the life of its workers.
type signs struct {
	last time.Time // of the last sign, zero after a failed connect
	off  bool      // the signs are not believed any more
}

// scrape is the result of one read of /metrics.
type scrape struct {
	figures *figures
	date    time.Time
	err     error
	loads   map[*worker.Worker]int64 // our own leases around the scrape
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
		s := c.scrape(ctx, b, c.cfg.Timeout)
		controls := c.controls(ctx, b)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		renew := c.takeScrape(b, s)
		c.takeControls(b, controls)
		c.unlock()
		c.renew(renew, "engine figures")
		timer.Reset(c.cfg.EngineInterval - c.cfg.EngineInterval/10 + time.Duration(rand.Int64N(int64(c.cfg.EngineInterval)/5)))
	}
}

var errNoMetrics = errors.New("no metrics there")

// scrape reads /metrics within the timeout.
func (c *Checker) scrape(ctx context.Context, b *base, timeout time.Duration) scrape {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := scrape{loads: c.loads(b, nil)}
	resp, err := c.open(ctx, b.url+"/metrics")
	if err != nil {
		s.err = err
		return s
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it was wanted
	s.date, _ = http.ParseTime(resp.Header.Get("Date"))
	if resp.StatusCode != http.StatusOK {
		s.err = errNoMetrics
		return s
	}
	if s.figures, s.err = readExposition(resp.Body); s.err == nil && !s.figures.other {
		s.err = errNoMetrics
	}
	c.loads(b, s.loads)
	return s
}

// loads returns our leases on the workers of a base, or raises those of an
// earlier call: a request that came or went during the scrape is ours.
func (c *Checker) loads(b *base, loads map[*worker.Worker]int64) map[*worker.Worker]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if loads == nil {
		loads = make(map[*worker.Worker]int64, len(b.workers))
	}
	for w := range b.workers {
		loads[w] = max(loads[w], w.Load())
	}
	return loads
}

// takeScrape brings a scrape to the workers, and returns those whose process is
// another one than it was. Called with mu held.
func (c *Checker) takeScrape(b *base, s scrape) (renew []worker.ID) {
	if s.err != nil {
		c.scrapeFailed(b, s.err)
		return nil
	}
	if c.isRestart(b, s) {
		for w, st := range b.workers {
			if st.admitted() {
				renew = append(renew, w.ID())
			}
		}
		b.gauge = gauge{date: s.date}
		return renew
	}
	now := time.Now()
	b.gauge.at = now
	if s.date.After(b.gauge.date) {
		b.gauge.date = s.date
	}
	b.gauge.counters = make(map[string]float64, len(s.figures.ranks))
	for name, r := range s.figures.ranks {
		b.gauge.counters[name] = r.counters
	}
	asleep := false
	for w := range b.workers {
		own := s.loads[w]
		if _, pinned := w.ID().Rank.Index(); !pinned {
			own = 0
			for other := range b.workers {
				own += s.loads[other]
			}
		}
		asleep = c.setEngine(w, s.figures, now, own) || asleep
	}
	c.setAsleep(b, "sleep state", asleep)
	return nil
}

// setEngine stores a worker's figures and reports whether its engine sleeps.
// Called with mu held.
func (c *Checker) setEngine(w *worker.Worker, f *figures, now time.Time, own int64) (asleep bool) {
	var sum rank
	n := 0
	for name, r := range f.ranks {
		if i, pinned := w.ID().Rank.Index(); pinned && name != strconv.Itoa(i) && len(f.ranks) > 1 {
			continue
		}
		n++
		sum.running += r.running
		sum.waiting += r.waiting
		sum.usage += r.usage
		sum.cacheTokens += r.cacheTokens
		sum.hits += r.hits
		sum.lookups += r.lookups
		asleep = asleep || r.asleep
	}
	if n == 0 {
		return false
	}
	w.SetEngine(&worker.Engine{
		At: now, Running: int64(sum.running), Waiting: int64(sum.waiting), KVUsage: sum.usage / float64(n),
		CacheTokens: int64(sum.cacheTokens), PrefixHits: sum.hits, PrefixLookup: sum.lookups,
	})
	w.SetForeign(max(0, int64(sum.running+sum.waiting)-own))
	if sum.usage/float64(n) >= fullUsage {
		w.Block(worker.Full)
	} else {
		w.Unblock(worker.Full)
	}
	return asleep
}

// scrapeFailed lets figures that have grown stale count no more. Called with mu
// held.
func (c *Checker) scrapeFailed(b *base, err error) {
	if errors.Is(err, errNoMetrics) && !b.gauge.useless {
		b.gauge.useless = true
		c.note(func() {
			c.log.Warn("no vLLM metrics: this worker is chosen by this router's own load alone", "worker", b.url)
		})
	}
	if b.gauge.at.IsZero() || time.Since(b.gauge.at) < staleAfter*c.cfg.EngineInterval {
		return
	}
	for w := range b.workers {
		w.SetForeign(0)
		w.Unblock(worker.Full)
	}
}

// isRestart reports whether the figures are those of another process: one that
// started after this lifetime had already answered, or whose counters have gone
// down. Engines behind several processes give such signs all the time; then they
// are not believed any more. Called with mu held.
func (c *Checker) isRestart(b *base, s scrape) bool {
	sign := ""
	// Dates are in whole seconds.
	if g := &b.gauge; s.figures.start > 0 && !g.date.IsZero() && s.figures.start >= float64(g.date.Unix()+1) {
		sign = "start time"
	}
	for name, r := range s.figures.ranks {
		if before, ok := b.gauge.counters[name]; ok && r.counters < before {
			sign = "counters"
		}
	}
	if sign == "" {
		return false
	}
	url := b.url
	seen := c.signs[url]
	if seen.off {
		return false
	}
	now := time.Now()
	if !seen.last.IsZero() && now.Sub(seen.last) < doubtWindow {
		c.setSigns(url, signs{off: true})
		c.note(func() {
			c.log.Warn("restart detection is off for this worker: its metrics come from several processes", "worker", url, "sign", sign)
		})
		return false
	}
	c.setSigns(url, signs{last: now})
	return true
}

// maxSigns bounds the URLs remembered.
const maxSigns = 10_000

// setSigns remembers signs of a URL. Called with mu held.
func (c *Checker) setSigns(url string, s signs) {
	if _, known := c.signs[url]; known || len(c.signs) < maxSigns {
		c.signs[url] = s
	}
}

// connectFailed notes that a connect to the server failed: a restart seen next
// is no wonder. Called with mu held.
func (c *Checker) connectFailed(url string) {
	if s, ok := c.signs[url]; ok && !s.off {
		delete(c.signs, url)
	}
}

// Restarted says that a worker's process was found to be another one, such as
// by the engine id of its hand-offs.
func (c *Checker) Restarted(w *worker.Worker, why string) {
	c.renew([]worker.ID{w.ID()}, why)
}

// renew asks for new lifetimes. It must be called without mu.
func (c *Checker) renew(ids []worker.ID, why string) {
	for _, id := range ids {
		if c.deps.Renewer.Renew(id) {
			c.log.Info("worker restarted", "worker", id, "sign", why)
		}
	}
}

// controlPaths are where engines in development mode tell that they take no
// work, and the field that says so.
var controlPaths = map[string]string{"/is_sleeping": "is_sleeping", "/is_paused": "is_paused"}

// controls asks those that the server has.
func (c *Checker) controls(ctx context.Context, b *base) map[string]bool {
	answers := make(map[string]bool)
	for path, field := range controlPaths {
		c.mu.Lock()
		missing := b.gauge.control[path]
		c.mu.Unlock()
		if missing {
			continue
		}
		status, body, err := c.getWithin(ctx, b.url+path, 1024)
		if err != nil {
			continue
		}
		var fields map[string]any
		if status != http.StatusOK || json.Unmarshal(body, &fields) != nil {
			c.mu.Lock()
			if b.gauge.control == nil {
				b.gauge.control = make(map[string]bool)
			}
			b.gauge.control[path] = status != http.StatusServiceUnavailable
			c.mu.Unlock()
			continue
		}
		answers[path], _ = fields[field].(bool)
	}
	return answers
}

// takeControls brings their answers to the workers. Called with mu held.
func (c *Checker) takeControls(b *base, answers map[string]bool) {
	for path, value := range answers {
		c.setAsleep(b, path, value)
	}
}

// setAsleep notes what one source says of a server's fitness for work. Called
// with mu held.
func (c *Checker) setAsleep(b *base, source string, asleep bool) {
	before := len(b.gauge.asleep) > 0
	if asleep {
		if b.gauge.asleep == nil {
			b.gauge.asleep = make(map[string]bool)
		}
		b.gauge.asleep[source] = true
	} else {
		delete(b.gauge.asleep, source)
	}
	after := len(b.gauge.asleep) > 0
	for w := range b.workers {
		if after {
			w.Block(worker.Asleep)
		} else {
			w.Unblock(worker.Asleep)
		}
	}
	if before != after {
		url := b.url
		c.note(func() { c.log.Info("worker asleep", "worker", url, "asleep", after, "source", source) })
	}
}

// isScaling reports whether a 503 is that of an engine that is being scaled.
func isScaling(body []byte) bool {
	var answer struct {
		Error string `json:"error"`
	}
	return json.Unmarshal(body, &answer) == nil && strings.Contains(answer.Error, "scaling")
}
