package policy

import "github.com/baton-llm/baton/internal/worker"

// RendezvousHash chooses the candidate with the highest score, which is the hash
// of the request's session and the worker's URL together; of equals the last by
// position. If that worker is not ready the next best one is chosen, and nobody
// else's requests move. A request without a session goes by load.
//
// It is vllm-project/router's policy of that name, with its hash and the keys of
// [ConsistentHash].
type RendezvousHash struct{}

var _ Policy = RendezvousHash{}

// Name implements [Policy].
func (RendezvousHash) Name() string { return "rendezvous_hash" }

// Prepare implements [Policy].
func (RendezvousHash) Prepare(r *Request, s *worker.Snapshot) Choice {
	key := hashKey(r)
	if key == "" {
		return leastLoadChoice{plain{r.Work}}
	}
	ch := &rendezvousChoice{plain: plain{r.Work}, scores: make([]score, len(s.Workers))}
	text := append([]byte(key), ':')
	for _, w := range s.Workers {
		for len(ch.scores) <= w.Slot() {
			ch.scores = append(ch.scores, score{})
		}
		ch.scores[w.Slot()] = score{w, fbiHash(append(text, w.Label()...))}
	}
	return ch
}

type score struct {
	w    *worker.Worker
	hash uint64
}

type rendezvousChoice struct {
	plain

	scores []score // by slot
	reason string
}

func (ch *rendezvousChoice) Why(*worker.Worker) Why { return Why{Reason: ch.reason} }

func (ch *rendezvousChoice) Choose(c *worker.Candidates) *worker.Worker {
	var best score
	for i := range c.Len() {
		w := c.At(i)
		if w.Slot() >= len(ch.scores) || ch.scores[w.Slot()].w != w {
			continue // it came after the snapshot
		}
		if s := ch.scores[w.Slot()]; best.w == nil || s.hash >= best.hash {
			best = s
		}
	}
	if best.w == nil {
		ch.reason = "load"
		return leastLoadChoice{}.Choose(c)
	}
	ch.reason = "hash"
	return best.w
}
