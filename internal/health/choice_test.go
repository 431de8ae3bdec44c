package health_test

import (
	"testing"
	"testing/synctest"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// pick takes n leases by least load and returns how many each of the workers
// got.
func (s *stage) pick(n int, workers ...*worker.Worker) []int {
	s.t.Helper()
	got := make([]int, len(workers))
	pool := s.pools[worker.Regular-1]
	for range n {
		choice := policy.LeastLoad{}.Prepare(&policy.Request{}, pool.Snapshot())
		grants, err := worker.Pick(worker.Need{Pool: pool, Take: worker.Acquire, Chooser: choice})
		if err != nil {
			s.t.Fatal(err)
		}
		for i, w := range workers {
			if grants[0].Worker() == w {
				got[i]++
			}
		}
	}
	return got
}

// fleet adds a worker for each process, at a host of its own.
func (s *stage) fleet(processes ...*process) (workers []*worker.Worker, servers []*engine) {
	s.t.Helper()
	for i, p := range processes {
		addr := string(rune('a'+i)) + ":8000"
		servers = append(servers, s.serveProcess(addr, p))
		workers = append(workers, s.add(worker.Regular, addr, 0))
	}
	synctest.Wait()
	return workers, servers
}

// TestBurstBetweenReads is case 3.1: what this router has just sent counts
// before the engine shows it.
func TestBurstBetweenReads(t *testing.T) {
	inBubble(t, func(s *stage) {
		workers, _ := s.fleet(newProcess(0, shown{}), newProcess(0, shown{running: 1}))
		if got := s.pick(100, workers...); got[0] < 50 || got[0] > 51 {
			s.t.Errorf("split into %v", got)
		}
	})
}

// TestFullIsLastResort is case 3.10: fewer requests do not make up for a full
// KV cache.
func TestFullIsLastResort(t *testing.T) {
	inBubble(t, func(s *stage) {
		workers, _ := s.fleet(newProcess(0, shown{running: 2, usage: 0.97}), newProcess(0, shown{running: 4, usage: 0.1}))
		if got := s.pick(20, workers...); got[1] != 20 {
			s.t.Errorf("split into %v", got)
		}
		workers[1].Block(worker.Draining)
		if got := s.pick(1, workers...); got[0] != 1 {
			s.t.Error("there is no last resort")
		}
	})
}

// TestHangingMetricsAreNoMagnet is case 3.19: an engine that was idle when it
// was last heard gets no more than its share of what comes.
func TestHangingMetricsAreNoMagnet(t *testing.T) {
	inBubble(t, func(s *stage) {
		workers, servers := s.fleet(newProcess(0, shown{}), newProcess(0, shown{running: 5}), newProcess(0, shown{running: 5}))
		servers[0].set("/metrics", hang)
		s.sleep(4 * interval)
		if got := s.pick(50, workers...); got[0] > 20 || got[1] < 15 || got[2] < 15 {
			s.t.Errorf("split into %v", got)
		}
	})
}
