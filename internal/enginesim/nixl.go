package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// nixl is the pull mode of vLLM's NixlConnector. The reading of remote memory is
// an HTTP call between the engines. Its fields are guarded by Engine.mu.
type nixl struct {
	handoffs
	host string
	port int
}

func newNixl(e *Engine) (*nixl, error) {
	n := &nixl{handoffs: newHandoffs(e)}
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

// give implements connector.
func (n *nixl) give(j *job) (json.RawMessage, error) {
	if n.host == "" {
		return nil, nil
	}
	h := newHandoff(j.engine, j)
	h.engine = n.engineID(j.rank)
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	n.pinLocked(h, j, n.e.cfg.Validity)
	h.params = n.params(j, h)
	return h.params, nil
}

func (n *nixl) engineID(rank int) string {
	if n.e.cfg.DPSize > 1 {
		return fmt.Sprintf("%s_dp%d", n.e.cfg.EngineID, rank)
	}
	return n.e.cfg.EngineID
}

func (n *nixl) params(j *job, h *handoff) json.RawMessage {
	var raw []byte
	ids := h.blockIDs()
	if j.c.form("old_kv") != nil {
		raw = encode(oldNixlParams{true, false, ids, h.engine, n.host, n.port, n.e.cfg.TPSize})
	} else {
		raw = encode(nixlParams{
			true, false, [][]int{ids}, h.engine, h.id, n.host, n.port, n.e.cfg.TPSize, h.tokens, nil, "pull",
		})
	}
	return j.padded(raw)
}

// collect is what one engine asks another about a hand-off.
type collect struct {
	EngineID  string          `json:"engine_id"`
	RequestID string          `json:"request_id"`
	Params    json.RawMessage `json:"params"` // as they reached the decode engine
}

// serve implements connector.
func (n *nixl) serve(_ *call, what string, body []byte) (any, error) {
	var q collect
	if !readCall(body, &q) {
		return unknownCall, nil
	}
	return n.answer(what, q), nil
}

func (n *nixl) answer(what string, q collect) collected {
	e := n.e
	e.mu.Lock()
	defer e.mu.Unlock()
	h, reason := n.findLocked(q)
	if h == nil {
		return collected{Reason: reason}
	}
	a := n.checkLocked(h, q.Params)
	if !a.OK {
		return a
	}
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
