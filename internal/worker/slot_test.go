package worker_test

import (
	"slices"
	"testing"

	"github.com/baton-llm/baton/internal/worker"
)

// lists is a Lister whose list a test sets.
type lists struct {
	stamp uint64
	regs  []worker.Registration
}

func (l *lists) Stamp(worker.Role) uint64               { return l.stamp }
func (l *lists) List(worker.Role) []worker.Registration { return slices.Clone(l.regs) }

func (l *lists) set(ids ...worker.ID) {
	l.stamp++
	l.regs = nil
	for _, id := range ids {
		l.regs = append(l.regs, worker.Registration{ID: id})
	}
}

// departures notes the slots that workers have while observers hear that they leave.
type departures []int

func (*departures) WorkerAdded(*worker.Worker)       {}
func (d *departures) WorkerRemoved(w *worker.Worker) { *d = append(*d, w.Slot()) }

func TestSlots(t *testing.T) {
	t.Parallel()
	id := func(url string, generation worker.Generation) worker.ID {
		return worker.ID{Role: worker.Regular, URL: url, Generation: generation}
	}
	var l lists
	var left departures
	pool := worker.NewPool(worker.PoolConfig{Role: worker.Regular, Lister: &l, Observers: []worker.Observer{&left}})
	slots := func(ids ...worker.ID) (got []int) {
		l.set(ids...)
		pool.Reconcile()
		for _, w := range pool.Snapshot().Workers {
			got = append(got, w.Slot())
		}
		return got
	}
	a, b, c, d := id("a", 1), id("b", 2), id("c", 3), id("d", 4)
	for _, step := range []struct {
		name string
		ids  []worker.ID
		want []int
	}{
		{"first", []worker.ID{c, a, b}, []int{1, 2, 0}}, // in the order of the list
		{"kept", []worker.ID{a, b, c}, []int{1, 2, 0}},
		{"one leaves", []worker.ID{b, c}, []int{2, 0}},
		{"the smallest is reused", []worker.ID{b, c, d}, []int{2, 0, 1}},
		{"a successor gets what is free", []worker.ID{id("b", 5), c, d}, []int{2, 0, 1}},
		{"growth", []worker.ID{a, c, d, id("e", 6)}, []int{2, 0, 1, 3}},
	} {
		if got := slots(step.ids...); !slices.Equal(got, step.want) {
			t.Errorf("%s: slots %v, want %v", step.name, got, step.want)
		}
	}
	if want := (departures{1, 2, 2}); !slices.Equal(left, want) {
		t.Errorf("left slots %v, want %v", left, want)
	}
}
