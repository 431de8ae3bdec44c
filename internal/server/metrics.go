package server

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count requests by route and outcome, set at the end of the body.
type metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	firstByte *prometheus.HistogramVec
	picks     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, active *atomic.Int64) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_requests_total",
			Help: "Requests by route and final status; 499 is a client that left, a broken stream counts as 502 although its head said 200.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "baton_request_duration_seconds",
			Help:    "Time from a request's head to the last byte of its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280},
		}, []string{"route"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "baton_first_byte_seconds",
			Help:    "Time from dispatch to the first byte of the answer's body.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160},
		}, []string{"route"}),
		picks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "baton_picks_total",
			Help: "Legs by the role of their worker and the policy's reason to choose it, such as prefix, session or load.",
		}, []string{"role", "reason"}),
	}
	reg.MustRegister(m.requests, m.duration, m.firstByte, m.picks, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "baton_requests_active",
		Help: "Requests being carried out.",
	}, func() float64 { return float64(active.Load()) }))
	return m
}

func (m *metrics) observe(e *exchangeLog, status int, d time.Duration) {
	route := e.routeName()
	m.requests.WithLabelValues(route, statusLabel(status)).Inc()
	m.duration.WithLabelValues(route).Observe(d.Seconds())
	if fb := e.outcome.FirstByte; fb > 0 {
		m.firstByte.WithLabelValues(route).Observe(fb.Seconds())
	}
	for _, leg := range e.outcome.Legs {
		m.picks.WithLabelValues(leg.Worker.Role.String(), leg.Reason).Inc()
	}
}

// statusLabel bounds what a worker can make of a label.
func statusLabel(status int) string {
	if status < 100 || status > 599 {
		return "other"
	}
	return strconv.Itoa(status)
}
