package enginesim

import (
	"fmt"
	"strings"
)

// read fetches the blocks of a decode leg in read mode, whose parameters are those
// that prefill gave. The last token of a prompt is never handed over.
func (m *moriio) read(j *job) (int, error) {
	engine, _ := asText(j.kv["remote_engine_id"])
	var missing []string
	if !truthy(j.kv["remote_block_ids"]) {
		missing = append(missing, "remote_block_ids")
	}
	if engine == "" {
		missing = append(missing, "remote_engine_id")
	}
	if len(missing) > 0 {
		j.c.violate("the decode leg's kv_transfer_params lack %s: decode recomputes", strings.Join(missing, ", "))
		return 0, nil
	}
	l := &moriLeg{transfer: m.transferID(j)}
	if err := m.checkID(j, l); err != nil {
		return 0, err
	}
	if c, ok := peerParams(j.kv); ok {
		if c != l.other {
			j.c.violate("the request id names the prefill engine %q, kv_transfer_params %q", l.other, c)
		}
		l.other = c
	}
	q := moriCall{
		Transfer: l.transfer, Unique: l.unique, EngineID: engine, Params: j.kvRaw, Decode: m.sizes(),
	}
	a, err := m.call(j, l.other, "read", q)
	if err != nil {
		return 0, err
	}
	if err := j.accept(a); err != nil {
		return 0, err
	}
	n := max(0, len(j.prompts[0].tokens)-1-j.hits(0))
	j.tail = min(n, 1)
	return n, nil
}

// collect answers a decode engine that reads.
func (m *moriio) collect(q moriCall) collected {
	m.e.mu.Lock()
	defer m.e.mu.Unlock()
	if q.EngineID != m.e.cfg.EngineID {
		return collected{Reason: fmt.Sprintf("engine %q is not here", clip(q.EngineID))}
	}
	h := m.byID[q.Transfer]
	if h == nil {
		return collected{Reason: fmt.Sprintf("hand-off %q is unknown", clip(q.Transfer))}
	}
	q.Told = m.sizes() // the parameters say it, and were compared
	a := m.checkLocked(h, q.Params)
	a.Notes = m.notes(h, q)
	if a.OK {
		m.endLocked(h, handCollected)
	}
	return a
}
