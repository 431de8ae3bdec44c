package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// The patterns by which a MoRI-IO engine finds the other side in a request id,
// which is inside its own: cmpl-ID-0-1a2b3c4d.
var (
	moriPrefill = regexp.MustCompile(`___prefill_addr_(.+?)___decode_addr_`)
	moriDecode  = regexp.MustCompile(`___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$`)
	moriUnique  = regexp.MustCompile(`_([0-9a-f]{32})(?:-.*)?$`)
)

// moriio is vLLM's MoRIIOConnector. The request id names both engines, as p2p's
// does, and a transfer id names the hand-off. In read mode decode comes after
// prefill, with prefill's parameters, and reads its blocks; in write mode both legs
// come at once and prefill writes when decode has told it where to. Its fields are
// guarded by Engine.mu.
type moriio struct {
	handoffs
	own     composite
	waiting map[string]*waiter // decode legs, in write mode, by key
	legs    map[string]string  // keys of prefill legs, by the unique part of their id
	order   []string
}

func newMoriio(e *Engine) (*moriio, error) {
	own, ok := parseComposite(e.cfg.ZMQAddress)
	if !ok {
		return nil, fmt.Errorf("%q is no ZMQ address of a moriio engine", e.cfg.ZMQAddress)
	}
	e.cfg.EngineID = fmt.Sprintf("%s:%d", own.host, own.handshake)
	return &moriio{
		handoffs: newHandoffs(e), own: own, waiting: map[string]*waiter{}, legs: map[string]string{},
	}, nil
}

func (m *moriio) reads() bool { return m.e.cfg.TransferMode == TransferRead }

func (m *moriio) sizes() sizes { return sizes{DP: m.e.cfg.DPSize, TP: m.e.cfg.TPSize} }

// moriParams are the hand-off parameters in the order vLLM gives them.
type moriParams struct {
	DoRemotePrefill bool   `json:"do_remote_prefill"`
	DoRemoteDecode  bool   `json:"do_remote_decode"`
	BlockIDs        []int  `json:"remote_block_ids"`
	EngineID        string `json:"remote_engine_id"`
	Host            string `json:"remote_host"`
	HandshakePort   int    `json:"remote_handshake_port"`
	NotifyPort      int    `json:"remote_notify_port"`
	DPRank          int    `json:"remote_dp_rank"`
	DPRankOverride  bool   `json:"remote_dp_rank_override"`
	DPSize          int    `json:"remote_dp_size"`
	DPSizeLocal     int    `json:"remote_dp_size_local"`
	TPSize          int    `json:"tp_size"`
	TransferID      string `json:"transfer_id"`
}

// moriLeg is what a leg says of its hand-off.
type moriLeg struct {
	other    composite // the other engine
	unique   string    // the last part of the request id
	transfer string
	told     sizes // of the other engine
	rank     int   // of prefill
}

// moriMembers are the parameters that a router may send; all but the first seven are
// optional.
var moriMembers = []string{
	"do_remote_decode", "do_remote_prefill", "remote_engine_id", "remote_block_ids", "transfer_id",
	"remote_dp_size", "remote_tp_size", "remote_dp_rank", "remote_dp_rank_override", "is_request_leader",
	"remote_hosts", "remote_dp_size_local", "tp_size", "remote_host", "remote_handshake_port", "remote_notify_port",
}

// inspect reads the parameters of a leg that a router makes up: prefill, and decode
// in write mode.
func (m *moriio) inspect(j *job) (*moriLeg, error) {
	for _, name := range moriMembers[:7] {
		if _, ok := j.kv[name]; !ok {
			j.c.violate("the %s leg's kv_transfer_params lack %s", j.leg(), name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.kv)) {
		if !slices.Contains(moriMembers, name) {
			j.c.violate("the %s leg's kv_transfer_params have %s, which the connector does not know", j.leg(), clip(name))
		}
	}
	for _, name := range []string{"remote_engine_id", "remote_block_ids"} {
		if !isNull(j.kv[name]) {
			j.c.violate("the %s leg has a %s that is not null", j.leg(), name)
		}
	}
	l := &moriLeg{told: sizes{DP: 1, TP: m.e.cfg.TPSize}}
	if n, ok := lenientInt(j.kv["remote_dp_size"]); ok {
		l.told.DP = n
	}
	for _, name := range []string{"tp_size", "remote_tp_size"} { // the latter wins
		if n, ok := lenientInt(j.kv[name]); ok {
			l.told.TP = n
		}
	}
	l.transfer = m.transferID(j)
	if m.e.seenBefore(j.leg() + " transfer " + l.transfer) {
		j.c.violate("a second %s leg with the transfer_id %s", j.leg(), clip(l.transfer))
	}
	m.checkRank(j, l)
	return l, m.checkID(j, l)
}

// transferID reads the name of the hand-off. Without one the engine makes one up that
// the other engine cannot guess.
func (*moriio) transferID(j *job) string {
	id, _ := asText(j.kv["transfer_id"])
	switch {
	case id == "":
		j.c.violate("the %s leg has no transfer_id", j.leg())
		return "sidecar-" + j.engine
	case !strings.HasPrefix(id, "tx"):
		j.c.violate("the transfer_id %s does not begin with tx", clip(id))
	}
	return id
}

// checkRank finds the prefill rank: where this leg runs, or which one it names.
func (m *moriio) checkRank(j *job, l *moriLeg) {
	if j.leg() == LegPrefill {
		l.rank = j.rank
		if _, ok := pinned(j.c.r.Header); m.e.cfg.DPSize > 1 && !ok {
			j.c.violate("the prefill leg is not pinned to one of %d ranks", m.e.cfg.DPSize)
		}
		return
	}
	n, ok := lenientInt(j.kv["remote_dp_rank"])
	if l.rank = n; !ok && l.told.DP > 1 {
		j.c.violate("the decode leg does not name one of %d prefill ranks: it waits for rank 0", l.told.DP)
	}
}

// checkID reads the addresses in the request id, and dies if the one that the engine
// looks for is neither there nor in the parameters.
func (m *moriio) checkID(j *job, l *moriLeg) error {
	find := func(re *regexp.Regexp) string {
		if found := re.FindStringSubmatch(j.engine); found != nil {
			return found[1]
		}
		return ""
	}
	own, other := find(moriPrefill), find(moriDecode)
	if j.leg() == LegDecode {
		own, other = other, own
	}
	l.unique = find(moriUnique)
	if own != m.e.cfg.ZMQAddress {
		j.c.violate("the request id names the %s engine %q, this is %q", j.leg(), clip(own), m.e.cfg.ZMQAddress)
	}
	var ok bool
	if l.other, ok = parseComposite(other); ok {
		return nil
	}
	j.c.violate("the request id %q does not name the other engine", clip(j.engine))
	if l.other, ok = peerParams(j.kv); ok && other == "" {
		return nil
	}
	j.c.violate("no address of the other engine at all: the engine dies")
	m.e.die()
	return errDead
}

// peerParams reads the address of the other engine in hand-off parameters.
func peerParams(kv object) (c composite, ok bool) {
	c.host, ok = asText(kv["remote_host"])
	handshake, okH := lenientInt(kv["remote_handshake_port"])
	notify, okN := lenientInt(kv["remote_notify_port"])
	c.handshake, c.notify = handshake, notify
	return c, ok && okH && okN
}

// computed implements connector.
func (m *moriio) computed(j *job) error {
	l, err := m.inspect(j)
	if err != nil {
		return err
	}
	j.mori = l
	if !m.reads() {
		m.expect(j, l)
	}
	return nil
}

// give implements connector. A leg that did not end by length gives nothing.
func (m *moriio) give(j *job) (json.RawMessage, error) {
	l := j.mori
	if j.seqs[0].finish != finishLength {
		return nil, nil
	}
	h := newHandoff(l.transfer, j)
	validity := m.e.cfg.Validity
	if !m.reads() {
		h.id, validity = l.key(), m.e.cfg.DeferTimeout
	}
	h.engine, h.unique, h.told = m.e.cfg.EngineID, l.unique, l.told
	m.e.mu.Lock()
	m.pinLocked(h, j, validity)
	h.params = j.padded(encode(moriParams{
		true, false, h.blockIDs(), h.engine, m.own.host, m.own.handshake, m.own.notify,
		j.rank, true, m.e.cfg.DPSize, m.e.cfg.DPSize, m.e.cfg.TPSize, l.transfer,
	}))
	if !m.reads() {
		m.writeLocked(h)
	}
	m.e.mu.Unlock()
	if m.reads() || !m.e.cfg.WriteWaits {
		return h.params, nil
	}
	return h.params, m.written(j, h)
}

// load implements connector.
func (m *moriio) load(j *job) (int, error) {
	if m.reads() {
		return m.read(j)
	}
	return m.await(j)
}

// moriCall is what a decode engine asks a prefill engine.
type moriCall struct {
	Transfer string          `json:"transfer_id"`
	Unique   string          `json:"unique"`
	EngineID string          `json:"engine_id,omitempty"`
	Rank     int             `json:"rank"`
	Params   json.RawMessage `json:"params,omitempty"` // as they reached the decode engine
	Decode   sizes           `json:"decode"`           // of the engine that asks
	Told     sizes           `json:"told"`             // what its leg says of the prefill engine
}

// call asks the prefill engine until it answers, at most TransferTimeout.
func (m *moriio) call(j *job, to composite, what string, q moriCall) (collected, error) {
	ctx, cancel := j.c.within(m.e.cfg.TransferTimeout)
	defer cancel()
	for {
		a, err := m.e.callPeer(ctx, m.e.cfg.PeerHTTP(to.String()), what, q)
		if err == nil || ctx.Err() != nil {
			return a, err
		}
		retry, stop := context.WithTimeout(ctx, peerRetry)
		gone := j.c.wait(retry.Done())
		stop()
		if gone != nil || ctx.Err() != nil {
			return a, err
		}
	}
}

// serve implements connector.
func (m *moriio) serve(c *call, what string, body []byte) (any, error) {
	var q moriCall
	if !readCall(body, &q) {
		return unknownCall, nil
	}
	switch what {
	case "read":
		return m.collect(q), nil
	case "blocks":
		return m.blocks(c, q)
	default:
		return unknownCall, nil
	}
}

// notes compares what the legs of a hand-off were told with how things are.
func (m *moriio) notes(h *handoff, q moriCall) (notes []string) {
	if h.told != q.Decode {
		notes = append(notes, fmt.Sprintf("prefill was told remote_dp_size %d and remote_tp_size %d, decode has %d and %d",
			h.told.DP, h.told.TP, q.Decode.DP, q.Decode.TP))
	}
	if own := m.sizes(); q.Told != own {
		notes = append(notes, fmt.Sprintf("decode was told remote_dp_size %d and remote_tp_size %d, prefill has %d and %d",
			q.Told.DP, q.Told.TP, own.DP, own.TP))
	}
	if h.unique != q.Unique {
		notes = append(notes, fmt.Sprintf("the request ids of the legs end differently: %q and %q", h.unique, clip(q.Unique)))
	}
	return notes
}
