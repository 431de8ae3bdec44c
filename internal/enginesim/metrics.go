package enginesim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// page writes the Prometheus text format.
type page struct {
	strings.Builder
	model string
}

func (p *page) head(name, kind, help string) {
	p.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

// sample writes a value. Labels are pairs; engine and model_name come on their
// own, and names must be given in their order around those.
func (p *page) sample(name string, v float64, labels string) {
	p.WriteString(name + "{" + labels + "} " + number(v) + "\n")
}

func (p *page) own(extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return fmt.Sprintf(`engine="0"%s,model_name=%q`, extra, p.model)
}

// number is a float as Python writes it.
func number(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

func (p *page) gauge(name, help string, v float64) {
	p.head(name, "gauge", help)
	p.sample(name, v, p.own(""))
}

func (p *page) counter(name, help string, v int) {
	p.head(name+"_total", "counter", help)
	p.sample(name+"_total", float64(v), p.own(""))
}

// metrics answers GET /metrics.
func (e *Engine) metrics(c *call) error {
	return c.answer(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", []byte(e.metricsText()))
}

func (e *Engine) metricsText() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &page{model: e.models[0].name}
	n := e.count

	p.head("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.WriteString("process_start_time_seconds " +
		strconv.FormatFloat(float64(e.start.UnixMilli())/1000, 'f', 3, 64) + "\n")
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
		float64(e.running-e.loading))
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
		float64(e.waiting+e.loading))
	p.head("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
	p.sample("vllm:num_requests_waiting_by_reason", float64(e.waiting), p.own("")+`,reason="capacity"`)
	p.sample("vllm:num_requests_waiting_by_reason", float64(e.loading), p.own("")+`,reason="deferred"`)
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", e.cache.usage())
	p.head("vllm:engine_sleep_state", "gauge", "Engine sleep state.")
	for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		v := 0.0
		if level == e.sleepLevel {
			v = 1
		}
		p.sample("vllm:engine_sleep_state", v, p.own("")+fmt.Sprintf(`,sleep_state=%q`, state))
	}
	p.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	p.sample("vllm:cache_config_info", 1, fmt.Sprintf(
		`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",`+
			`kv_cache_memory_bytes="None",kv_cache_size_tokens="%d",num_gpu_blocks="%d",prefix_caching_hash_algo="sha256",sliding_window="None"`,
		e.cfg.BlockSize, e.cfg.Blocks*e.cfg.BlockSize, e.cfg.Blocks))

	p.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", n.cacheQueries)
	p.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", n.cacheHits)
	p.counter("vllm:external_prefix_cache_queries", "External prefix cache queries, in tokens.", n.remoteQueries)
	p.counter("vllm:external_prefix_cache_hits", "External prefix cache hits, in tokens.", n.remoteHits)
	p.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", n.preemptions)
	p.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", n.promptTokens)
	p.head("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.")
	for _, s := range []struct {
		source string
		v      int
	}{
		{"local_compute", n.promptTokens - n.cacheHits - n.remoteHits},
		{"local_cache_hit", n.cacheHits},
		{"external_kv_transfer", n.remoteHits},
	} {
		p.sample("vllm:prompt_tokens_by_source_total", float64(s.v), p.own("")+fmt.Sprintf(`,source=%q`, s.source))
	}
	p.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens.", n.cacheHits+n.remoteHits)
	p.counter("vllm:generation_tokens", "Number of generation tokens processed.", n.generatedTokens)
	p.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range []string{finishStop, finishLength, finishAbort, finishError, "repetition"} {
		p.sample("vllm:request_success_total", float64(n.finished[reason]),
			p.own(fmt.Sprintf("finished_reason=%q", reason)))
	}
	p.counter("vllm:nixl_num_kv_expired_reqs", "Number of requests whose KV blocks expired.", n.expired)
	p.counter("vllm:nixl_num_failed_transfers", "Number of failed NIXL transfers.", n.failedLoads)
	return p.String()
}
