package health_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/health"
)

func TestExposition(t *testing.T) {
	const long = 64 << 10
	none := health.Exposition{VLLM: true}
	at := func(name string, r health.Rank) health.Exposition {
		return health.Exposition{VLLM: true, Ranks: map[string]health.Rank{name: r}}
	}
	counted := func(e health.Exposition, n int) health.Exposition {
		e.Counters = n
		return e
	}
	tests := []struct {
		name, text string
		want       health.Exposition
	}{
		{"empty", "", health.Exposition{}},
		{"another server", "# TYPE up gauge\nup 1\nhttp_requests_total{engine=\"0\"} 7\n", health.Exposition{}},
		{"only another metric", "vllm:num_preemptions_total{engine=\"0\"} 1.0\n", none},
		{"only its name", "vllm:\nvllm:{\nvllm:{} 1\n", none},
		{"help and type", "# HELP vllm:num_requests_running Number of requests.\n# TYPE vllm:num_requests_running gauge\n", health.Exposition{}},
		{
			"all", strings.Join([]string{
				`process_start_time_seconds 1.75e+09`,
				`vllm:num_requests_running{engine="0",model_name="m"} 3.0`,
				`vllm:num_requests_waiting{engine="0",model_name="m"} 2.0`,
				`vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25`,
				`vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="4096",num_gpu_blocks="9"} 1.0`,
				`vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0`,
				`vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.75e+09`,
				`vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0`,
				`vllm:prompt_tokens_total{engine="0",model_name="m"} 200.0`,
				`vllm:generation_tokens_total{engine="0",model_name="m"} 20.0`,
				`vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 4.0`,
				`vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 1.0`,
				`vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0`,
				`vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0`,
			}, "\n") + "\n",
			health.Exposition{Start: 1.75e9, VLLM: true, Counters: 3, Ranks: map[string]health.Rank{"0": {
				Running: 3, Waiting: 2, Usage: 0.25, CacheTokens: 4096, Prompt: 200, Generation: 20, Success: 5,
			}}},
		},
		{"labels in any order", `vllm:num_requests_running{model_name="m",x="1",engine="3"} 4` + "\n", at("3", health.Rank{Running: 4})},
		{"comma behind the labels", `vllm:num_requests_running{engine="3",} 4` + "\n", at("3", health.Rank{Running: 4})},
		{"no engine", `vllm:num_requests_running{model_name="m"} 4` + "\n", at("", health.Rank{Running: 4})},
		{"empty labels", "vllm:num_requests_running{} 4\n", at("", health.Rank{Running: 4})},
		{"no labels", "vllm:num_requests_running 4\n", at("", health.Rank{Running: 4})},
		{"no labels, timestamp", "vllm:num_requests_running\t4 1700000000000\n", at("", health.Rank{Running: 4})},
		{"spaces", " \tvllm:num_requests_running { model_name = \"m\" , engine = \"3\" } \t4.0 \t\n", at("3", health.Rank{Running: 4})},
		{"timestamp", `vllm:num_requests_running{engine="3"} 4 1700000000000` + "\n", at("3", health.Rank{Running: 4})},
		{"exemplar", `vllm:num_requests_running{engine="3"} 4 # {trace_id="x"} 9` + "\n", at("3", health.Rank{Running: 4})},
		{"exponent", `vllm:prompt_tokens_total{engine="3"} 1.5e+06` + "\n", counted(at("3", health.Rank{Prompt: 1.5e6}), 1)},
		{"label that ends alike", `vllm:num_requests_running{my_engine="9",engine="3",engine_id="8"} 4` + "\n", at("3", health.Rank{Running: 4})},
		{"label inside a value", `vllm:num_requests_running{model_name="a,engine=",engine="3"} 4` + "\n", at("3", health.Rank{Running: 4})},
		{"braces inside a value", `vllm:num_requests_running{model_name="}{ 7",engine="3"} 4` + "\n", at("3", health.Rank{Running: 4})},
		{"quotes inside a value", `vllm:num_requests_running{model_name="\",engine=\"9\\",engine="3"} 4` + "\n", at("3", health.Rank{Running: 4})},
		{
			"by reason", `vllm:num_requests_waiting{engine="0"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 1.0
`, at("0", health.Rank{Waiting: 3}),
		},
		{
			"several engines", `vllm:num_requests_running{engine="0"} 1
vllm:num_requests_running{engine="1"} 2
vllm:num_requests_waiting{engine="1"} 5
vllm:num_requests_running{engine="10"} 3
`, health.Exposition{VLLM: true, Ranks: map[string]health.Rank{"0": {Running: 1}, "1": {Running: 2, Waiting: 5}, "10": {Running: 3}}},
		},
		{"older name of the usage", `vllm:gpu_cache_usage_perc{model_name="m"} 0.5` + "\n", at("", health.Rank{Usage: 0.5})},
		{"cache without a size in tokens", `vllm:cache_config_info{block_size="16",engine="0",kv_cache_size_tokens="None",num_gpu_blocks="100"} 1` + "\n", at("0", health.Rank{CacheTokens: 1600})},
		{"cache without a size", `vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="None"} 1` + "\n", at("0", health.Rank{})},
		{"cache of nonsense", `vllm:cache_config_info{block_size="-16",engine="0",kv_cache_size_tokens="NaN",num_gpu_blocks="Inf"} 1` + "\n", at("0", health.Rank{})},
		{"asleep", `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0` + "\n", at("0", health.Rank{Asleep: true})},
		{"asleep, other states last", `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 1.0
`, at("0", health.Rank{Asleep: true})},
		{"not a number", `vllm:num_requests_running{engine="0"} NaN` + "\n", none},
		{"endless", `vllm:num_requests_running{engine="0"} +Inf` + "\n", none},
		{"below zero", `vllm:num_requests_running{engine="0"} -1` + "\n", none},
		{"word", `vllm:num_requests_running{engine="0"} many` + "\n", none},
		{"no value", `vllm:num_requests_running{engine="0"}` + "\n", none},
		{"truncated in the labels", `vllm:num_requests_running{engine="0`, none},
		{"truncated in the name", `vllm:num_requ`, none},
		{"truncated after others", "vllm:num_requests_running{engine=\"0\"} 7\nvllm:num_requests_waiting{engine=\"0\"", at("0", health.Rank{Running: 7})},
		{"no newline at the end", `vllm:num_requests_running{engine="0"} 7`, at("0", health.Rank{Running: 7})},
		{"carriage returns", "vllm:num_requests_running{engine=\"0\"} 7\r\n\r\nvllm:num_requests_waiting{engine=\"0\"} 8\r\n", at("0", health.Rank{Running: 7, Waiting: 8})},
		{"nul and junk", "\x00\xff\nvllm:\xff{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"0\"} 7\n", at("0", health.Rank{Running: 7})},
		{"engine that is no number of a rank", `vllm:num_requests_running{engine="` + strings.Repeat("0", 17) + `"} 7` + "\n", none},
		{
			"line that is too long",
			"vllm:num_requests_running{engine=\"0\",x=\"" + strings.Repeat("x", long) + "\"} 7\nvllm:num_requests_waiting{engine=\"0\"} 8\n",
			at("0", health.Rank{Waiting: 8}),
		},
		{
			"lines that are far too long",
			strings.Repeat("y", 5*long) + "\n" + strings.Repeat("y", long) + "\nvllm:num_requests_waiting{engine=\"0\"} 8\n" + strings.Repeat("z", 2*long),
			at("0", health.Rank{Waiting: 8}),
		},
		{
			"line that just fits",
			"vllm:num_requests_running{engine=\"0\"} 7" + strings.Repeat(" ", long-len("vllm:num_requests_running{engine=\"0\"} 7")-1) + "\n",
			at("0", health.Rank{Running: 7}),
		},
		{"start time", "process_start_time_seconds 1764457330.37\n", health.Exposition{Start: 1764457330.37}},
		{"start time, tab and labels", "process_start_time_seconds{pod=\"x\"}\t12.5\n", health.Exposition{Start: 12.5}},
		{"no start time", "process_start_time_seconds NaN\nprocess_start_time_seconds_total 5\nvllm:process_start_time_seconds 5\n", at("", health.Rank{})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want.Ranks == nil {
				tt.want.Ranks = map[string]health.Rank{}
			}
			for _, r := range []io.Reader{strings.NewReader(tt.text), iotest.DataErrReader(iotest.HalfReader(strings.NewReader(tt.text)))} {
				got, err := health.ReadExposition(r)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, *got); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
			}
		})
	}
}

// TestExpositionLimit: what is longer than 16 MiB is none, be it one line or
// many.
func TestExpositionLimit(t *testing.T) {
	const limit = 16 << 20
	for _, line := range []string{"x", strings.Repeat("x", 99) + "\n"} {
		text := strings.Repeat(line, limit/len(line)+1)
		if _, err := health.ReadExposition(strings.NewReader(text[:limit])); err != nil {
			t.Errorf("16 MiB of %q: %v", line[:1], err)
		}
		if _, err := health.ReadExposition(strings.NewReader(text[:limit+1])); err == nil || !strings.Contains(err.Error(), "16 MiB") {
			t.Errorf("more than 16 MiB: error %v", err)
		}
	}
}

// TestExpositionBroken: figures of which a part may be missing are none.
func TestExpositionBroken(t *testing.T) {
	broken := errors.New("broken")
	for _, text := range []string{"vllm:num_requests_running{engine=\"0\"} 7\n", "vllm:num_", strings.Repeat("x", 100<<10)} {
		r := io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))
		if got, err := health.ReadExposition(r); !errors.Is(err, broken) {
			t.Errorf("got %v and error %v", got, err)
		}
	}
}

func TestExpositionBoundsRanks(t *testing.T) {
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "vllm:num_requests_running{engine=\"%d\"} 1\nvllm:prompt_tokens_total{engine=\"%d\"} 1\n", i, i)
	}
	got, err := health.ReadExposition(strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Ranks) != 1024 || got.Counters != 1024 || got.Ranks["1023"].Running != 1 {
		t.Errorf("%d ranks and %d counters, want the first 1024", len(got.Ranks), got.Counters)
	}
}

// TestExpositionAllocates: an engine is read every few seconds; a line that is
// not wanted costs no memory.
func TestExpositionAllocates(t *testing.T) {
	text := engineMetrics(8)
	r := bytes.NewReader(text)
	allocs := testing.AllocsPerRun(20, func() {
		r.Reset(text)
		if _, err := health.ReadExposition(r); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 100 {
		t.Errorf("%v allocations for %d bytes of 8 engines", allocs, len(text))
	}
}

func FuzzExposition(f *testing.F) {
	f.Add(engineMetrics(1))
	f.Add([]byte(`vllm:num_requests_running{engine="0",model_name="\"}"} 1.0 17` + "\r\n"))
	f.Add([]byte("process_start_time_seconds 1\nvllm:num_requests_waiting 3"))
	f.Add([]byte(`vllm:cache_config_info{kv_cache_size_tokens="None",num_gpu_blocks="1e300",block_size="1e300"} 1`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := health.ReadExposition(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%d bytes: %v", len(text), err)
		}
		if len(got.Ranks) > 1024 || got.Counters > 3*len(got.Ranks) {
			t.Fatalf("%d ranks, %d counters", len(got.Ranks), got.Counters)
		}
		for name, r := range got.Ranks {
			if len(name) > 16 {
				t.Errorf("rank %q", name)
			}
			for _, v := range []float64{r.Running, r.Waiting, r.Usage, r.CacheTokens, r.Prompt, r.Generation, r.Success} {
				if v < 0 || math.IsNaN(v) {
					t.Errorf("rank %q has a figure of %v", name, v)
				}
			}
		}
		unix := bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
		if again, err := health.ReadExposition(bytes.NewReader(unix)); err != nil || !cmp.Equal(got, again) {
			t.Errorf("line ends matter: %v, %v", cmp.Diff(got, again), err)
		}
	})
}

func BenchmarkExposition(b *testing.B) {
	text := engineMetrics(8)
	r := bytes.NewReader(text)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(text)
		if _, err := health.ReadExposition(r); err != nil {
			b.Fatal(err)
		}
	}
}

// engineMetrics is what a server of so many ranks shows: 30 KB for each, most
// of it histograms.
func engineMetrics(engines int) []byte {
	var out bytes.Buffer
	line := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	head := func(name, kind string) {
		line("# HELP vllm:%s Some words about what this is and in which unit.", name)
		line("# TYPE vllm:%s %s", name, kind)
	}
	const own = `engine="%d"%s,model_name="meta-llama/Llama-3.1-70B-Instruct"`
	sample := func(kind, name, extra string, value float64) {
		head(name, kind)
		for e := range engines {
			line("vllm:%s{"+own+"} %.1f", name, e, extra, value)
		}
	}
	line("# HELP python_info Python platform information.\n# TYPE python_info gauge")
	line(`python_info{implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"} 1.0`)
	line("process_start_time_seconds 1.76445733037e+09")
	for _, name := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} {
		sample("gauge", name, "", 1)
	}
	for _, reason := range []string{"capacity", "deferred"} {
		sample("gauge", "num_requests_waiting_by_reason", `,reason="`+reason+`"`, 1)
	}
	for _, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		sample("gauge", "engine_sleep_state", `,sleep_state="`+state+`"`, 1)
	}
	head("cache_config_info", "gauge")
	for e := range engines {
		line(`vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="%d",gpu_memory_utilization="0.92",`+
			`kv_cache_memory_bytes="None",kv_cache_size_tokens="400000",num_gpu_blocks="25000",prefix_caching_hash_algo="sha256",sliding_window="None"} 1.0`, e)
	}
	for _, name := range []string{
		"prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits",
		"mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_cached", "generation_tokens",
	} {
		sample("counter", name+"_total", "", 123456)
		sample("gauge", name+"_created", "", 1.76445733e9)
	}
	for _, reason := range []string{"stop", "length", "abort", "error", "repetition"} {
		sample("counter", "request_success_total", `,finished_reason="`+reason+`"`, 17)
	}
	for name, buckets := range map[string]int{
		"time_to_first_token_seconds": 23, "inter_token_latency_seconds": 20, "request_time_per_output_token_seconds": 20,
		"e2e_request_latency_seconds": 22, "request_queue_time_seconds": 22, "request_inference_time_seconds": 22,
		"request_prefill_time_seconds": 22, "request_decode_time_seconds": 22, "iteration_tokens_total": 16,
		"request_prompt_tokens": 18, "request_generation_tokens": 18, "request_max_num_generation_tokens": 18, "request_params_max_tokens": 18,
	} {
		head(name, "histogram")
		for e := range engines {
			for i := range buckets {
				line("vllm:%s_bucket{"+own+"} %.1f", name, e, fmt.Sprintf(`,le="%.1f"`, float64(i)*2.5), 1000*float64(i))
			}
			line("vllm:%s_count{"+own+"} 46000.0", name, e, "")
			line("vllm:%s_sum{"+own+"} 123456.789", name, e, "")
		}
	}
	return out.Bytes()
}
