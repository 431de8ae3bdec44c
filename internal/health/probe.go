package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// maxModelList bounds what is read of a worker's model list.
const maxModelList = 4 << 20

// repeatWarning is how often a worker that stays unreachable is mentioned.
const repeatWarning = 30 * time.Second

// Run probes until ctx is done. It returns when all probes have ended.
func (c *Checker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c.mu.Lock()
		for _, b := range c.bases {
			if !b.running {
				b.running = true
				wg.Go(func() { c.runBase(ctx, b) })
				if c.cfg.EngineInterval > 0 {
					wg.Go(func() { c.runGauge(ctx, b) })
				}
			}
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
	}
}

// runBase probes one server until it has no workers left.
func (c *Checker) runBase(ctx context.Context, b *base) {
	retry := c.cfg.FirstRetry
	timer := time.NewTimer(c.cfg.Interval) // the first probe is the wake of the first worker
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
			retry = c.cfg.FirstRetry
		case <-timer.C:
		}
		if c.retire(b) {
			return
		}
		began, due := c.begin(b)
		res := c.probe(ctx, b, due)
		if ctx.Err() != nil {
			return
		}
		if c.apply(b, began, res, retry) {
			timer.Reset(retry)
			retry = min(2*retry, c.cfg.LastRetry)
		} else {
			timer.Reset(c.cfg.Interval)
			retry = c.cfg.FirstRetry
		}
	}
}

// retire takes a base without workers out and reports whether it did.
func (c *Checker) retire(b *base) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(b.workers) > 0 {
		return false
	}
	delete(c.bases, b.url)
	close(b.gone)
	return true
}

// result is what one probe found.
type result struct {
	err     error
	scaling bool    // 503 for the time that the engine is being scaled
	models  *models // nil if the list was not read
	scrape  *scrape // nil if the figures were not read
}

type models struct {
	any   bool // the list may not be read: serves any model
	names *worker.Models
	cards []Card
}

// probe asks for health, and for what else is due.
func (c *Checker) probe(ctx context.Context, b *base, due due) result {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	status, body, err := c.get(ctx, b.url+c.cfg.Path, 1024)
	if err != nil && !errors.Is(err, errTooLong) {
		return result{err: err}
	}
	if status < 200 || status >= 300 {
		err := fmt.Errorf("GET %s: status %d", c.cfg.Path, status)
		return result{err: err, scaling: status == http.StatusServiceUnavailable && isScaling(body)}
	}
	if !due.models {
		return result{}
	}
	m, err := c.models(ctx, b.url)
	res := result{err: err, models: m}
	if err == nil && due.figures {
		ctx, cancel := context.WithTimeout(ctx, extraTime)
		defer cancel()
		res.scrape = c.readEngine(ctx, b, true, extraTime)
	}
	return res
}

// due is what a probe reads beyond the health.
type due struct {
	models  bool
	figures bool // a worker is to be admitted: the figures come before its first request
}

// begin returns the time of a probe that begins now on the checker's clock, and
// what is due.
func (c *Checker) begin(b *base) (began uint64, d due) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w, s := range b.workers {
		pending := w.Blocked()&worker.Pending != 0
		d.models = d.models || pending || time.Since(s.modelsAt) >= c.cfg.ModelsEvery
		d.figures = d.figures || pending && c.cfg.EngineInterval > 0
	}
	return c.tick(), d
}

// models reads the model list. A server that does not let it be read serves
// any model.
func (c *Checker) models(ctx context.Context, url string) (*models, error) {
	const path = "/v1/models"
	status, body, err := c.get(ctx, url+path, maxModelList)
	if err != nil {
		return nil, err
	}
	switch {
	case absent(status):
		return &models{any: true}, nil
	case status != http.StatusOK:
		return nil, fmt.Errorf("GET %s: status %d", path, status)
	}
	var list struct {
		Data []json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	if list.Data == nil {
		return nil, fmt.Errorf("GET %s: no model list", path)
	}
	m := &models{}
	var names []string
	for _, raw := range list.Data {
		var card struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(raw, &card); err != nil || card.ID == "" {
			return nil, fmt.Errorf("GET %s: an entry without an id", path)
		}
		names = append(names, card.ID)
		m.cards = append(m.cards, Card{ID: card.ID, Raw: raw})
	}
	m.names = worker.NewModels(names...)
	return m, nil
}

// absent reports whether a status says that the server has no such path, or not
// for us.
func absent(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return false
}

var errTooLong = errors.New("answer too long")

// open sends a GET. The caller closes the body.
func (c *Checker) open(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if c.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.APIKey)
	}
	return c.client.Do(req)
}

// get fetches a URL and returns up to limit bytes of the body. If it is longer
// the error is errTooLong.
func (c *Checker) get(ctx context.Context, url string, limit int64) (int, []byte, error) {
	resp, err := c.open(ctx, url)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it was wanted
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = errTooLong
	}
	return resp.StatusCode, body, err
}

// apply brings a probe's result to the workers attached before it began. It
// reports whether any worker of the base is pending: the next probe is then due
// after retry.
func (c *Checker) apply(b *base, began uint64, res result, retry time.Duration) (pending bool) {
	var renew []worker.ID
	c.mu.Lock()
	restarted := b.restarted(res.err, c.cfg.DownAfter)
	c.setAsleep(b, "scaling", res.scaling)
	if refusedOrReset(res.err) {
		c.connectFailed(b.url)
	}
	switch {
	case restarted:
		c.resetGauge(b)
	case res.scrape != nil:
		renew = c.takeScrape(b, *res.scrape)
	}
	for w, s := range b.workers {
		switch {
		case s.since > began:
		case slices.Contains(renew, w.ID()): // as the figures say
		case restarted && s.admitted():
			// Nobody listened for as long as it takes to call a worker down: what
			// listens again is another process.
			renew = append(renew, w.ID())
		case res.scaling:
			s.lastError = res.err.Error()
		case refusedOrReset(res.err):
			c.suspect(w, s, res.err)
		case res.err != nil:
			c.failed(w, s, res.err)
		default:
			c.takeModels(b, w, s, res.models)
			c.passed(w, s)
		}
		pending = pending || w.Blocked()&worker.Pending != 0
	}
	if pending {
		c.warn(b, res.err, retry)
	} else {
		c.warn(b, res.err, c.cfg.Interval)
	}
	c.unlock()
	c.renew(renew, "probe")
	return pending
}

// restarted counts refused connects and reports whether a probe that ended with
// err found another process than the one known: nobody had listened for
// downAfter probes in a row. Called with Checker.mu held.
func (b *base) restarted(err error, downAfter int) bool {
	if errors.Is(err, syscall.ECONNREFUSED) {
		b.refused++
		return false
	}
	long := b.refused >= downAfter
	if err == nil || !long {
		b.refused = 0
	}
	return long && err == nil
}

// admitted reports whether the worker has ever been ready.
func (s *state) admitted() bool { return !s.modelsAt.IsZero() }

// takeModels stores a model list. Called with mu held.
func (c *Checker) takeModels(b *base, w *worker.Worker, s *state, m *models) {
	if m == nil {
		return
	}
	s.modelsAt = time.Now()
	if m.any && !b.keyed {
		b.keyed = true
		c.note(func() {
			c.log.Warn("model list cannot be read: the worker is taken to serve any model (set --api-key if it needs one)", "worker", w.ID())
		})
	}
	c.forgetModels(w.Models().Names(), m.names.Names())
	s.cards = m.cards
	w.SetModels(m.names)
}

// warn says that a server cannot be used and when it is tried next, at first
// and then now and again. Called with mu held.
func (c *Checker) warn(b *base, err error, next time.Duration) {
	if err == nil {
		b.warned = time.Time{}
		return
	}
	if len(b.workers) == 0 || !b.warned.IsZero() && time.Since(b.warned) < repeatWarning {
		return
	}
	b.warned = time.Now()
	c.note(func() { c.log.Warn("probe failed", "worker", b.url, "err", err, "next_within", next) })
}
