package policy

import (
	"math"
	"sync/atomic"
	"time"
)

// recent is an amount of which a part is forgotten with time: 63 % within
// recentTime. It takes no lock and is fit for use under one. The zero value is 0.
type recent struct {
	state atomic.Uint64 // the tick of the last change and the amount then, as float32 bits
}

// tick is a time, in steps of recentStep since the policy was made.
type tick uint32

const (
	recentTime = 30 * time.Second
	recentStep = 250 * time.Millisecond
)

// remembered is what is left of 1 after a number of steps; after all of them it
// is nothing.
var remembered = func() (left [512]float32) {
	for i := range left {
		left[i] = float32(math.Exp(-float64(i) * float64(recentStep) / float64(recentTime)))
	}
	return left
}()

// tickAt returns the tick of a time.
func tickAt(start, now time.Time) tick { return tick(max(0, now.Sub(start)/recentStep)) }

// left returns what is left of an amount between two ticks.
func left(amount float32, from, to tick) float32 {
	switch {
	case to <= from:
		return amount
	case to-from >= tick(len(remembered)):
		return 0
	}
	return amount * remembered[to-from]
}

// at returns the amount at a time.
func (r *recent) at(now tick) float32 {
	s := r.state.Load()
	return left(math.Float32frombits(uint32(s)), tick(s>>32), now)
}

// add adds to the amount, which never falls below 0.
func (r *recent) add(amount float32, now tick) {
	for {
		s := r.state.Load()
		at := max(now, tick(s>>32)) // another's change may be younger
		sum := max(0, left(math.Float32frombits(uint32(s)), tick(s>>32), at)+amount)
		if r.state.CompareAndSwap(s, uint64(at)<<32|uint64(math.Float32bits(sum))) {
			return
		}
	}
}
