package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/baton-llm/baton/internal/worker"
)

// ConsistentHash chooses the worker whose point on a ring of hashes is the first
// from the hash of the request's session on; if that is no candidate, or has more
// than its share of the load, the next one on the ring.
//
// Ring and keys are those of vllm-project/router's policy of that name: 160
// points per worker, of the strings "URL:0" to "URL:159", and the keys
// "header:NAME:VALUE", "session:VALUE" and "user:VALUE", or the text of a prompt.
// There a worker that is not ready gives its requests to the first worker of the
// list, and everything that has no key goes to one worker; here the first goes to
// the next point and the second by load. The bound on load is that of Mirrokni,
// Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads".
type ConsistentHash struct {
	last atomic.Pointer[ring]
	mu   sync.Mutex // held to build a ring, so that it is built once
}

const (
	ringPoints = 160 // per worker

	// A worker may have 5/4 of the mean load. The bound is never below boundFloor:
	// with few requests in all it would scatter those of one session.
	boundNum, boundDen = 5, 4
	boundFloor         = 4
)

var _ Policy = (*ConsistentHash)(nil)

// NewConsistentHash returns the policy.
func NewConsistentHash() *ConsistentHash { return new(ConsistentHash) }

// Name implements [Policy].
func (*ConsistentHash) Name() string { return "consistent_hash" }

// Prepare implements [Policy].
func (p *ConsistentHash) Prepare(r *Request, s *worker.Snapshot) Choice {
	key := hashKey(r)
	if key == "" {
		return leastLoadChoice{plain{r.Work}}
	}
	ring := p.ring(s)
	return &consistentHashChoice{
		plain: plain{r.Work}, ring: ring, from: ring.find(fbiHash([]byte(key))), open: make([]*worker.Worker, ring.slots),
	}
}

// hashKey returns the string to hash for a request, "" if nothing tells it from
// others.
func hashKey(r *Request) string {
	s := r.sessionOf()
	if s.Key != "" {
		return s.Key
	}
	const short = 100
	switch text := cmp.Or(s.ID, r.placementOf()); {
	case text == "":
		return ""
	case len(text) > short:
		return fmt.Sprintf("request_hash:%016x", fbiHash([]byte(text)))
	default:
		return "request:" + text
	}
}

// ring is an immutable ring of one snapshot.
type ring struct {
	of     *worker.Snapshot
	points []ringPoint // by hash
	slots  int         // one more than the largest slot of a worker
}

type ringPoint struct {
	hash uint64
	w    *worker.Worker
}

// ring returns the ring of the snapshot, or the one before while that is being
// made: a choice overlooks what has departed, and newcomers can wait.
func (p *ConsistentHash) ring(s *worker.Snapshot) *ring {
	last := p.last.Load()
	if last != nil && last.of == s {
		return last
	}
	if last == nil {
		p.mu.Lock()
	} else if !p.mu.TryLock() {
		return last
	}
	defer p.mu.Unlock()
	if last = p.last.Load(); last == nil || last.of != s {
		last = newRing(s, last)
		p.last.Store(last)
	}
	return last
}

// newRing returns the ring of a snapshot. It takes over the points of the
// workers that the old ring has already, which may be nil.
func newRing(s *worker.Snapshot, old *ring) *ring {
	r := &ring{of: s, points: make([]ringPoint, 0, len(s.Workers)*ringPoints)}
	for _, w := range s.Workers {
		r.slots = max(r.slots, w.Slot()+1)
	}
	missing := make([]*worker.Worker, r.slots)
	for _, w := range s.Workers {
		missing[w.Slot()] = w
	}
	var kept []ringPoint
	if old != nil {
		for _, p := range old.points {
			if at := p.w.Slot(); at < r.slots && missing[at] == p.w {
				kept = append(kept, p)
			}
		}
		for _, p := range kept {
			missing[p.w.Slot()] = nil
		}
	}
	var made []ringPoint
	for _, w := range missing {
		made = appendPoints(made, w)
	}
	slices.SortFunc(made, ringPoint.compare)
	for len(kept) > 0 && len(made) > 0 {
		next := &kept
		if made[0].compare(kept[0]) < 0 {
			next = &made
		}
		r.points = append(r.points, (*next)[0])
		*next = (*next)[1:]
	}
	r.points = append(append(r.points, kept...), made...)
	return r
}

func appendPoints(points []ringPoint, w *worker.Worker) []ringPoint {
	if w == nil {
		return points
	}
	text := append([]byte(w.Label()), ':')
	for i := range ringPoints {
		points = append(points, ringPoint{fbiHash(strconv.AppendInt(text, int64(i), 10)), w})
	}
	return points
}

// compare orders points by hash. Of those with one hash the last worker's stands
// first: it is the one that vllm-router keeps.
func (p ringPoint) compare(q ringPoint) int {
	return cmp.Or(cmp.Compare(p.hash, q.hash), -cmp.Compare(p.w.Label(), q.w.Label()))
}

// find returns the index of the first point with that hash or a larger one.
func (r *ring) find(hash uint64) int {
	i, _ := slices.BinarySearchFunc(r.points, hash, func(p ringPoint, h uint64) int { return cmp.Compare(p.hash, h) })
	return i
}

type consistentHashChoice struct {
	plain

	ring   *ring
	from   int
	open   []*worker.Worker // scratch: candidates with room, by slot
	reason string
}

func (ch *consistentHashChoice) Why(*worker.Worker) Why { return Why{Reason: ch.reason} }

func (ch *consistentHashChoice) Choose(c *worker.Candidates) *worker.Worker {
	total, n := int64(1), int64(c.Len())
	for i := range c.Len() {
		total += c.At(i).Demand()
	}
	bound := max(boundFloor, (boundNum*total+boundDen*n-1)/(boundDen*n))
	clear(ch.open)
	for i := range c.Len() {
		if w := c.At(i); w.Slot() < len(ch.open) && w.Demand() < bound {
			ch.open[w.Slot()] = w
		}
	}
	points := ch.ring.points
	for i := range points {
		w := points[(ch.from+i)%len(points)].w
		if ch.open[w.Slot()] == w {
			ch.reason = "hash"
			if w != points[ch.from%len(points)].w {
				ch.reason = "next"
			}
			return w
		}
	}
	ch.reason = "load" // candidates that the ring does not have yet
	return leastLoadChoice{}.Choose(c)
}
