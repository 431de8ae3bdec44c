package dispatch

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/worker"
)

// Error is an error for the client: what to answer, and the cause for the log.
type Error struct {
	Status     int
	Code       string // stable word for the cause
	Message    string // for the client; names no address and nothing of the request's content
	Param      string // request field at fault
	RetryAfter string // Retry-After, "" for none
	Sent       exchange.Sent
	Err        error // cause, for the log only
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Code, e.Err)
	}
	return e.Code + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Object returns the error as clients read it.
func (e *Error) Object() *openai.Error {
	return &openai.Error{Status: e.Status, Code: e.Code, Message: e.Message, Param: e.Param}
}

// StatusClientGone is the status logged for a request whose client left. No
// client sees it.
const StatusClientGone = 499

// The causes that end a leg.
var (
	errClientGone    = errors.New("client gone")
	errFirstByte     = errors.New("no byte of the answer within the time allowed")
	errIdle          = errors.New("no further byte of the answer within the time allowed")
	errOtherLeg      = errors.New("the other leg failed")
	errDeparted      = errors.New("worker departed")
	errAnswerTooLong = errors.New("answer too long")
)

// classify maps any error of a run to what the client is told.
func (r *run) classify(err error) *Error {
	if r.gone(err) {
		return &Error{Status: StatusClientGone, Code: "client_gone", Message: "client closed the request", Err: err}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Status: http.StatusInternalServerError, Code: "internal", Message: "internal error", Err: err}
}

// legError says what the failure of a leg means to the client.
func (r *run) legError(role worker.Role, err error) *Error {
	e := &Error{Status: http.StatusBadGateway, Err: fmt.Errorf("%v leg: %w", role, err), Sent: exchange.Maybe}
	if sent, ok := errors.AsType[*exchange.Error](err); ok {
		e.Sent = sent.Sent
	}
	switch {
	case errors.Is(err, errFirstByte):
		e.Status, e.Code = http.StatusGatewayTimeout, "first_byte_timeout"
		e.Message = fmt.Sprintf("the %v worker sent no byte of an answer within %s (--request-timeout-secs)", role, r.d.cfg.FirstByteTimeout)
	case errors.Is(err, errIdle):
		e.Status, e.Code = http.StatusGatewayTimeout, "idle_timeout"
		e.Message = fmt.Sprintf("the %v worker sent nothing more for %s (--stream-idle-timeout)", role, r.d.cfg.IdleTimeout)
	case e.Sent == exchange.Nothing:
		e.Code = "connect_failed"
		e.Message = fmt.Sprintf("no connection to a %v worker could be made", role)
	case role == worker.Regular:
		e.Code, e.Message = "worker_failed", "the worker broke off the exchange"
	default:
		e.Code = role.String() + "_failed"
		e.Message = fmt.Sprintf("the %v worker broke off the exchange", role)
	}
	return e
}

// noneError says why a request cannot start: which role is missing, what was
// asked for and in which states the workers are.
func (r *run) noneError(none *worker.NoneError) *Error {
	model := r.call.Request.Model
	if model != "" && r.modelUnknown(model) {
		return &Error{
			Status: http.StatusNotFound, Code: "model_not_found", Param: "model",
			Message: fmt.Sprintf("no worker serves the model %s", clip(model)), Err: none,
		}
	}
	code := "no_workers"
	what := none.Error()
	if none.Role != worker.Regular {
		code = "no_" + none.Role.String()
	}
	if none.Unpaired {
		code = "no_pair"
	}
	if model != "" {
		what += " for model " + clip(model)
	}
	return &Error{
		Status: http.StatusServiceUnavailable, Code: code, RetryAfter: "1",
		Message: what + "; workers: " + r.d.census(), Err: none,
	}
}

// clip shortens and quotes a client's word for an error message.
func clip(s string) string {
	const most = 128
	if len(s) > most {
		s = s[:most] + "..."
	}
	return fmt.Sprintf("%q", s)
}

// census counts the workers per role and state and gives the last error known
// of any that is not ready.
func (d *Dispatcher) census() string {
	var parts []string
	last := ""
	for _, role := range worker.Roles() {
		states := map[string]int{}
		workers := d.members(role)
		for _, w := range workers {
			b := w.Blocked()
			state := b.String()
			if role != worker.Regular && d.deps.Dialects.Of(w) == nil {
				state = "KV connector " + clip(w.Endpoint().Speaks()) + " not supported"
				if e := w.Endpoint(); d.deps.Dialects.Bits(worker.Endpoint{ZMQ: "any", Dialect: e.Dialect, Mode: e.Mode}) != 0 {
					state = "ZMQ address unknown"
				}
			}
			states[state]++
			if b != 0 && last == "" {
				last = d.deps.Health.LastError(w)
			}
		}
		parts = append(parts, fmt.Sprintf("%d %v%s", len(workers), role, stateCounts(states)))
	}
	text := strings.Join(parts, ", ")
	if last != "" {
		text += "; last error: " + last
	}
	return text
}

func stateCounts(states map[string]int) string {
	if len(states) == 0 {
		return ""
	}
	return " (" + strings.Join(sortedCounts(states), ", ") + ")"
}

// modelUnknown reports whether it is certain that nobody serves the model: every
// registered worker has a model list, none has or had it a short while ago, and
// the start-up time is over.
func (r *run) modelUnknown(model string) bool {
	if time.Since(r.d.started) < r.d.cfg.StartupTime || r.d.deps.Health.Recently(model) {
		return false
	}
	known := false
	for _, role := range worker.Roles() {
		for _, w := range r.d.members(role) {
			known = true
			m := w.Models()
			if m == nil || containsString(m.Names(), model) {
				return false
			}
		}
	}
	return known
}

// gone reports whether the run ended because the client left.
func (r *run) gone(err error) bool { return r.ctx.Err() != nil || errors.Is(err, errClientGone) }
