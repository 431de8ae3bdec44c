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
	ranks []rank
}

func (p *page) head(name, kind, help string) {
	p.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
}

// sample writes a value. Labels are pairs; engine and model_name come on their
// own, and names must be given in their order around those.
func (p *page) sample(name string, v float64, labels string) {
	p.WriteString(name + "{" + labels + "} " + number(v) + "\n")
}

// own are the labels that every sample has, around one that sorts between them.
func (p *page) own(engine int, extra string) string {
	if extra != "" {
		extra = "," + extra
	}
	return fmt.Sprintf(`engine="%d"%s,model_name=%q`, engine, extra, p.model)
}

// number is a float as Python writes it.
func number(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

func (p *page) gauge(name, help string, value func(*rank) float64) {
	p.head(name, "gauge", help)
	p.each(name, value)
}

func (p *page) counter(name, help string, value func(*rank) int) {
	p.head(name+"_total", "counter", help)
	p.each(name+"_total", func(r *rank) float64 { return float64(value(r)) })
}

func (p *page) each(name string, value func(*rank) float64) {
	for i := range p.ranks {
		p.sample(name, value(&p.ranks[i]), p.own(i, ""))
	}
}

// byLabel writes samples that one more label tells apart.
func (p *page) byLabel(name, label string, values []string, value func(r *rank, i int) float64) {
	for n := range p.ranks {
		for i, v := range values {
			extra := fmt.Sprintf("%s=%q", label, v)
			labels := p.own(n, "") + "," + extra
			if label < "model_name" {
				labels = p.own(n, extra)
			}
			p.sample(name, value(&p.ranks[n], i), labels)
		}
	}
}

// metrics answers GET /metrics.
func (e *Engine) metrics(c *call) error {
	return c.answer(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", []byte(e.metricsText()))
}

func (e *Engine) metricsText() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &page{model: e.models[0].name, ranks: e.ranks}
	if !e.cfg.NoStartTime {
		p.head("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
		p.WriteString("process_start_time_seconds " +
			strconv.FormatFloat(float64(e.start.UnixMilli())/1000, 'f', 3, 64) + "\n")
	}
	if !e.cfg.NoStats {
		e.gaugesLocked(p)
		e.countersLocked(p)
	}
	return p.String()
}

func (e *Engine) gaugesLocked(p *page) {
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
		func(r *rank) float64 { return float64(r.running - r.loading) })
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
		func(r *rank) float64 { return float64(r.waiting + r.loading) })
	p.head("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
	p.byLabel("vllm:num_requests_waiting_by_reason", "reason", []string{"capacity", "deferred"},
		func(r *rank, i int) float64 { return float64([]int{r.waiting, r.loading}[i]) })
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
		func(*rank) float64 { return e.cache.usage() })
	p.head("vllm:engine_sleep_state", "gauge", "Engine sleep state.")
	p.byLabel("vllm:engine_sleep_state", "sleep_state", []string{"awake", "weights_offloaded", "discard_all"},
		func(_ *rank, level int) float64 {
			if level == e.sleepLevel {
				return 1
			}
			return 0
		})
	p.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	for i := range p.ranks {
		p.sample("vllm:cache_config_info", 1, fmt.Sprintf(
			`block_size="%d",cache_dtype="auto",enable_prefix_caching="True",engine="%d",gpu_memory_utilization="0.92",`+
				`kv_cache_memory_bytes="None",kv_cache_size_tokens="%d",num_gpu_blocks="%d",prefix_caching_hash_algo="sha256",sliding_window="None"`,
			e.cfg.BlockSize, i, e.cfg.Blocks*e.cfg.BlockSize, e.cfg.Blocks))
	}
}

func (e *Engine) countersLocked(p *page) {
	p.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
		func(r *rank) int { return r.cacheQueries })
	p.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.",
		func(r *rank) int { return r.cacheHits })
	p.counter("vllm:external_prefix_cache_queries", "External prefix cache queries, in tokens.",
		func(r *rank) int { return r.remoteQueries })
	p.counter("vllm:external_prefix_cache_hits", "External prefix cache hits, in tokens.",
		func(r *rank) int { return r.remoteHits })
	p.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.",
		func(r *rank) int { return r.preemptions })
	p.counter("vllm:prompt_tokens", "Number of prefill tokens processed.",
		func(r *rank) int { return r.promptTokens })
	p.head("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.")
	p.byLabel("vllm:prompt_tokens_by_source_total", "source",
		[]string{"local_compute", "local_cache_hit", "external_kv_transfer"},
		func(r *rank, i int) float64 {
			return float64([]int{r.promptTokens - r.cacheHits - r.remoteHits, r.cacheHits, r.remoteHits}[i])
		})
	p.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens.",
		func(r *rank) int { return r.cacheHits + r.remoteHits })
	p.counter("vllm:generation_tokens", "Number of generation tokens processed.",
		func(r *rank) int { return r.generatedTokens })
	p.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	reasons := []string{finishStop, finishLength, finishAbort, finishError, "repetition"}
	p.byLabel("vllm:request_success_total", "finished_reason", reasons,
		func(r *rank, i int) float64 { return float64(r.finished[reasons[i]]) })
	if e.cfg.Connector != ConnectorNIXL {
		return
	}
	first := &p.ranks[0]
	total := func(n int) func(*rank) int { // these are not counted by rank
		return func(r *rank) int {
			if r == first {
				return n
			}
			return 0
		}
	}
	p.counter("vllm:nixl_num_kv_expired_reqs", "Number of requests whose KV blocks expired.", total(e.count.expired))
	p.counter("vllm:nixl_num_failed_transfers", "Number of failed NIXL transfers.", total(e.count.failedLoads))
}
