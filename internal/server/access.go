package server

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/worker"
)

// exchangeLog gathers what the access line and the metrics say of one request.
type exchangeLog struct {
	start   time.Time
	method  string
	route   *openai.Route // nil if the path is not served
	id      string
	model   string
	stream  bool
	bytesIn int64
	code    string // of the error object sent, "" if there was none
	gone    bool   // the client left while it sent its body
	outcome dispatch.Outcome
}

// refuse answers a request that does not get to dispatch.
func (e *exchangeLog) refuse(sink *nethttp.Sink, err error) {
	object, ok := errors.AsType[*openai.Error](err)
	if !ok {
		e.gone = true
		return
	}
	e.answer(sink, object, "")
}

// answer sends an error object.
func (e *exchangeLog) answer(sink *nethttp.Sink, object *openai.Error, retryAfter string) {
	e.code = object.Code
	fields := exchange.Fields{{Name: "Content-Type", Value: "application/json"}, {Name: "X-Request-Id", Value: e.id}}
	if retryAfter != "" {
		fields = append(fields, exchange.Field{Name: "Retry-After", Value: retryAfter})
	}
	body := object.Body(e.route)
	fields = append(fields, exchange.Field{Name: "Content-Length", Value: strconv.Itoa(len(body))})
	if sink.Start(object.Status, fields) == nil {
		_ = sink.Write(body) // the client may be gone
	}
}

// status is the status the request ended with: what was sent, or 499 if the
// client left, or what could no longer be sent.
func (e *exchangeLog) status(sink *nethttp.Sink) int {
	switch {
	case e.gone || e.outcome.ClientGone:
		return dispatch.StatusClientGone
	case e.outcome.Err != nil && e.outcome.Started:
		return e.outcome.Err.Status
	case sink.Status() == 0:
		return http.StatusInternalServerError
	default:
		return sink.Status()
	}
}

func (e *exchangeLog) routeName() string {
	if e.route == nil {
		return "unserved"
	}
	return e.route.Name
}

// finish counts the request, writes its access line, and then breaks the
// connection off if the answer is not complete or a panic came through.
func (s *Server) finish(e *exchangeLog, sink *nethttp.Sink) {
	if p := recover(); p != nil {
		s.log.Error("panic while serving", "request_id", e.id, "err", p, "stack", string(debug.Stack()))
		err := &dispatch.Error{Status: http.StatusInternalServerError, Code: "internal", Message: "internal error"}
		e.outcome = dispatch.Outcome{Err: err, Started: sink.Status() != 0}
		if e.outcome.Started {
			sink.Abort()
		} else {
			e.answer(sink, err.Object(), "")
		}
	}
	status := e.status(sink)
	duration := time.Since(e.start)
	s.metrics.observe(e, status, duration)
	attrs := []slog.Attr{
		slog.String("request_id", e.id),
		slog.String("method", clip(e.method)),
		slog.String("route", e.routeName()),
		slog.Int("status", status),
		slog.Duration("duration", duration),
		slog.Int64("bytes_in", e.bytesIn),
		slog.Int64("bytes_out", sink.Bytes()),
	}
	if e.model != "" {
		attrs = append(attrs, slog.String("model", clip(e.model)))
	}
	if e.stream {
		attrs = append(attrs, slog.Bool("stream", true))
	}
	if fb := e.outcome.FirstByte; fb > 0 {
		attrs = append(attrs, slog.Duration("first_byte", fb))
	}
	var legs [worker.NumRoles]int
	for _, leg := range e.outcome.Legs {
		key := leg.Worker.Role.String() + "_leg"
		if legs[leg.Worker.Role]++; legs[leg.Worker.Role] > 1 {
			key += "_" + strconv.Itoa(legs[leg.Worker.Role]) // a name does not stand twice in one object
		}
		attrs = append(attrs, slog.Attr{Key: key, Value: legValue(leg)})
	}
	if err := e.outcome.Err; err != nil {
		attrs = append(attrs, slog.String("code", err.Code), slog.String("err", err.Error()))
	} else if e.code != "" {
		attrs = append(attrs, slog.String("code", e.code))
	}
	s.log.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs...)
	if status == dispatch.StatusClientGone || sink.Status() == 0 {
		// To a client that has closed only its sending half, net/http would end the
		// answer well, or send an empty 200.
		sink.Abort()
	}
	sink.End()
}

func legValue(leg dispatch.Leg) slog.Value {
	attrs := []slog.Attr{
		slog.String("worker", leg.Worker.String()),
		slog.Int("attempt", leg.Attempt),
		slog.String("reason", leg.Why.Reason),
		slog.Int("status", leg.Status),
		slog.Duration("duration", leg.Duration),
	}
	if leg.Why.Key > 0 {
		attrs = append(attrs, slog.Int64("key_bytes", leg.Why.Key), slog.Int64("matched_bytes", leg.Why.Matched))
	}
	if leg.FirstByte > 0 {
		attrs = append(attrs, slog.Duration("first_byte", leg.FirstByte))
	}
	if leg.Err != nil {
		attrs = append(attrs, slog.String("err", leg.Err.Error()))
	}
	return slog.GroupValue(attrs...)
}

func clip(s string) string {
	const most = 128
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// maxID is the longest request id that is taken over from a client.
const maxID = 128

// requestID returns the client's request id, or a new one if there is none or it
// could be mistaken for something else further on: three underscores mark
// addresses in ids of some KV connectors.
func (s *Server) requestID(h http.Header) string {
	for _, name := range s.cfg.RequestIDHeaders {
		if id := h.Get(name); id != "" {
			if validID(id) {
				return id
			}
			break
		}
	}
	return strings.ToLower(rand.Text())
}

func validID(id string) bool {
	if len(id) > maxID {
		return false
	}
	underscores := 0
	for i := range len(id) {
		c := id[i]
		if c == '_' {
			underscores++
		} else {
			underscores = 0
		}
		switch {
		case underscores == 3:
			return false
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == ':', c == '/', c == '=', c == '+', c == '~':
		default:
			return false
		}
	}
	return true
}
