package policy

import (
	"math"
	"sync"
	"testing"
	"time"
)

func TestRecent(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(d time.Duration) tick { return tickAt(start, start.Add(d)) }
	near := func(what string, got float32, want float64) {
		t.Helper()
		if math.Abs(float64(got)-want) > want/1000+1e-9 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	var r recent
	near("nothing", r.at(at(time.Hour)), 0)
	r.add(1000, at(time.Second))
	near("at once", r.at(at(time.Second)), 1000)
	near("seen from before", r.at(at(0)), 1000)
	near("half a minute later", r.at(at(31*time.Second)), 1000/math.E)
	near("an hour later", r.at(at(time.Hour)), 0)
	r.add(500, at(31*time.Second))
	near("more of it", r.at(at(31*time.Second)), 1000/math.E+500)
	r.add(100, at(time.Second)) // by somebody who looked at the time long ago
	near("a late change", r.at(at(31*time.Second)), 1000/math.E+600)
	r.add(-5000, at(31*time.Second))
	near("less than nothing", r.at(at(31*time.Second)), 0)
	if got := at(-time.Minute); got != 0 {
		t.Errorf("before the start it is %d", got)
	}

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				r.add(1, at(40*time.Second))
			}
		})
	}
	wg.Wait()
	near("by many", r.at(at(40*time.Second)), 8000)
}
