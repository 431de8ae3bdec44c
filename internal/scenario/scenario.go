// Package scenario is test support for scripted lifecycles: it runs requests
// as real goroutines, parks them at named points of the code under test, and
// tells when all of them have finished, are parked or wait for a lock.
// The runners that give scripts their commands live with the packages they test.
//
// A Stage is used from the one goroutine that runs the script; Reach is called
// by the goroutines it started.
package scenario

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Stage holds the requests of one script.
type Stage struct {
	mu     sync.Mutex // guards what follows; never held while parked
	actors map[string]*actor
	byGo   map[uint64]*actor
	parks  map[park]bool
	log    []string
	notes  map[string]string // result of an actor that has finished since the last Take
}

type park struct{ actor, point string }

type actor struct {
	name   string
	done   bool
	at     string // point it is parked at, "" if it is not
	resume chan struct{}
	goid   uint64
}

// New returns an empty stage.
func New() *Stage {
	return &Stage{
		actors: make(map[string]*actor),
		byGo:   make(map[uint64]*actor),
		parks:  make(map[park]bool),
		notes:  make(map[string]string),
	}
}

// Go runs f as the actor name and settles. What f returns is reported by the
// next Take after it has finished.
func (s *Stage) Go(name string, f func() string) {
	a := &actor{name: name, resume: make(chan struct{})}
	s.mu.Lock()
	if old := s.actors[name]; old != nil && !old.done {
		s.mu.Unlock()
		panic("actor " + name + " is still running")
	}
	s.actors[name] = a
	s.mu.Unlock()
	started := make(chan struct{})
	go func() {
		id := goid()
		s.mu.Lock()
		a.goid = id
		s.byGo[id] = a
		s.mu.Unlock()
		close(started)
		result := f()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.byGo, id)
		a.done = true
		s.notes[name] = result
	}()
	<-started
}

// Log appends a line to what the next Take returns.
func (s *Stage) Log(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// Park makes the actor stop when it next reaches the point. The actor need not
// exist yet, or at all: code that nobody started with Go can be parked through
// ReachAs, and is not waited for.
func (s *Stage) Park(name, point string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.actors[name] == nil {
		s.actors[name] = &actor{name: name, done: true, resume: make(chan struct{})}
	}
	s.parks[park{name, point}] = true
}

// Reach says that the calling goroutine is at a point. If it belongs to an
// actor that is to be parked there, it waits to be resumed.
func (s *Stage) Reach(point string) {
	s.mu.Lock()
	a := s.byGo[goid()]
	s.mu.Unlock()
	if a != nil {
		s.ReachAs(a.name, point)
	}
}

// ReachAs is Reach for a goroutine that works on behalf of an actor without
// being it.
func (s *Stage) ReachAs(name, point string) {
	s.mu.Lock()
	a := s.actors[name]
	key := park{name, point}
	if a == nil || !s.parks[key] {
		s.mu.Unlock()
		return
	}
	delete(s.parks, key)
	a.at = point
	s.mu.Unlock()
	<-a.resume
	s.mu.Lock()
	a.at = ""
	s.mu.Unlock()
}

// Resume lets a parked actor go on. It reports whether the actor was parked.
func (s *Stage) Resume(name string) bool {
	s.mu.Lock()
	a := s.actors[name]
	parked := a != nil && a.at != ""
	if parked {
		// Seen as running from here on, so that Settle waits for it.
		a.at = ""
	}
	s.mu.Unlock()
	if parked {
		a.resume <- struct{}{}
	}
	return parked
}

// Settle waits until every actor has finished, is parked or waits for a mutex
// that a parked one holds.
func (s *Stage) Settle() {
	for {
		if s.settled() {
			return
		}
		runtime.Gosched()
	}
}

func (s *Stage) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var locks map[uint64]bool
	for _, a := range s.actors {
		if a.done || a.at != "" {
			continue
		}
		if !s.anyParked() {
			return false // nobody can hold a lock for long
		}
		if locks == nil {
			locks = lockWaiters()
		}
		if !locks[a.goid] {
			return false
		}
	}
	return true
}

func (s *Stage) anyParked() bool {
	for _, a := range s.actors {
		if a.at != "" {
			return true
		}
	}
	return false
}

// Take returns what was logged and which actors finished since the last call,
// and where the others are.
func (s *Stage) Take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.log
	s.log = nil
	for _, name := range slices.Sorted(maps.Keys(s.notes)) {
		if note := s.notes[name]; note != "" {
			out = append(out, name+": "+note)
		}
		delete(s.notes, name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.actors)) {
		switch a := s.actors[name]; {
		case a.at != "":
			out = append(out, name+": parked at "+a.at)
		case a.done:
		default:
			out = append(out, name+": waits")
		}
	}
	return out
}

// Idle reports whether every actor has finished.
func (s *Stage) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.actors {
		if !a.done {
			return false
		}
	}
	return true
}

// goid returns the number of the calling goroutine, as stack traces print it.
func goid() uint64 {
	var buf [64]byte
	n := runtime.Stack(buf[:], false)
	id, _ := parseHeader(string(buf[:n]))
	return id
}

// lockWaiters returns the goroutines that wait for a mutex, other than the
// stage's own, which Settle itself holds for a moment.
func lockWaiters() map[uint64]bool {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	waiting := make(map[uint64]bool)
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if id, state := parseHeader(string(stack)); strings.HasPrefix(state, "sync.Mutex.Lock") && !ours(string(stack)) {
			waiting[id] = true
		}
	}
	return waiting
}

// ours reports whether the first function of a stack that is not of the mutex is
// one of this package.
func ours(stack string) bool {
	for line := range strings.Lines(stack) {
		switch {
		case strings.HasPrefix(line, "goroutine "), strings.HasPrefix(line, "\t"),
			strings.HasPrefix(line, "sync."), strings.HasPrefix(line, "internal/sync."):
		default:
			return strings.Contains(line, "/internal/scenario.")
		}
	}
	return false
}

// parseHeader reads "goroutine 7 [sync.Mutex.Lock, 2 minutes]:".
func parseHeader(stack string) (id uint64, state string) {
	rest, _ := strings.CutPrefix(stack, "goroutine ")
	number, rest, _ := strings.Cut(rest, " ")
	id, _ = strconv.ParseUint(number, 10, 64) // 0 for a header of another form: no actor has it
	_, rest, _ = strings.Cut(rest, "[")
	state, _, _ = strings.Cut(rest, "]")
	return id, state
}
