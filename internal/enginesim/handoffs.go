package enginesim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// keptHandoffs bounds what is remembered of hand-offs that are over.
const keptHandoffs = 4096

// States of a hand-off.
const (
	handPinned    = "pinned"
	handCollected = "collected"
	handFreed     = "freed"
	handExpired   = "expired"
	handLost      = "lost" // the engine died
)

// handoff is what a prefill leg has left for a decode leg.
type handoff struct {
	id      string // by which the decode leg names it
	engine  string // the engine id that goes with it
	unique  string // the last part of the request id that goes with it
	blocks  []*block
	tokens  int
	sum     string
	params  json.RawMessage // as answered
	expires time.Time
	state   string
	timer   *time.Timer
	over    chan struct{} // closed when it is no more pinned
	told    sizes         // of the other engine, as the prefill leg says
}

// sizes are the numbers of ranks of an engine.
type sizes struct {
	DP int `json:"dp"`
	TP int `json:"tp"`
}

func newHandoff(id string, j *job) *handoff {
	return &handoff{
		id: id, tokens: len(j.prompts[0].tokens), sum: j.prompts[0].sum,
		state: handPinned, over: make(chan struct{}),
	}
}

func (h *handoff) blockIDs() []int {
	ids := make([]int, 0, len(h.blocks))
	for _, b := range h.blocks {
		ids = append(ids, b.id)
	}
	return ids
}

// handoffs are those of one engine. Guarded by Engine.mu.
type handoffs struct {
	quiet
	e     *Engine
	byID  map[string]*handoff
	order []string
}

func newHandoffs(e *Engine) handoffs { return handoffs{e: e, byID: map[string]*handoff{}} }

// pinLocked keeps the blocks of j's prompt for h.
func (t *handoffs) pinLocked(h *handoff, j *job, validity time.Duration) {
	for _, b := range j.ticket.holds[0].blocks {
		t.e.cache.touch(b)
		h.blocks = append(h.blocks, b)
	}
	h.expires = time.Now().Add(validity)
	h.timer = time.AfterFunc(validity, func() { t.expire(h) })
	if old := t.byID[h.id]; old != nil { // two legs under one name: the newer one counts
		if old.state == handPinned {
			t.endLocked(old, handLost)
		}
	} else {
		t.order = append(t.order, h.id)
	}
	t.byID[h.id] = h
	t.e.count.produced++
	t.forgetLocked()
}

// forgetLocked bounds the table: hand-offs that are over go first come first.
func (t *handoffs) forgetLocked() {
	for i := 0; len(t.order) > keptHandoffs && i < len(t.order); {
		if h := t.byID[t.order[i]]; h.state == handPinned {
			i++
			continue
		}
		delete(t.byID, t.order[i])
		t.order = slices.Delete(t.order, i, i+1)
	}
}

// endLocked unpins h.
func (t *handoffs) endLocked(h *handoff, state string) {
	h.state = state
	h.timer.Stop()
	close(h.over)
	t.e.cache.release(h.blocks)
	h.blocks = nil
	switch state {
	case handCollected:
		t.e.count.collected++
	case handFreed:
		t.e.count.freed++
	case handExpired:
		t.e.count.expired++
	}
	t.e.dispatchLocked()
}

func (t *handoffs) expire(h *handoff) {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	t.lapseLocked(h)
}

// lapseLocked ends h if its time is over.
func (t *handoffs) lapseLocked(h *handoff) {
	if h.state == handPinned && !time.Now().Before(h.expires) {
		t.endLocked(h, handExpired)
	}
}

// checkLocked tells whether h can be had by a decode leg with params.
func (t *handoffs) checkLocked(h *handoff, params json.RawMessage) collected {
	a := collected{Tokens: h.tokens, Sum: h.sum, Diff: differ(h.params, params)}
	t.lapseLocked(h)
	if h.state != handPinned {
		a.Reason = "the hand-off is " + h.state
		if h.state == handExpired {
			a.Late = time.Since(h.expires).Seconds()
		}
		return a
	}
	a.OK = true
	return a
}

func (t *handoffs) statsLocked(s *Stats) {
	for _, h := range t.byID {
		t.lapseLocked(h)
		s.PinnedBlocks += len(h.blocks)
		if h.state == handPinned {
			s.PinnedHandoffs++
		}
	}
}

func (t *handoffs) closeLocked() {
	for _, h := range t.byID {
		h.timer.Stop()
	}
}

func (t *handoffs) lostLocked() {
	for _, h := range t.byID {
		if h.state == handPinned {
			t.endLocked(h, handLost)
		}
	}
}

// extraParams is what the fault extra_kv adds.
const extraParams = `"future":{"a":1,"list":[true,null,{"c":"\u00e9<&>"}],"empty":{}},` +
	`"future_id":9007199254740993,"future_float":1.0,"future_big":123456789012345678901234567890`

// padded adds to hand-off parameters what the faults of j ask for.
func (j *job) padded(raw []byte) json.RawMessage {
	if j.c.form("extra_kv") != nil {
		raw = append(bytes.TrimSuffix(raw, []byte("}")), ","+extraParams+"}"...)
	}
	if f := j.c.form("big_kv"); f != nil {
		pad := max(0, cmp.Or(f.Bytes, 64<<10)-len(raw)-len(`,"padding":""`))
		raw = append(bytes.TrimSuffix(raw, []byte("}")), `,"padding":"`+strings.Repeat("x", pad)+`"}`...)
	}
	return raw
}
