package enginesim

import (
	"net/http"
	"slices"
)

// SetSleeping puts the engine to sleep: requests wait, what runs is not disturbed,
// and the prefix cache is lost if nothing is held. level is that of POST /sleep,
// 1 or 2; 0 wakes the engine.
func (e *Engine) SetSleeping(level int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sleepLevel = min(max(level, 0), 2)
	if e.sleepLevel > 0 {
		e.cache.clear() // or not, as in vLLM
	}
	e.dispatchLocked()
}

// SetScaling lets the engine answer every request with 503, as vLLM does while it
// changes its number of ranks.
func (e *Engine) SetScaling(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scaling = on
}

// SetPaused is POST /pause?mode=keep, or POST /resume.
func (e *Engine) SetPaused(on bool) {
	e.mu.Lock()
	if on {
		e.pauseLocked("keep")
	}
	e.mu.Unlock()
	if !on {
		e.unpause()
	}
}

// sleep answers POST /sleep.
func (e *Engine) sleep(c *call) error {
	level := 1
	if c.r.URL.Query().Get("level") == "2" {
		level = 2
	}
	e.SetSleeping(level)
	return c.answer(http.StatusOK, "", nil)
}

// wakeUp answers POST /wake_up.
func (e *Engine) wakeUp(c *call) error {
	e.SetSleeping(0)
	return c.answer(http.StatusOK, "", nil)
}

func (e *Engine) isSleeping(c *call) error {
	e.mu.Lock()
	asleep := e.sleepLevel > 0
	e.mu.Unlock()
	return c.json(struct {
		Sleeping bool `json:"is_sleeping"`
	}{asleep})
}

// pause answers POST /pause. New requests wait until /resume, before they count as
// waiting. Those the engine has are ended with finish_reason "abort" (mode abort,
// the default), are finished before the answer (wait), or stand still (keep).
func (e *Engine) pause(c *call) error {
	mode := c.r.URL.Query().Get("mode")
	if mode == "" {
		mode = "abort"
	}
	if !slices.Contains([]string{"abort", "wait", "keep"}, mode) {
		return c.refuse(badValue("mode", "mode must be abort, wait or keep, got %s", clip(mode)))
	}
	e.mu.Lock()
	e.pauseLocked(mode)
	e.mu.Unlock()
	if mode == "wait" {
		if err := e.awaitIdle(c); err != nil {
			return err
		}
	}
	return c.json(pauseStatus{"paused"})
}

type pauseStatus struct {
	Status string `json:"status"`
}

func (e *Engine) pauseLocked(mode string) {
	if e.resumed == nil {
		e.resumed = make(chan struct{})
	}
	switch mode {
	case "abort":
		close(e.aborts)
		e.aborts = make(chan struct{})
	case "keep":
		if e.thaw == nil {
			e.thaw = e.haltLocked(e.life)
		}
	}
}

// unpause undoes pause.
func (e *Engine) unpause() {
	e.mu.Lock()
	resumed, thaw := e.resumed, e.thaw
	e.resumed, e.thaw = nil, nil
	e.mu.Unlock()
	if resumed != nil {
		close(resumed)
	}
	if thaw != nil {
		thaw()
	}
}

// resume answers POST /resume.
func (e *Engine) resume(c *call) error {
	e.unpause()
	return c.json(pauseStatus{"resumed"})
}

func (e *Engine) isPaused(c *call) error {
	e.mu.Lock()
	paused := e.resumed != nil
	e.mu.Unlock()
	return c.json(struct {
		Paused bool `json:"is_paused"`
	}{paused})
}

// awaitIdle waits until no request runs or waits.
func (e *Engine) awaitIdle(c *call) error {
	for {
		e.mu.Lock()
		idle, left := e.running == 0 && len(e.queue) == 0, e.left
		e.mu.Unlock()
		if idle {
			return nil
		}
		if err := c.wait(left); err != nil {
			return err
		}
	}
}

// enter lets a request into the engine: it waits while that is paused, and from
// then on a pause can abort it.
func (c *call) enter() error {
	e := c.e
	for {
		e.mu.Lock()
		resumed, aborts := e.resumed, e.aborts
		e.mu.Unlock()
		if resumed == nil {
			c.aborts = aborts
			return nil
		}
		if err := c.wait(resumed); err != nil {
			return err
		}
	}
}

const scalingBody = `{"error":"The model is currently scaling. Please try again later."}`

// scales answers while the engine changes its number of ranks.
func (c *call) scales() bool {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.e.scaling
}
