package enginesim

import (
	"strconv"
	"time"
)

// waiter is a decode leg that has told its prefill engine where to write.
type waiter struct {
	q      moriCall
	ready  chan struct{} // closed when answer is there
	answer collected
}

// key names a hand-off in write mode: decode asks one rank, at that rank's own port.
func (l *moriLeg) key() string { return moriKey(l.rank, l.transfer) }

func moriKey(rank int, transfer string) string { return strconv.Itoa(rank) + " " + transfer }

// await lets a decode leg in write mode wait for its blocks.
func (m *moriio) await(j *job) (int, error) {
	l, err := m.inspect(j)
	if err != nil {
		return 0, err
	}
	defer j.loading()()
	a, err := m.call(j, l.other, "blocks", moriCall{
		Transfer: l.transfer, Unique: l.unique, Rank: l.rank, Decode: m.sizes(), Told: l.told,
	})
	if err != nil {
		return 0, err
	}
	if err := j.accept(a); err != nil {
		return 0, err
	}
	return len(j.prompts[0].tokens) - j.hits(0), nil
}

// blocks answers a decode engine when its blocks are written.
func (m *moriio) blocks(c *call, q moriCall) (any, error) {
	key := moriKey(q.Rank, q.Transfer)
	w := &waiter{q: q, ready: make(chan struct{})}
	m.e.mu.Lock()
	m.waiting[key] = w
	leg, late := m.legs[q.Unique], time.Duration(0)
	if h := m.byID[key]; h != nil {
		m.lapseLocked(h)
		if h.state == handExpired {
			late = time.Since(h.expires)
		}
		m.writeLocked(h)
	}
	m.e.mu.Unlock()
	switch {
	case q.Rank < 0 || q.Rank >= m.e.cfg.DPSize:
		c.violate("remote_dp_rank %d: there are %d ranks, nobody listens", q.Rank, m.e.cfg.DPSize)
	case leg != "" && leg != key:
		c.violate("the legs do not meet: rank and transfer_id of prefill are %s, of decode %s", clip(leg), clip(key))
	case late > 0:
		c.violate("the decode leg comes %v after prefill has given up its blocks", late)
	}
	if err := c.wait(w.ready); err != nil {
		m.e.mu.Lock()
		if m.waiting[key] == w {
			delete(m.waiting, key)
		}
		m.e.mu.Unlock()
		return nil, err
	}
	return w.answer, nil
}

// expect comes when a prefill leg is known, before it has anything to write.
func (m *moriio) expect(j *job, l *moriLeg) {
	other := ""
	m.e.mu.Lock()
	if _, known := m.legs[l.unique]; !known {
		m.order = append(m.order, l.unique)
	}
	m.legs[l.unique] = l.key()
	if len(m.order) > keptHandoffs {
		delete(m.legs, m.order[0])
		m.order = append(m.order[:0], m.order[1:]...)
	}
	for key, w := range m.waiting {
		if w.q.Unique == l.unique && key != l.key() {
			other = key
		}
	}
	m.e.mu.Unlock()
	if other != "" {
		j.c.violate("the legs do not meet: rank and transfer_id of prefill are %s, of decode %s", clip(l.key()), clip(other))
	}
}

// writeLocked writes the blocks of h if it is there and its decode leg is.
func (m *moriio) writeLocked(h *handoff) {
	w := m.waiting[h.id]
	if w == nil || h.state != handPinned {
		return
	}
	delete(m.waiting, h.id)
	w.answer = collected{OK: true, Tokens: h.tokens, Sum: h.sum, Notes: m.notes(h, w.q)}
	close(w.ready)
	m.endLocked(h, handCollected)
}

// written waits until the blocks of h are written, or given up.
func (m *moriio) written(j *job, h *handoff) error {
	err := j.c.wait(h.over)
	if err != nil {
		m.e.mu.Lock()
		if h.state == handPinned {
			m.endLocked(h, handFreed)
		}
		m.e.mu.Unlock()
	}
	return err
}

func (m *moriio) statsLocked(s *Stats) {
	m.handoffs.statsLocked(s)
	s.DecodesWaiting = len(m.waiting)
}
