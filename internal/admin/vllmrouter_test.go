package admin_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/worker"
)

// samples returns the scrape without its comments.
func samples(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestVLLMRouterMetrics compares all that is shown of workers under vllm-router's
// names. A URL in two roles is one worker there.
func TestVLLMRouterMetrics(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	prefill := f.add("test", at(worker.Prefill, "http://a:8000"))
	decode := f.add("test", at(worker.Decode, "http://a:8000"))
	pending := f.add("test", at(worker.Regular, "http://b:8000"))
	pending.Block(worker.Pending)
	f.pick(worker.Prefill, worker.Acquire, worker.Work{})
	f.pick(worker.Prefill, worker.Acquire, worker.Work{})
	f.pick(worker.Decode, worker.Acquire, worker.Work{})
	for range 2 {
		f.breaker.End(prefill, breaker.Bad)
	}

	const want = `vllm_router_active_workers 3
vllm_router_cb_outcomes_total{outcome="failure",worker="http://a:8000"} 0
vllm_router_cb_outcomes_total{outcome="failure",worker="http://b:8000"} 0
vllm_router_cb_outcomes_total{outcome="success",worker="http://a:8000"} 0
vllm_router_cb_outcomes_total{outcome="success",worker="http://b:8000"} 0
vllm_router_cb_state{worker="http://a:8000"} 1
vllm_router_cb_state{worker="http://b:8000"} 0
vllm_router_cb_state_transitions_total{from="closed",to="open",worker="http://a:8000"} 1
vllm_router_max_load 2
vllm_router_min_load 0
vllm_router_pd_decode_errors_total{worker="http://a:8000"} 0
vllm_router_pd_decode_requests_total{worker="http://a:8000"} 1
vllm_router_pd_prefill_errors_total{worker="http://a:8000"} 0
vllm_router_pd_prefill_requests_total{worker="http://a:8000"} 2
vllm_router_pd_stream_errors_total{worker="http://a:8000"} 0
vllm_router_policy_decisions_total{policy="least_load",worker="http://a:8000"} 1
vllm_router_policy_decisions_total{policy="least_load",worker="http://b:8000"} 0
vllm_router_policy_decisions_total{policy="round_robin",worker="http://a:8000"} 2
vllm_router_processed_requests_total{worker="http://a:8000"} 3
vllm_router_processed_requests_total{worker="http://b:8000"} 0
vllm_router_running_requests{worker="http://a:8000"} 3
vllm_router_running_requests{worker="http://b:8000"} 0
vllm_router_worker_health{worker="http://a:8000"} 1
vllm_router_worker_health{worker="http://b:8000"} 0
vllm_router_worker_load{worker="http://a:8000"} 3
vllm_router_worker_load{worker="http://b:8000"} 0
`
	if diff := cmp.Diff(want, samples(f.scrape(f.vllmRouter))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	f.remove(prefill)
	f.remove(decode)
	f.remove(pending)
	const none = "vllm_router_active_workers 0\nvllm_router_max_load 0\nvllm_router_min_load 0\n"
	if diff := cmp.Diff(none, samples(f.scrape(f.vllmRouter))); diff != "" {
		t.Errorf("with no worker left, -want +got:\n%s", diff)
	}
}
