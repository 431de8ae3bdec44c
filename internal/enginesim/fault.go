package enginesim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is a scripted failure. It applies to the requests that fit all of Path,
// Leg and RequestID, counted by Nth, Every and Times. Of several faults with the
// same Point the first that fits is taken; faults with different points, and the
// actions that only change the answer's form, act together.
//
//nolint:recvcheck // reading JSON needs a pointer, writing it a value
type Fault struct {
	// Path is the exact path; "" is any path that generates, "*" any path of vLLM.
	// "/sim/kv/collect" (with p2p "/sim/kv/put", with moriio "/sim/kv/read" or
	// "/sim/kv/blocks"), at accept, makes the transfer of a hand-off slow or fail.
	Path string `json:"path,omitempty"`
	// Leg is "prefill", "decode" or "plain"; "" is any.
	Leg string `json:"leg,omitempty"`
	// RequestID is a part of the X-Request-Id header; "" is any.
	RequestID string `json:"request_id,omitempty"`
	// Nth is the first request that fits and is failed, from 1; 0 is 1.
	Nth int `json:"nth,omitempty"`
	// Every fails, from Nth on, one request in so many; 0 is 1.
	Every int `json:"every,omitempty"`
	// Times is how many requests fail in all; 0 is no limit.
	Times int `json:"times,omitempty"`

	// Point is where the request is met:
	//
	//	connect  its header is read, its body is not (Leg must be "")
	//	accept   its body is read, it is not validated (default)
	//	headers  the answer's header is about to be sent: of a stream before
	//	         anything is computed, else after all is
	//	first    the header is out, the first event or byte is not
	//	chunk:N  N events (of a plain answer: N bytes) are out
	Point string `json:"point,omitempty"`
	// Action is what happens there:
	//
	//	status       answer with Status, Header and Body (not after headers)
	//	raw          write Body to the connection as it is, then close it
	//	hang         stay until the client leaves
	//	gate         stay until Open(Gate)
	//	delay        stay for Delay
	//	reset        close the connection, with a TCP reset where there is TCP
	//	cut          close the connection, the answer being incomplete
	//	error_event  an engine failure: in a stream an error event and [DONE], else 500
	//	abort        the answer ends with finish_reason "abort"
	//	error_finish the answer ends with finish_reason "error"
	//
	// and, whatever the Point,
	//
	//	no_kv        no kv_transfer_params in the answer, nothing pinned
	//	null_kv      kv_transfer_params null, nothing pinned
	//	old_kv       the fewer fields of older engines
	//	extra_kv     more fields, among them an integer above 2^53
	//	big_kv       fields of Bytes bytes in all
	//	refuse_kv    of /sim/kv/put: no memory for the tensors of a prefill engine
	//	eos          the answer ends by itself at its first token, if not for ignore_eos
	//	gzip         encode the answer, if Accept-Encoding allows or Force is set
	//	bytes        write the body byte by byte
	//	crlf         end the lines of a stream with CR LF
	Action string `json:"action"`

	// Status is the code of "status", default 503.
	Status int `json:"status,omitempty"`
	// Header is added to the answer of "status".
	Header map[string]string `json:"header,omitempty"`
	// Body is the answer of "status" and "raw". For "status" the default is an
	// error object.
	Body string `json:"body,omitempty"`
	// Gate names the gate of "gate".
	Gate string `json:"gate,omitempty"`
	// Delay is the time of "delay"; in JSON a text such as "150ms".
	Delay time.Duration `json:"-"`
	// MidEvent makes "cut" and "reset" send half of what comes next.
	MidEvent bool `json:"mid_event,omitempty"`
	// Bytes is the size of "big_kv", default 64 KiB.
	Bytes int `json:"bytes,omitempty"`
	// Force makes "gzip" ignore Accept-Encoding.
	Force bool `json:"force,omitempty"`
}

type plainFault Fault

// MarshalJSON writes Delay as a text.
func (f Fault) MarshalJSON() ([]byte, error) {
	v := struct {
		plainFault
		Delay string `json:"delay,omitempty"`
	}{plainFault: plainFault(f)}
	if f.Delay != 0 {
		v.Delay = f.Delay.String()
	}
	return json.Marshal(v)
}

// UnmarshalJSON reads Delay as a text.
func (f *Fault) UnmarshalJSON(b []byte) error {
	v := struct {
		*plainFault
		Delay string `json:"delay"`
	}{plainFault: (*plainFault)(f)}
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if v.Delay == "" {
		return nil
	}
	d, err := time.ParseDuration(v.Delay)
	f.Delay = d
	return err
}

// Points as numbers: chunk:N is N, the others come before.
const (
	pointConnect = -3
	pointAccept  = -2
	pointHeaders = -1
	pointFirst   = 0
)

func (f *Fault) at() (int, error) {
	switch f.Point {
	case "connect":
		return pointConnect, nil
	case "accept", "":
		return pointAccept, nil
	case "headers":
		return pointHeaders, nil
	case "first":
		return pointFirst, nil
	}
	if s, ok := strings.CutPrefix(f.Point, "chunk:"); ok {
		if n, err := strconv.Atoi(s); err == nil && n >= 0 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("point %q is unknown", f.Point)
}

var (
	stopActions = []string{
		"status", "raw", "hang", "gate", "delay", "reset", "cut",
		"error_event", "abort", "error_finish",
	}
	formActions = []string{
		"no_kv", "null_kv", "old_kv", "extra_kv", "big_kv", "refuse_kv", "eos", "gzip", "bytes", "crlf",
	}
)

func (f *Fault) check() error {
	at, err := f.at()
	switch {
	case err != nil:
		return err
	case slices.Contains(formActions, f.Action):
		return nil
	case !slices.Contains(stopActions, f.Action):
		return fmt.Errorf("action %q is unknown", f.Action)
	case (f.Action == "status" || f.Action == "raw") && at > pointHeaders:
		return fmt.Errorf("action %q comes too late at %q", f.Action, f.Point)
	case f.Action == "gate" && f.Gate == "":
		return errors.New("the gate has no name")
	case at == pointConnect && f.Leg != "":
		return errors.New("at connect the leg is not known yet")
	}
	return nil
}

// fault is a Fault in force.
type fault struct {
	Fault
	id    int
	point int
	form  bool
	seen  int
	hit   int
}

// boundFault is a fault that a request has taken.
type boundFault struct {
	*fault
	fired bool
}

// takes counts a request that fits and tells whether it is failed.
func (f *fault) takes() bool {
	f.seen++
	n := f.seen - max(f.Nth, 1)
	if n < 0 || n%max(f.Every, 1) != 0 || (f.Times > 0 && f.hit >= f.Times) {
		return false
	}
	f.hit++
	return true
}

// Fault sets a failure and returns the function that removes it. It panics if f
// makes no sense.
func (e *Engine) Fault(f Fault) (remove func()) {
	id, err := e.addFault(f)
	if err != nil {
		panic("enginesim: bad fault: " + err.Error())
	}
	return func() { e.removeFault(id) }
}

func (e *Engine) addFault(f Fault) (int, error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	at, _ := f.at() // checked above
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faultID++
	e.faults = append(e.faults, &fault{
		Fault: f, id: e.faultID, point: at, form: slices.Contains(formActions, f.Action),
	})
	return e.faultID, nil
}

func (e *Engine) removeFault(id int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.faults)
	e.faults = slices.DeleteFunc(e.faults, func(f *fault) bool { return f.id == id })
	return len(e.faults) < n
}

// bindFaults gives c the faults that fit it: those at connect, or the later ones.
func (e *Engine) bindFaults(c *call, connect bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.faults {
		if (f.point == pointConnect) != connect || !f.fits(c) || c.hasFault(f) {
			continue
		}
		if f.takes() {
			c.faults = append(c.faults, &boundFault{fault: f})
			c.rec.Faults = append(c.rec.Faults, f.Action)
		}
	}
}

func (f *fault) fits(c *call) bool {
	switch f.Path {
	case "*":
		if strings.HasPrefix(c.r.URL.Path, "/sim/") {
			return false
		}
	case "":
		if !c.generates {
			return false
		}
	default:
		if f.Path != c.r.URL.Path {
			return false
		}
	}
	return (f.Leg == "" || f.Leg == c.rec.Leg) &&
		strings.Contains(c.r.Header.Get("X-Request-Id"), f.RequestID)
}

// hasFault tells whether c has a fault in whose place f would act.
func (c *call) hasFault(f *fault) bool {
	return slices.ContainsFunc(c.faults, func(g *boundFault) bool {
		if f.form || g.form {
			return f.Action == g.Action
		}
		return f.point == g.point
	})
}
