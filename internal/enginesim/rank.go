package enginesim

import (
	"maps"
	"net/http"
	"strings"
)

// rank is what the metrics show of one data-parallel rank. The ranks share one
// scheduler and one cache. Guarded by Engine.mu.
type rank struct {
	running, waiting, loading     int // sequences; of the running, those that wait for remote blocks
	promptTokens, generatedTokens int
	cacheQueries, cacheHits       int // tokens
	remoteQueries, remoteHits     int // tokens
	preemptions                   int
	finished                      map[string]int // by finish reason
}

func newRanks(n int) []rank {
	ranks := make([]rank, n)
	for i := range ranks {
		ranks[i].finished = map[string]int{}
	}
	return ranks
}

// sumLocked adds all ranks up.
func (e *Engine) sumLocked() rank {
	sum := rank{finished: map[string]int{}}
	for _, r := range e.ranks {
		sum.running += r.running
		sum.waiting += r.waiting
		sum.loading += r.loading
		sum.promptTokens += r.promptTokens
		sum.generatedTokens += r.generatedTokens
		sum.cacheQueries += r.cacheQueries
		sum.cacheHits += r.cacheHits
		sum.remoteQueries += r.remoteQueries
		sum.remoteHits += r.remoteHits
		sum.preemptions += r.preemptions
		for reason := range maps.Keys(r.finished) {
			sum.finished[reason] += r.finished[reason]
		}
	}
	return sum
}

// pinned reads the header that pins a request to a rank.
func pinned(h http.Header) (n int, ok bool) {
	v := strings.TrimSpace(h.Get("X-data-parallel-rank"))
	n, ok = lenientInt([]byte(v))
	return n, ok && v != "" // what is no integer is ignored
}

// rank chooses the rank of a request: the one it is pinned to, or the one with the
// fewest sequences.
func (e *Engine) rank(h http.Header) (int, *apiError) {
	if n, ok := pinned(h); ok {
		if n < 0 || n >= e.cfg.DPSize {
			return 0, badValue("", "data_parallel_rank %d is out of range [0, %d).", n, e.cfg.DPSize)
		}
		return n, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	best := 0
	for i, r := range e.ranks {
		if b := e.ranks[best]; r.running+r.waiting < b.running+b.waiting {
			best = i
		}
	}
	return best, nil
}

// loading shows a request as waiting for remote blocks until the function it
// returns is called.
func (j *job) loading() (over func()) {
	e, r, n := j.e, &j.e.ranks[j.rank], j.ticket.weight
	e.mu.Lock()
	r.loading += n
	e.mu.Unlock()
	return func() {
		e.mu.Lock()
		r.loading -= n
		e.mu.Unlock()
	}
}
