package health

import (
	"maps"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// doubtWindow is how long after a sign of a restart another one, with no failed
// connect between, means that the signs are wrong: several processes share the
// address.
const doubtWindow = time.Minute

// signs remembers restarts seen at a URL, beyond the life of its workers.
type signs struct {
	last time.Time // of the last sign
	off  bool      // the signs are not believed any more
}

// sign tells by what a scrape shows another process than the one before it: one
// that started after the earlier one had already answered, or whose counters
// have gone down. It is "" if nothing does.
func (g *gauge) sign(s scrape) string {
	// Dates are in whole seconds. Both times are the engine's own; behind a proxy
	// they are not, so that a process known by its start is never taken for another.
	if f := s.figures; f.start > 0 && f.start != g.start && !g.date.IsZero() && f.start >= float64(g.date.Unix()+1) {
		return "start time"
	}
	for name, value := range s.figures.counters {
		if before, ok := g.counters[name]; ok && value < before {
			return "counters"
		}
	}
	return ""
}

// isRestart reports whether the figures are those of another process. Engines
// behind several processes give signs of it all the time; then they are not
// believed any more. Called with mu held.
func (c *Checker) isRestart(b *base, s scrape) bool {
	sign := b.gauge.sign(s)
	seen, known := c.signs[b.url]
	if sign == "" || seen.off {
		return false
	}
	now := time.Now()
	if !known || now.Sub(seen.last) >= doubtWindow {
		return c.setSigns(b.url, signs{last: now})
	}
	c.setSigns(b.url, signs{off: true})
	url := b.url
	c.note(func() {
		c.log.Warn("restart detection is off for this worker: its metrics come from several processes", "worker", url, "sign", sign)
	})
	return false
}

// maxSigns bounds the URLs remembered.
const maxSigns = 10_000

// setSigns remembers signs of a URL, and reports whether there was room. Called
// with mu held.
func (c *Checker) setSigns(url string, s signs) bool {
	if _, known := c.signs[url]; !known && len(c.signs) >= maxSigns {
		maps.DeleteFunc(c.signs, func(_ string, old signs) bool {
			return !old.off && time.Since(old.last) >= doubtWindow
		})
		if len(c.signs) >= maxSigns {
			return false
		}
	}
	c.signs[url] = s
	return true
}

// connectFailed notes that a connect to the server failed: a restart seen next
// is no wonder. Called with mu held.
func (c *Checker) connectFailed(url string) {
	if s, ok := c.signs[url]; ok && !s.off {
		delete(c.signs, url)
	}
}

// vouch is what a process that serves already brings into its own lifetime, so
// that it need not wait for a probe.
type vouch struct {
	at     time.Time
	models *worker.Models
	cards  []Card
}

// vouchWindow is for how long a vouch counts: the new lifetime is there at once.
const vouchWindow = 2 * time.Second

// Restarted says that a worker's process was found to be another one by what it
// served, such as by the engine id of a hand-off. It is fit for work, so its
// own lifetime begins ready; what it serves is read anew all the same.
func (c *Checker) Restarted(w *worker.Worker, why string) {
	c.vouch(w)
	c.renew([]worker.ID{w.ID()}, why)
}

// vouch vouches for the lifetime that follows a worker's. A worker that has left
// was followed already.
func (c *Checker) vouch(w *worker.Worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.vouches, func(_ worker.ID, old vouch) bool { return time.Since(old.at) > vouchWindow })
	b := c.bases[w.ID().URL]
	if b == nil || b.workers[w] == nil {
		return
	}
	place := w.ID()
	place.Generation = 0
	c.vouches[place] = vouch{at: time.Now(), models: w.Models(), cards: b.workers[w].cards}
}

// admitVouched makes a new worker ready whose process is known to serve. Called
// with mu held.
func (c *Checker) admitVouched(w *worker.Worker, s *state) {
	place := w.ID()
	place.Generation = 0
	v, ok := c.vouches[place]
	if !ok {
		return
	}
	delete(c.vouches, place)
	if time.Since(v.at) > vouchWindow {
		return
	}
	s.cards = v.cards
	w.SetModels(v.models)
	w.Unblock(worker.Pending)
}

// renew asks for new lifetimes. It must be called without mu.
func (c *Checker) renew(ids []worker.ID, why string) {
	for _, id := range ids {
		if c.deps.Renewer.Renew(id) {
			c.log.Info("worker restarted", "worker", id, "sign", why)
		}
	}
}
