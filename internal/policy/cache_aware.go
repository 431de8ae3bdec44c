package policy

import "github.com/baton-llm/baton/internal/worker"

// CacheAware chooses, of the workers whose load is inside the window, the one that
// was sent the longest beginning of the prompt, if that is more than a share of
// it; else the least loaded worker. A worker is inside if its load is at most
// --balance-abs-threshold above the least, or at most --balance-rel-threshold
// times the least.
//
// It is vllm-project/router's policy of that name with its flags and defaults,
// and these differences. A prefix may have several owners, of which the better
// one is taken. The window is asked for each owner, so that one overloaded
// worker does not end affinity for all. An owner that is overloaded or not ready
// keeps what it owns and gets its traffic back; only its departure ends that.
// Chats match by their conversation. Keys are matched in blocks of 128 bytes and
// more. Ties go to the worker picked longest ago, not to the first.
type CacheAware struct {
	*affinity

	threshold float64
	window    window
}

var (
	_ Policy          = (*CacheAware)(nil)
	_ worker.Observer = (*CacheAware)(nil)
)

// NewCacheAware returns the policy.
func NewCacheAware(cfg Config) *CacheAware {
	return &CacheAware{newAffinity(cfg), cfg.CacheThreshold, newWindow(cfg.BalanceAbs, cfg.BalanceRel)}
}

// Name implements [Policy].
func (*CacheAware) Name() string { return "cache_aware" }

// Prepare implements [Policy].
func (p *CacheAware) Prepare(r *Request, _ *worker.Snapshot) Choice {
	ch := &cacheAwareChoice{indexed: indexed{plain: plain{r.Work}, l: p.look(r)}, window: p.window}
	if ch.l != nil {
		ch.enough = int64(p.threshold * float64(ch.l.size))
	}
	return ch
}

type cacheAwareChoice struct {
	indexed

	window window
	enough int64 // bytes that a match must be more than
}

func (ch *cacheAwareChoice) Choose(c *worker.Candidates) *worker.Worker {
	least := c.At(0).Demand()
	for i := 1; i < c.Len(); i++ {
		least = min(least, c.At(i).Demand())
	}
	var best preference
	ch.reason = "load"
	for i := range c.Len() {
		w := c.At(i)
		match := ch.l.bytes(w)
		switch {
		case match <= ch.enough:
			match = 0
		case !ch.window.inside(w.Demand(), least):
			match = 0
			ch.reason = "overload"
		}
		best.prefer(w, match)
	}
	if best.match > 0 {
		ch.reason = "prefix"
	}
	return best.w
}
