package enginesim

import "slices"

// ticket is a request that wants to run.
type ticket struct {
	weight  int // sequences
	rank    *rank
	holds   []*hold
	ready   chan struct{} // closed when granted
	granted bool
}

// enqueue puts t at the end of the queue and tells whether there is room for it
// at once.
func (e *Engine) enqueue(t *ticket) bool {
	t.ready = make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = append(e.queue, t)
	t.rank.waiting += t.weight
	e.dispatchLocked()
	return t.granted
}

// admitted waits until there is room for t: sequences, then blocks, in order of
// arrival.
func (e *Engine) admitted(c *call, t *ticket) error {
	err := c.wait(t.ready)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.granted { // in the same moment
		return nil
	}
	e.queue = slices.DeleteFunc(e.queue, func(q *ticket) bool { return q == t })
	t.rank.waiting -= t.weight
	e.dispatchLocked()
	e.leftLocked()
	return err
}

// dispatchLocked admits from the head of the queue what there is room for.
func (e *Engine) dispatchLocked() {
	for len(e.queue) > 0 && e.sleepLevel == 0 && e.life.halts == 0 {
		t := e.queue[0]
		if e.running > 0 && e.running+t.weight > e.cfg.MaxSeqs {
			return
		}
		if !e.cache.reserve(t.holds) {
			return
		}
		e.queue = slices.Delete(e.queue, 0, 1)
		t.rank.waiting -= t.weight
		t.rank.running += t.weight
		e.running += t.weight
		t.granted = true
		close(t.ready)
	}
}

// leave gives the room of a granted ticket back, once.
func (e *Engine) leave(t *ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !t.granted {
		return
	}
	t.granted = false
	e.running -= t.weight
	t.rank.running -= t.weight
	for _, h := range t.holds {
		e.cache.release(h.blocks)
		h.blocks = nil
	}
	e.dispatchLocked()
	e.leftLocked()
}

// leftLocked wakes who waits for requests to leave.
func (e *Engine) leftLocked() {
	close(e.left)
	e.left = make(chan struct{})
}

// lane waits for a place among the prompts that are computed at once.
func (e *Engine) lane(c *call) (leave func(), err error) {
	if e.lanes == nil {
		return func() {}, nil
	}
	select {
	case e.lanes <- struct{}{}:
		return func() { <-e.lanes }, nil
	case <-c.r.Context().Done():
		return nil, errGone
	case <-c.aborts:
		return nil, injection("abort")
	case <-c.life.over:
		return nil, errDead
	case <-e.done:
		return nil, errClosed
	}
}
