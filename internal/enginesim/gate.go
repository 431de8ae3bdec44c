package enginesim

import "context"

// gate stops requests until it is opened. Guarded by Engine.mu.
type gate struct {
	open    chan struct{} // closed when open
	opened  bool
	waiting int
	moved   chan struct{} // closed and replaced when waiting changes
}

func (e *Engine) gateLocked(name string) *gate {
	g := e.gates[name]
	if g == nil {
		g = &gate{open: make(chan struct{}), moved: make(chan struct{})}
		e.gates[name] = g
	}
	return g
}

func (g *gate) add(n int) {
	g.waiting += n
	close(g.moved)
	g.moved = make(chan struct{})
}

// Gate closes the gate of that name, making it if there is none. Gates that a
// Fault names are closed until they are opened.
func (e *Engine) Gate(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.gateLocked(name); g.opened {
		g.opened = false
		g.open = make(chan struct{})
	}
}

// Open opens the gate of that name: what waits there goes on, and what comes
// passes, until Gate closes it.
func (e *Engine) Open(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.gateLocked(name); !g.opened {
		g.opened = true
		close(g.open)
	}
}

// AtGate returns how many requests wait at the gate of that name.
func (e *Engine) AtGate(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gateLocked(name).waiting
}

// AwaitGate waits until at least n requests wait at the gate of that name.
func (e *Engine) AwaitGate(ctx context.Context, name string, n int) error {
	for {
		e.mu.Lock()
		g := e.gateLocked(name)
		reached, moved := g.waiting >= n, g.moved
		e.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitGate keeps c at the gate of that name.
func (e *Engine) waitGate(c *call, name string) error {
	e.mu.Lock()
	g := e.gateLocked(name)
	g.add(1)
	open := g.open
	e.mu.Unlock()
	err := c.wait(open)
	e.mu.Lock()
	g.add(-1)
	e.mu.Unlock()
	return err
}
