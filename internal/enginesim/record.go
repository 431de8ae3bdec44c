package enginesim

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"time"
)

// Values of [Record.Outcome].
const (
	OutcomeSuccess = "success" // answered whole, status below 400
	OutcomeError   = "error"   // answered with an error
	OutcomeAbort   = "abort"   // the client left, or the engine was closed
	OutcomeFault   = "fault"   // the connection was ended by a Fault
)

// Values of [Record.Leg].
const (
	LegPrefill = "prefill"
	LegDecode  = "decode"
	LegPlain   = "plain"
)

// Bounds of the log.
const (
	keptRecords = 1024
	keptGets    = 256
	keptBodies  = 64
	keptBody    = 64 << 10
)

// Record is what the engine keeps of one request.
type Record struct {
	// Number counts the requests of the engine, from 1.
	Number int `json:"number"`
	// Method, Path and Query are of the request line.
	Method string `json:"method"`
	Path   string `json:"path"`
	Query  string `json:"query,omitempty"`
	// Proto is the protocol version, such as HTTP/1.1.
	Proto string `json:"proto"`
	// Host is the Host header.
	Host string `json:"host"`
	// Remote is the client's address; it tells connections apart.
	Remote string `json:"remote"`
	// Header is a copy of the request's header, Host excepted.
	Header http.Header `json:"header"`
	// Body is the request's body: of the last 64 requests that have one, and up
	// to 64 KiB each.
	Body string `json:"body,omitempty"`
	// BodyLen is the length of the whole body in bytes.
	BodyLen int `json:"body_len"`
	// BodySHA256 is the hash of the whole body, in hex.
	BodySHA256 string `json:"body_sha256,omitempty"`
	// Leg is LegPrefill, LegDecode or LegPlain; "" for a path that generates nothing.
	Leg string `json:"leg,omitempty"`
	// Model is the model of the request as sent.
	Model string `json:"model,omitempty"`
	// Faults are the actions of the faults that the request has met or will meet.
	Faults []string `json:"faults,omitempty"`
	// Arrival is when the header was read, FirstByte when the first byte of the
	// answer's body was sent, End when the exchange was over. The last two are
	// zero before.
	Arrival   time.Time `json:"arrival"`
	FirstByte time.Time `json:"first_byte,omitzero"`
	End       time.Time `json:"end,omitzero"`
	// Status is the status of the answer, 0 before.
	Status int `json:"status"`
	// Events is the number of events sent, if the answer was a stream.
	Events int `json:"events,omitempty"`
	// Outcome is one of the Outcome constants, "" before the end.
	Outcome string `json:"outcome,omitempty"`
	// Cached is the number of prompt tokens that needed no computing.
	Cached int `json:"cached,omitempty"`
	// Generated is the number of tokens generated.
	Generated int `json:"generated,omitempty"`
}

// ring keeps the newest records.
type ring struct {
	list []*Record
	size int
}

func (g *ring) add(r *Record) {
	if len(g.list) >= g.size {
		g.list = append(g.list[:0], g.list[len(g.list)-g.size+g.size/4:]...)
	}
	g.list = append(g.list, r)
}

// Requests returns the log, oldest first: about the last thousand requests, and
// the last 250 GETs. Requests under /sim/ are not in it.
func (e *Engine) Requests() []Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []Record
	for _, r := range slices.Concat(e.posts.list, e.gets.list) {
		c := *r
		c.Faults = slices.Clone(r.Faults)
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Record) int { return a.Number - b.Number })
	return out
}

// openRecord begins the record of c.
func (e *Engine) openRecord(c *call) {
	r := c.r
	c.rec = &Record{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Proto: r.Proto,
		Host: r.Host, Remote: r.RemoteAddr, Header: r.Header.Clone(), Arrival: time.Now(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arrived++
	c.rec.Number = e.arrived
	e.byPath[pathLabel(r.URL.Path)]++
	if r.Method == http.MethodGet {
		e.gets.add(c.rec)
	} else {
		e.posts.add(c.rec)
	}
}

// recordBody keeps the body of c.
func (e *Engine) recordBody(c *call) {
	sum := sha256.Sum256(c.body)
	kept := string(c.body[:min(len(c.body), keptBody)])
	e.mu.Lock()
	defer e.mu.Unlock()
	c.rec.BodyLen = len(c.body)
	if len(c.body) == 0 {
		return
	}
	c.rec.BodySHA256 = hex.EncodeToString(sum[:])
	c.rec.Body = kept
	e.bodies = append(e.bodies, c.rec)
	if len(e.bodies) > keptBodies {
		e.bodies[0].Body = ""
		e.bodies = append(e.bodies[:0], e.bodies[1:]...)
	}
}

// note changes the record of c.
func (c *call) note(change func(*Record)) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	change(c.rec)
}
