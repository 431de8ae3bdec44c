package server

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-llm/baton/internal/dispatch"
)

// vllmRouterMetrics are the figures of requests under vllm-router's names, so that
// its dashboards go on. They differ in one thing: a request counts at the end of
// its answer, not at the head of a stream. docs/migrating.md lists the names that
// are not served. Those of workers are in package admin.
type vllmRouterMetrics struct {
	requests, requestErrors, retries, exhausted *prometheus.CounterVec // by route
	duration                                    *prometheus.HistogramVec
	generate                                    prometheus.Histogram
	embeddings                                  prometheus.Counter
	embeddingErrors                             *prometheus.CounterVec // by error type
	embeddingDuration                           prometheus.Histogram
	pdRequests, pdErrors                        *prometheus.CounterVec
	pdDuration                                  *prometheus.HistogramVec
}

// vllmRouterBuckets are vllm-router's.
var vllmRouterBuckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30, 45, 60, 90, 120, 180, 240}

func newVLLMRouterMetrics(reg prometheus.Registerer) *vllmRouterMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "vllm_router", Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "vllm_router", Name: name, Help: help, Buckets: vllmRouterBuckets}, labels)
		reg.MustRegister(h)
		return h
	}
	one := func(h *prometheus.HistogramVec) prometheus.Histogram {
		return h.WithLabelValues().(prometheus.Histogram)
	}
	return &vllmRouterMetrics{
		requests:          counter("requests_total", "Requests answered with 2xx.", "route"),
		requestErrors:     counter("request_errors_total", "Requests that failed, but for those whose client left.", "route", "error_type"),
		retries:           counter("retries_total", "Legs tried again on another worker.", "route"),
		exhausted:         counter("retries_exhausted_total", "Requests that failed although a leg was tried again.", "route"),
		duration:          histogram("request_duration_seconds", "Time from a request's head to the last byte of its answer.", "route"),
		generate:          one(histogram("generate_duration_seconds", "The same, of generating requests answered with 2xx.")),
		embeddings:        counter("embeddings_total", "Embedding requests answered with 2xx.").WithLabelValues(),
		embeddingErrors:   counter("embeddings_errors_total", "Embedding requests that failed.", "error_type"),
		embeddingDuration: one(histogram("embeddings_duration_seconds", "Time of embedding requests answered with 2xx.")),
		pdRequests:        counter("pd_requests_total", "Requests that prefill and decode shared, answered with 2xx.", "route"),
		pdErrors:          counter("pd_errors_total", "Requests that prefill and decode shared and that failed.", "error_type"),
		pdDuration:        histogram("pd_request_duration_seconds", "Time of requests that prefill and decode shared.", "route"),
	}
}

// observe counts a request. Paths that are not served were never vllm-router's
// to count.
func (m *vllmRouterMetrics) observe(e *exchangeLog, status int, d time.Duration) {
	if e.route == nil || status == dispatch.StatusClientGone {
		return
	}
	route := e.route.Path
	if route == "" {
		route = e.route.Name
	}
	good, paired := status >= 200 && status < 300, e.outcome.Paired
	m.duration.WithLabelValues(route).Observe(d.Seconds())
	if n := e.outcome.Retries; n > 0 {
		m.retries.WithLabelValues(route).Add(float64(n))
		if !good {
			m.exhausted.WithLabelValues(route).Inc()
		}
	}
	if paired {
		m.pdDuration.WithLabelValues(route).Observe(d.Seconds())
	}
	embeds := route == "/v1/embeddings"
	if !good {
		m.requestErrors.WithLabelValues(route, errorType(e)).Inc()
		if paired {
			m.pdErrors.WithLabelValues(errorType(e)).Inc()
		}
		if embeds {
			m.embeddingErrors.WithLabelValues("http_" + statusLabel(status)).Inc()
		}
		return
	}
	m.requests.WithLabelValues(route).Inc()
	if paired {
		m.pdRequests.WithLabelValues(route).Inc()
	}
	switch {
	case embeds:
		m.embeddings.Inc()
		m.embeddingDuration.Observe(d.Seconds())
	case e.route.Generates():
		m.generate.Observe(d.Seconds())
	}
}

// errorType sorts failures as vllm-router does.
func errorType(e *exchangeLog) string {
	if err := e.outcome.Err; err != nil && err.Status == http.StatusServiceUnavailable && strings.HasPrefix(err.Code, "no_") {
		return "no_available_workers"
	}
	return "non_retryable_error"
}
