package health

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/baton-llm/baton/internal/worker"
)

// controls are where engines in development mode tell that they take no work,
// with the field that says so.
var controls = map[string]string{"/is_sleeping": "is_sleeping", "/is_paused": "is_paused"}

// sleepSource is the source that is an engine's own metric.
const sleepSource = "sleep state"

// empties are the sources that tell of an engine that gives its KV cache up. One
// that is paused or scaled keeps it, or is another process afterwards.
var empties = map[string]bool{sleepSource: true, "/is_sleeping": true}

// checkControl asks one of them, unless the server is known not to have it.
func (c *Checker) checkControl(ctx context.Context, b *base, path, field string) {
	c.mu.Lock()
	missing := b.gauge.missing[path]
	c.mu.Unlock()
	if missing {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, extraTime)
	defer cancel()
	status, body, err := c.get(ctx, b.url+path, 1024)
	if err != nil || status != http.StatusOK && !absent(status) {
		return // it says neither this nor that
	}
	var fields map[string]any
	known := status == http.StatusOK && json.Unmarshal(body, &fields) == nil
	asleep, _ := fields[field].(bool)
	c.mu.Lock()
	defer c.unlock()
	if !known {
		b.gauge.lacks(path)
	}
	c.setAsleep(b, path, asleep)
}

// setAsleep notes what one source says of a server's fitness for work. Called
// with mu held.
func (c *Checker) setAsleep(b *base, source string, asleep bool) {
	if len(b.workers) == 0 {
		return
	}
	before := b.gauge.sleeps()
	if asleep && empties[source] && !b.gauge.asleep[source] {
		for w := range b.workers {
			w.EmptyCache()
		}
	}
	if asleep {
		if b.gauge.asleep == nil {
			b.gauge.asleep = make(map[string]bool)
		}
		b.gauge.asleep[source] = true
	} else {
		delete(b.gauge.asleep, source)
	}
	after := b.gauge.sleeps()
	if before == after {
		return
	}
	for w := range b.workers {
		if after {
			w.Block(worker.Asleep)
		} else {
			w.Unblock(worker.Asleep)
		}
	}
	url := b.url
	c.note(func() {
		if after {
			c.log.Info("worker asleep", "worker", url, "source", source)
		} else {
			c.log.Info("worker awake", "worker", url, "source", source)
		}
	})
}

// sleeps reports whether any source says that there is to be no work.
func (g *gauge) sleeps() bool { return len(g.asleep) > 0 }

// isScaling reports whether a 503 is that of an engine that is being scaled.
func isScaling(body []byte) bool {
	var answer struct {
		Error string `json:"error"`
	}
	return json.Unmarshal(body, &answer) == nil && strings.Contains(answer.Error, "scaling")
}
