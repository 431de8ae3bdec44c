package memnet

import (
	"sync"
	"time"
)

// changed wakes everyone who waits for a state to change. The mutex that guards
// the state guards it too. The channel is made by the first waiter, and so in
// the waiter's bubble.
type changed struct{ ch chan struct{} }

// raise wakes all waiters. The caller holds the mutex.
func (c *changed) raise() {
	if c.ch != nil {
		close(c.ch)
		c.ch = nil
	}
}

// next returns a channel that the next raise closes. The caller holds the mutex.
func (c *changed) next() <-chan struct{} {
	if c.ch == nil {
		c.ch = make(chan struct{})
	}
	return c.ch
}

// wait unlocks mu, waits for a raise or for the deadline (zero means none), and
// locks mu again. The caller then looks at the state anew.
func (c *changed) wait(mu *sync.Mutex, deadline time.Time) {
	next := c.next()
	mu.Unlock()
	defer mu.Lock()
	if deadline.IsZero() {
		<-next
		return
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-next:
	case <-timer.C:
	}
}
