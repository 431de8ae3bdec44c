package enginesim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
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
)

// handoff is what a prefill leg has left for a decode leg.
type handoff struct {
	id      string // the engine's request id
	engine  string
	blocks  []*block
	tokens  int
	sum     string
	params  json.RawMessage // as answered
	expires time.Time
	state   string
	timer   *time.Timer
}

// nixl is the pull mode of vLLM's NixlConnector. The reading of remote memory is
// an HTTP call between the engines. Its fields are guarded by Engine.mu.
type nixl struct {
	e     *Engine
	host  string
	port  int
	byID  map[string]*handoff
	order []string
}

func newNixl(e *Engine) (*nixl, error) {
	n := &nixl{e: e, byID: map[string]*handoff{}}
	if e.cfg.Advertise == "" {
		if e.cfg.Role == RolePrefill {
			return nil, errors.New("a prefill engine needs an advertised address")
		}
		return n, nil // may decode
	}
	var err error
	n.host, n.port, err = e.cfg.advertised()
	return n, err
}

// nixlParams are the hand-off parameters in the order vLLM gives them.
type nixlParams struct {
	DoRemotePrefill bool     `json:"do_remote_prefill"`
	DoRemoteDecode  bool     `json:"do_remote_decode"`
	BlockIDs        [][]int  `json:"remote_block_ids"`
	EngineID        string   `json:"remote_engine_id"`
	RequestID       string   `json:"remote_request_id"`
	Host            string   `json:"remote_host"`
	Port            int      `json:"remote_port"`
	TPSize          int      `json:"tp_size"`
	NumTokens       int      `json:"remote_num_tokens"`
	ExpiryTime      *float64 `json:"remote_blocks_expiry_time"`
	TransferMode    string   `json:"transfer_mode"`
}

// oldNixlParams are those of engines that still had one flat list of blocks.
type oldNixlParams struct {
	DoRemotePrefill bool   `json:"do_remote_prefill"`
	DoRemoteDecode  bool   `json:"do_remote_decode"`
	BlockIDs        []int  `json:"remote_block_ids"`
	EngineID        string `json:"remote_engine_id"`
	Host            string `json:"remote_host"`
	Port            int    `json:"remote_port"`
	TPSize          int    `json:"tp_size"`
}

// extraParams is what the fault extra_kv adds.
const extraParams = `"future":{"a":1,"list":[true,null,{"c":"\u00e9<&>"}],"empty":{}},` +
	`"future_id":9007199254740993,"future_float":1.0,"future_big":123456789012345678901234567890`

// give implements connector.
func (n *nixl) give(j *job) json.RawMessage {
	if n.host == "" {
		return nil
	}
	e, hold, p := n.e, j.ticket.holds[0], j.prompts[0]
	h := &handoff{
		id: j.engine, engine: n.engineID(j.rank), tokens: len(p.tokens), sum: p.sum, state: handPinned,
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range hold.blocks {
		e.cache.touch(b)
		h.blocks = append(h.blocks, b)
	}
	h.params = n.params(j, h)
	h.expires = time.Now().Add(e.cfg.Validity)
	h.timer = time.AfterFunc(e.cfg.Validity, func() { n.expire(h) })
	n.byID[h.id] = h
	n.order = append(n.order, h.id)
	e.count.produced++
	n.forgetLocked()
	return h.params
}

func (n *nixl) engineID(rank int) string {
	if n.e.cfg.DPSize > 1 {
		return fmt.Sprintf("%s_dp%d", n.e.cfg.EngineID, rank)
	}
	return n.e.cfg.EngineID
}

func (n *nixl) params(j *job, h *handoff) json.RawMessage {
	ids := make([]int, 0, len(h.blocks))
	for _, b := range h.blocks {
		ids = append(ids, b.id)
	}
	var raw []byte
	if j.c.form("old_kv") != nil {
		raw = encode(oldNixlParams{true, false, ids, h.engine, n.host, n.port, 1})
	} else {
		raw = encode(nixlParams{
			true, false, [][]int{ids}, h.engine, h.id, n.host, n.port, 1, h.tokens, nil, "pull",
		})
	}
	if j.c.form("extra_kv") != nil {
		raw = append(bytes.TrimSuffix(raw, []byte("}")), ","+extraParams+"}"...)
	}
	if f := j.c.form("big_kv"); f != nil {
		pad := max(0, cmp.Or(f.Bytes, 64<<10)-len(raw)-len(`,"padding":""`))
		raw = append(bytes.TrimSuffix(raw, []byte("}")), `,"padding":"`+strings.Repeat("x", pad)+`"}`...)
	}
	return raw
}

// forgetLocked bounds the table: hand-offs that are over go first come first.
func (n *nixl) forgetLocked() {
	for i := 0; len(n.order) > keptHandoffs && i < len(n.order); {
		if h := n.byID[n.order[i]]; h.state == handPinned {
			i++
			continue
		}
		delete(n.byID, n.order[i])
		n.order = slices.Delete(n.order, i, i+1)
	}
}

// endLocked unpins h.
func (n *nixl) endLocked(h *handoff, state string) {
	h.state = state
	h.timer.Stop()
	n.e.cache.release(h.blocks)
	h.blocks = nil
	switch state {
	case handCollected:
		n.e.count.collected++
	case handFreed:
		n.e.count.freed++
	case handExpired:
		n.e.count.expired++
	}
	n.e.dispatchLocked()
}

func (n *nixl) expire(h *handoff) {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	n.lapseLocked(h)
}

// lapseLocked ends h if its time is over.
func (n *nixl) lapseLocked(h *handoff) {
	if h.state == handPinned && !time.Now().Before(h.expires) {
		n.endLocked(h, handExpired)
	}
}

func (n *nixl) statsLocked(s *Stats) {
	for _, h := range n.byID {
		n.lapseLocked(h)
		s.PinnedBlocks += len(h.blocks)
		if h.state == handPinned {
			s.PinnedHandoffs++
		}
	}
}

func (n *nixl) closeLocked() {
	for _, h := range n.byID {
		h.timer.Stop()
	}
}

// collect is what one engine asks another about a hand-off.
type collect struct {
	EngineID  string          `json:"engine_id"`
	RequestID string          `json:"request_id"`
	Params    json.RawMessage `json:"params"` // as they reached the decode engine
}

// collected is the answer.
type collected struct {
	OK     bool    `json:"ok"`
	Reason string  `json:"reason,omitempty"` // why not
	Late   float64 `json:"late,omitempty"`   // seconds after the validity
	Tokens int     `json:"tokens,omitempty"`
	Sum    string  `json:"sum,omitempty"`
	Diff   string  `json:"diff,omitempty"` // how Params differ from what was given
}

// serve implements connector.
func (n *nixl) serve(what string, body []byte) any {
	var q collect
	if err := json.Unmarshal(body, &q); err != nil {
		return collected{Reason: err.Error()}
	}
	e := n.e
	e.mu.Lock()
	defer e.mu.Unlock()
	h, reason := n.findLocked(q)
	if h == nil {
		return collected{Reason: reason}
	}
	a := collected{Tokens: h.tokens, Sum: h.sum, Diff: differ(h.params, q.Params)}
	n.lapseLocked(h)
	if h.state != handPinned {
		a.Reason = "the hand-off is " + h.state
		if h.state == handExpired {
			a.Late = time.Since(h.expires).Seconds()
		}
		return a
	}
	a.OK = true
	switch what {
	case "collect":
		n.endLocked(h, handCollected)
	case "free":
		n.endLocked(h, handFreed)
	case "heartbeat":
		if t := time.Now().Add(e.cfg.Validity * 2 / 3); t.After(h.expires) {
			h.expires = t
			h.timer.Reset(time.Until(t))
		}
	default:
		return collected{Reason: "unknown call"}
	}
	return a
}

// findLocked returns the hand-off that q means. Older parameters name it by its
// blocks only.
func (n *nixl) findLocked(q collect) (h *handoff, reason string) {
	base, _, _ := strings.Cut(q.EngineID, "_dp")
	if own, _, _ := strings.Cut(n.e.cfg.EngineID, "_dp"); base != own {
		return nil, fmt.Sprintf("engine %q is not here", clip(q.EngineID))
	}
	if q.RequestID != "" {
		h = n.byID[q.RequestID]
	} else {
		var old oldNixlParams
		if json.Unmarshal(q.Params, &old) == nil && len(old.BlockIDs) > 0 {
			h = n.byBlockLocked(old.BlockIDs)
		}
	}
	if h == nil {
		return nil, fmt.Sprintf("hand-off %q is unknown", clip(q.RequestID))
	}
	return h, ""
}

// byBlockLocked returns the newest hand-off whose parameters have these blocks.
func (n *nixl) byBlockLocked(ids []int) *handoff {
	for _, id := range slices.Backward(n.order) {
		h := n.byID[id]
		var p oldNixlParams
		if json.Unmarshal(h.params, &p) == nil && slices.Equal(p.BlockIDs, ids) {
			return h
		}
	}
	return nil
}
