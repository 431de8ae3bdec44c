package policy

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// sessions remembers sessions for as long as they are used, up to a number; the
// one idle for longest goes first. It keeps hashes of names and no names.
type sessions struct {
	ttl time.Duration
	max int

	mu     sync.Mutex // guards what follows; not taken under pool.mu
	byName map[sessionName]*session
	models map[uint64]int // sessions by model
	oldest *session       // ends of the list by last use
	newest *session
}

// sessionName is the hash of a session's model and id.
type sessionName struct{ model, id uint64 }

// session is one session. Its home is set by choices, under pool.mu, and taken
// away by whoever forgets or gives up.
type session struct {
	home atomic.Pointer[home] // nil: none yet
	uses atomic.Uint64        // choices made

	// Guarded by sessions.mu.
	name         sessionName
	last         time.Time
	older, newer *session
}

// forgotten is the home of a session that is remembered no more.
var forgotten = new(home)

var sessionSeed = maphash.MakeSeed()

func newSessions(ttl time.Duration, most int) sessions {
	return sessions{ttl: ttl, max: most, byName: make(map[sessionName]*session), models: make(map[uint64]int)}
}

func nameOf(model, id string) sessionName {
	return sessionName{maphash.String(sessionSeed, model), maphash.String(sessionSeed, id)}
}

// use returns the session, made if it is not known, and forgets those that have
// been idle for too long.
func (t *sessions) use(model, id string) *session {
	name, now := nameOf(model, id), time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.oldest != nil && now.Sub(t.oldest.last) >= t.ttl {
		t.forgetLocked(t.oldest)
	}
	s := t.byName[name]
	if s == nil {
		if len(t.byName) >= t.max {
			t.forgetLocked(t.oldest)
		}
		s = &session{name: name}
		t.byName[name] = s
		t.models[name.model]++
	} else {
		t.unlinkLocked(s)
	}
	s.last = now
	s.older, s.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = s
	} else {
		t.oldest = s
	}
	t.newest = s
	return s
}

func (t *sessions) finish(id string) {
	name := nameOf("", id)
	t.mu.Lock()
	defer t.mu.Unlock()
	for model := range t.models {
		name.model = model
		if s := t.byName[name]; s != nil {
			t.forgetLocked(s)
		}
	}
}

func (t *sessions) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byName)
}

func (t *sessions) forgetLocked(s *session) {
	t.unlinkLocked(s)
	delete(t.byName, s.name)
	if t.models[s.name.model]--; t.models[s.name.model] == 0 {
		delete(t.models, s.name.model)
	}
	if h := s.home.Swap(forgotten); h != nil {
		h.count.Add(-1)
	}
}

func (t *sessions) unlinkLocked(s *session) {
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		t.oldest = s.newer
	}
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		t.newest = s.older
	}
}
