package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// VLLMRouter shows the workers under vllm-router's names, so that its dashboards go
// on. Its label worker does not tell roles apart: workers of one URL in several
// roles are shown as one. The series of a worker leave with it.
type VLLMRouter struct {
	Pools      map[worker.Role]*worker.Pool
	Policies   map[worker.Role]policy.Policy
	Dispatcher *dispatch.Dispatcher
	Breaker    *breaker.Breaker
}

var _ prometheus.Collector = VLLMRouter{}

// vllmRouterDesc describes vllm_router_<name>.
func vllmRouterDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("vllm_router_"+name, help, labels, nil)
}

var (
	activeWorkersDesc   = vllmRouterDesc("active_workers", "Workers known.")
	workerHealthDesc    = vllmRouterDesc("worker_health", "1 if the worker is fit for new work, else 0.", "worker")
	workerLoadDesc      = vllmRouterDesc("worker_load", "Leases on the worker now.", "worker")
	runningDesc         = vllmRouterDesc("running_requests", "The same.", "worker")
	processedDesc       = vllmRouterDesc("processed_requests_total", "Leases ever taken on this lifetime of the worker.", "worker")
	decisionsDesc       = vllmRouterDesc("policy_decisions_total", "The same, by the policy of its role.", "policy", "worker")
	maxLoadDesc         = vllmRouterDesc("max_load", "Load of the most loaded worker.")
	minLoadDesc         = vllmRouterDesc("min_load", "Load of the least loaded worker.")
	breakerStateDesc    = vllmRouterDesc("cb_state", "Circuit breaker: 0 closed, 1 open, 2 half-open.", "worker")
	breakerMovesDesc    = vllmRouterDesc("cb_state_transitions_total", "Changes of the circuit breaker's state.", "worker", "from", "to")
	breakerOutcomesDesc = vllmRouterDesc("cb_outcomes_total", "Legs that told the circuit breaker something.", "worker", "outcome")
	prefillLegsDesc     = vllmRouterDesc("pd_prefill_requests_total", "Leases ever taken on this lifetime of the prefill worker.", "worker")
	decodeLegsDesc      = vllmRouterDesc("pd_decode_requests_total", "Leases ever taken on this lifetime of the decode worker.", "worker")
	prefillErrorsDesc   = vllmRouterDesc("pd_prefill_errors_total", "Prefill legs that failed.", "worker")
	decodeErrorsDesc    = vllmRouterDesc("pd_decode_errors_total", "Decode legs that failed before the first byte of their answer.", "worker")
	streamErrorsDesc    = vllmRouterDesc("pd_stream_errors_total", "Decode legs that broke off after it.", "worker")
)

// Describe implements [prometheus.Collector].
func (c VLLMRouter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		activeWorkersDesc, workerHealthDesc, workerLoadDesc, runningDesc, processedDesc, decisionsDesc, maxLoadDesc, minLoadDesc,
		breakerStateDesc, breakerMovesDesc, breakerOutcomesDesc,
		prefillLegsDesc, decodeLegsDesc, prefillErrorsDesc, decodeErrorsDesc, streamErrorsDesc,
	} {
		ch <- d
	}
}

// vllmRouterWorker is what is shown of the workers of one URL.
type vllmRouterWorker struct {
	ready  bool
	load   int64
	picked map[string]uint64 // by policy
	state  breaker.State
	moves  breaker.Moves
	legs   [dispatch.NumLegEnds]uint64
	byRole [worker.NumRoles]struct {
		present                bool
		picked, failed, broken uint64
	}
}

// Collect implements [prometheus.Collector].
func (c VLLMRouter) Collect(ch chan<- prometheus.Metric) {
	workers := make(map[string]*vllmRouterWorker)
	total := 0
	var most, least int64
	for _, role := range worker.Roles() {
		for _, w := range c.Pools[role].Snapshot().Workers {
			v := workers[w.Label()]
			if v == nil {
				v = &vllmRouterWorker{picked: make(map[string]uint64)}
				workers[w.Label()] = v
			}
			c.add(v, w)
			load := w.Load()
			if most = max(most, load); total == 0 || load < least {
				least = load
			}
			total++
		}
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(activeWorkersDesc, float64(total))
	gauge(maxLoadDesc, float64(most))
	gauge(minLoadDesc, float64(least))
	for label, v := range workers {
		v.collect(ch, label)
	}
}

func (c VLLMRouter) add(v *vllmRouterWorker, w *worker.Worker) {
	role := w.ID().Role
	legs := c.Dispatcher.Legs(w)
	v.ready = v.ready || w.Blocked().Ready()
	v.load += w.Load()
	v.picked[c.Policies[role].Name()] += w.Picked()
	v.state = max(v.state, c.Breaker.State(w))
	for from, row := range c.Breaker.Moves(w) {
		for to, n := range row {
			v.moves[from][to] += n
		}
	}
	for end, n := range legs {
		v.legs[end] += n
	}
	of := &v.byRole[role]
	of.present = true
	of.picked += w.Picked()
	of.failed += legs[dispatch.LegFailed]
	of.broken += legs[dispatch.LegBroken]
}

func (v *vllmRouterWorker) collect(ch chan<- prometheus.Metric, label string) {
	gauge := func(d *prometheus.Desc, n float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, label)
	}
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	health := 0.0
	if v.ready {
		health = 1
	}
	gauge(workerHealthDesc, health)
	gauge(workerLoadDesc, float64(v.load))
	gauge(runningDesc, float64(v.load))
	gauge(breakerStateDesc, float64(v.state))
	var picked uint64
	for name, n := range v.picked {
		counter(decisionsDesc, n, name, label)
		picked += n
	}
	counter(processedDesc, picked, label)
	counter(breakerOutcomesDesc, v.legs[dispatch.LegOK]+v.legs[dispatch.LegRefused], label, "success")
	counter(breakerOutcomesDesc, v.legs[dispatch.LegFailed]+v.legs[dispatch.LegBroken], label, "failure")
	for from, row := range v.moves {
		for to, n := range row {
			if n > 0 {
				counter(breakerMovesDesc, n, label, breaker.State(from).String(), breaker.State(to).String())
			}
		}
	}
	if of := v.byRole[worker.Prefill]; of.present {
		counter(prefillLegsDesc, of.picked, label)
		counter(prefillErrorsDesc, of.failed+of.broken, label)
	}
	if of := v.byRole[worker.Decode]; of.present {
		counter(decodeLegsDesc, of.picked, label)
		counter(decodeErrorsDesc, of.failed, label)
		counter(streamErrorsDesc, of.broken, label)
	}
}
