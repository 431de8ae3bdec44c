package server

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/worker"
)

// metrics count requests by route and outcome, set at the end of the body.
type metrics struct {
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	firstToken *prometheus.HistogramVec
	phases     [numPhases]prometheus.Observer
	picks      *prometheus.CounterVec
	key        *prometheus.CounterVec
	matched    *prometheus.CounterVec
	vllmRouter *vllmRouterMetrics
}

// phase is a part of a request that prefill and decode share.
type phase uint8

const (
	prefillPhase phase = iota
	handoffPhase
	decodePhase
	numPhases
)

func (p phase) String() string { return [...]string{"prefill", "handoff", "decode"}[p] }

var durationBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280}

func newMetrics(reg prometheus.Registerer, active *atomic.Int64) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help, label string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: durationBuckets}, []string{label})
		reg.MustRegister(h)
		return h
	}
	m := &metrics{
		requests: counter("baton_requests_total",
			"Requests by route and final status; 499 is a client that left, a broken stream counts as 502 although its head said 200.",
			"route", "status"),
		duration: histogram("baton_request_duration_seconds",
			"Time from a request's head to the last byte of its answer.", "route"),
		firstToken: histogram("baton_first_token_seconds",
			"Time from dispatch to the first byte of a stream's body.", "route"),
		picks: counter("baton_picks_total",
			"Legs by the role of their worker, the policy that chose it and its reason, such as prefix, session or load.",
			"role", "policy", "reason"),
		key: counter("baton_prefix_key_bytes_total",
			"Length of the routing keys of legs whose policy looks at prefixes.", "role"),
		matched: counter("baton_prefix_matched_bytes_total",
			"The part of the routing keys that the worker chosen had been sent before.", "role"),
		vllmRouter: newVLLMRouterMetrics(reg),
	}
	phases := histogram("baton_phase_duration_seconds",
		"Time of the phases of requests that prefill and decode shared: prefill, from sending to the end of its answer; handoff, from there "+
			"to the first byte of a stream; decode, from sending to the last byte.", "phase")
	for p := range numPhases {
		m.phases[p] = phases.WithLabelValues(p.String())
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "baton_requests_active",
		Help: "Requests being carried out.",
	}, func() float64 { return float64(active.Load()) }))
	return m
}

func (m *metrics) observe(e *exchangeLog, status int, d time.Duration) {
	route := e.routeName()
	m.requests.WithLabelValues(route, statusLabel(status)).Inc()
	m.duration.WithLabelValues(route).Observe(d.Seconds())
	if fb := e.outcome.FirstByte; fb > 0 && e.stream && e.outcome.Err == nil {
		m.firstToken.WithLabelValues(route).Observe(fb.Seconds())
	}
	for _, leg := range e.outcome.Legs {
		role := leg.Worker.Role.String()
		m.picks.WithLabelValues(role, leg.Policy, leg.Why.Reason).Inc()
		if leg.Why.Key > 0 {
			m.key.WithLabelValues(role).Add(float64(leg.Why.Key))
			m.matched.WithLabelValues(role).Add(float64(leg.Why.Matched))
		}
	}
	for p, d := range phases(&e.outcome, e.stream) {
		if d > 0 {
			m.phases[p].Observe(d.Seconds())
		}
	}
	m.vllmRouter.observe(e, status, d)
}

// phases returns the times of the phases of a request that ended well, 0 where a
// phase has none. Of legs that were tried again the last one counts.
func phases(o *dispatch.Outcome, stream bool) (times [numPhases]time.Duration) {
	if !o.Paired || o.Err != nil {
		return times
	}
	var last [worker.NumRoles]*dispatch.Leg
	for i := range o.Legs {
		if leg := &o.Legs[i]; leg.Status < http.StatusMultipleChoices && leg.Duration > 0 {
			last[leg.Worker.Role] = leg
		}
	}
	prefill, decode := last[worker.Prefill], last[worker.Decode]
	if prefill == nil || decode == nil {
		return times
	}
	times[prefillPhase], times[decodePhase] = prefill.Duration, decode.Duration
	if stream {
		times[handoffPhase] = decode.Start + decode.FirstByte - prefill.Start - prefill.Duration
	}
	return times
}

// statusLabel bounds what a worker can make of a label.
func statusLabel(status int) string {
	if status < 100 || status > 599 {
		return "other"
	}
	return strconv.Itoa(status)
}
