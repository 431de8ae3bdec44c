package breaker_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/worker"
)

// one is a lister with one decode worker.
type one struct{ generation worker.Generation }

func (o *one) Stamp(worker.Role) uint64 { return uint64(o.generation) }

func (o *one) List(worker.Role) []worker.Registration {
	if o.generation == 0 {
		return nil
	}
	return []worker.Registration{{ID: worker.ID{Role: worker.Decode, URL: "http://a", Generation: o.generation}}}
}

// TestStates drives one machine by a script: g good, b bad, u unknown ends,
// each after a begin; t is the timeout, B a begin alone, G, X and U its end.
func TestStates(t *testing.T) {
	tests := []struct{ name, script, want string }{
		{"good", "ggg", "closed/ready"},
		{"not enough failures", "bb", "closed/ready"},
		{"failures in a row", "bbb", "open/ejected"},
		{"a success between", "bbgbb", "closed/ready"},
		{"unknown counts for nothing", "bubub", "open/ejected"},
		{"still open before the timeout", "bbbg", "open/ejected"},
		{"half open after it", "bbbt", "half_open/ready"},
		{"one trial at a time", "bbbtB", "half_open/trial"},
		{"trial cut off", "bbbtBU", "half_open/ready"},
		{"one good trial", "bbbtBG", "half_open/ready"},
		{"enough good trials", "bbbtgg", "closed/ready"},
		{"bad trial", "bbbtb", "open/ejected"},
		{"bad trial after a good one", "bbbtgb", "open/ejected"},
		{"again after another timeout", "bbbtbtgg", "closed/ready"},
		{"failures count anew", "bbbtggbb", "closed/ready"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := breaker.New(breaker.Config{Failures: 3, Successes: 2, Timeout: time.Minute}, nil)
				w := pool(b, &one{1}).Snapshot().Workers[0]
				for _, c := range tt.script {
					switch c {
					case 't':
						time.Sleep(time.Minute)
						synctest.Wait()
					case 'B':
						b.Begin(w)
					case 'G', 'X', 'U':
						b.End(w, result(c))
					default:
						b.Begin(w)
						b.End(w, result(c))
					}
				}
				if got := fmt.Sprintf("%v/%v", b.State(w), w.Blocked()); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				time.Sleep(time.Hour) // timers end with the bubble
			})
		})
	}
}

func result(c rune) breaker.Result {
	switch strings.ToLower(string(c)) {
	case "g":
		return breaker.Good
	case "b", "x":
		return breaker.Bad
	default:
		return breaker.Unknown
	}
}

func pool(b *breaker.Breaker, l worker.Lister) *worker.Pool {
	p := worker.NewPool(worker.PoolConfig{Role: worker.Decode, Lister: l, Observers: []worker.Observer{b}})
	p.Reconcile()
	return p
}

// TestLifetime: a successor starts closed, and the timer of a worker that left
// touches nobody.
func TestLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Config{Failures: 1, Successes: 1, Timeout: time.Minute}, nil)
		l := &one{1}
		p := pool(b, l)
		old := p.Snapshot().Workers[0]
		b.Begin(old)
		b.End(old, breaker.Bad)
		l.generation = 2
		p.Reconcile()
		successor := p.Snapshot().Workers[0]
		if b.State(successor) != breaker.Closed || successor.Blocked() != 0 {
			t.Errorf("successor: %v, %v", b.State(successor), successor.Blocked())
		}
		b.End(old, breaker.Bad)
		time.Sleep(2 * time.Minute)
		if successor.Blocked() != 0 || b.State(old) != breaker.Closed {
			t.Errorf("after the timeout: successor %v, old %v", successor.Blocked(), b.State(old))
		}
	})
}

func TestDisabled(t *testing.T) {
	b := breaker.New(breaker.Config{Failures: 1, Successes: 1, Timeout: time.Minute, Disabled: true}, nil)
	w := pool(b, &one{1}).Snapshot().Workers[0]
	b.Begin(w)
	b.End(w, breaker.Bad)
	if w.Blocked() != 0 {
		t.Errorf("got %v, want ready", w.Blocked())
	}
}
