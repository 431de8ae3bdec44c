package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/worker"
)

// Collector shows the workers of the present snapshots. A worker that has left
// has no series.
type Collector struct {
	Pools      map[worker.Role]*worker.Pool
	Dispatcher *dispatch.Dispatcher
}

var _ prometheus.Collector = Collector{}

var workerLabels = []string{"role", "worker"}

var (
	loadDesc = prometheus.NewDesc("baton_worker_load",
		"Leases on the worker now.", workerLabels, nil)
	holdsDesc = prometheus.NewDesc("baton_worker_holds",
		"Workers chosen but not loaded yet.", workerLabels, nil)
	pickedDesc = prometheus.NewDesc("baton_worker_picked_total",
		"Leases ever taken on this lifetime of the worker.", workerLabels, nil)
	waitingDesc = prometheus.NewDesc("baton_worker_waiting_tokens",
		"Uncached prompt tokens that the leases still wait for, estimated.", workerLabels, nil)
	heldDesc = prometheus.NewDesc("baton_worker_held_tokens",
		"Prompt and expected output tokens of the leases, estimated.", workerLabels, nil)
	foreignDesc = prometheus.NewDesc("baton_worker_foreign_load",
		"Requests on the engine that are not this router's, as of its last fresh metrics.", workerLabels, nil)
	kvUsageDesc = prometheus.NewDesc("baton_worker_kv_usage_ratio",
		"Used share of the engine's KV cache, as of its last metrics.", workerLabels, nil)
	engineAgeDesc = prometheus.NewDesc("baton_worker_engine_age_seconds",
		"Age of the engine's own figures.", workerLabels, nil)
	generationDesc = prometheus.NewDesc("baton_worker_generation",
		"Generation of the worker's lifetime; it rises when another process takes the address.", workerLabels, nil)
	workersDesc = prometheus.NewDesc("baton_workers",
		"Workers by role and state: ready, or the reasons why they get no new work.", []string{"role", "state"}, nil)
	handoffsDesc = prometheus.NewDesc("baton_handoffs_total",
		"Hand-offs of the prefill worker: produced; delivered to a decode worker; discarded, given back early; abandoned, left to their validity.",
		[]string{"worker", "outcome"}, nil)
	abandonedDesc = prometheus.NewDesc("baton_handoffs_abandoned_total",
		"Abandoned hand-offs of the prefill worker by reason.", []string{"worker", "reason"}, nil)
	recomputedDesc = prometheus.NewDesc("baton_recomputed_prompts_total",
		"Decode legs that computed the prompt because prefill handed nothing over (--pd-allow-recompute).", nil, nil)
	legsDesc = prometheus.NewDesc("baton_worker_legs_total",
		"Legs of this lifetime of the worker by how they ended: ok; refused, 4xx; failed, 5xx or no answer; broken off after the first byte; cut_off from outside.",
		[]string{"role", "worker", "outcome"}, nil)
	retriesDesc = prometheus.NewDesc("baton_retries_total",
		"Legs tried again on another worker, by role.", []string{"role"}, nil)
)

// Describe implements [prometheus.Collector].
func (c Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		loadDesc, holdsDesc, pickedDesc, waitingDesc, heldDesc, generationDesc, workersDesc, handoffsDesc, abandonedDesc, recomputedDesc, retriesDesc,
		legsDesc, foreignDesc, kvUsageDesc, engineAgeDesc,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, role := range worker.Roles() {
		states := map[string]int{"ready": 0}
		for _, w := range c.Pools[role].Snapshot().Workers {
			states[w.Blocked().String()]++
			work := w.Work()
			r, label := role.String(), w.Label()
			gauge(loadDesc, float64(w.Load()), r, label)
			gauge(holdsDesc, float64(w.Holds()), r, label)
			counter(pickedDesc, w.Picked(), r, label)
			for end, n := range c.Dispatcher.Legs(w) {
				counter(legsDesc, n, r, label, dispatch.LegEnd(end).String())
			}
			gauge(waitingDesc, float64(work.Waiting), r, label)
			gauge(heldDesc, float64(work.Held), r, label)
			gauge(generationDesc, float64(w.ID().Generation), r, label)
			gauge(foreignDesc, float64(w.Foreign()), r, label)
			if e := w.Engine(); e != nil {
				gauge(kvUsageDesc, e.KVUsage, r, label)
				gauge(engineAgeDesc, time.Since(e.At).Seconds(), r, label)
			}
			if role == worker.Prefill {
				h := c.Dispatcher.Handoffs(w)
				counter(handoffsDesc, h.Produced, label, "produced")
				counter(handoffsDesc, h.Delivered, label, "delivered")
				counter(handoffsDesc, h.Discarded, label, "discarded")
				counter(handoffsDesc, h.Abandoned, label, "abandoned")
				for reason, n := range c.Dispatcher.Abandoned(w) {
					counter(abandonedDesc, n, label, reason)
				}
			}
		}
		for state, n := range states {
			gauge(workersDesc, float64(n), role.String(), state)
		}
		counter(retriesDesc, c.Dispatcher.Retries(role), role.String())
	}
	counter(recomputedDesc, c.Dispatcher.Recomputed())
}
