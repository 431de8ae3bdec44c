package enginesim_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// lines are those of /metrics that begin with prefix.
func (w *world) lines(prefix string) string {
	var out []string
	for line := range strings.Lines(w.do(request{method: "GET", path: "/metrics"}).body) {
		if strings.HasPrefix(line, prefix) {
			out = append(out, strings.TrimSuffix(line, "\n"))
		}
	}
	return strings.Join(out, "\n")
}

// TestPause runs a request, has one in the queue, pauses, and sends another one.
func TestPause(t *testing.T) {
	for _, tt := range []struct {
		mode    string
		answers time.Duration // when /pause does
		first   string        // end of the request that runs, and when
		second  string        // of the one that waits
		third   string        // of the one that comes while paused
	}{
		{"", 55 * ms, "abort 55ms", "abort 55ms", "length 1.1s"},
		{"?mode=abort", 55 * ms, "abort 55ms", "abort 55ms", "length 1.1s"},
		{"?mode=wait", 180 * ms, "length 90ms", "length 180ms", "length 1.1s"},
		{"?mode=keep", 55 * ms, "length 1.03s", "length 1.12s", "length 1.22s"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.start(enginesim.Config{DecodePerToken: 10 * ms, MaxSeqs: 1})
				start := time.Now()
				send := func(id string, tokens int) func() string {
					ch := w.later(t.Context(), comp(id, id, tokens))
					at := make(chan time.Duration, 1)
					out := make(chan answer, 1)
					go func() { a := <-ch; at <- time.Since(start); out <- a }()
					synctest.Wait()
					return func() string {
						a := <-out
						return fmt.Sprint(a.get(t, "choices", 0, "finish_reason"), " ", <-at)
					}
				}
				first := send("first", 10) // of 90 ms
				second := send("second", 10)
				time.Sleep(55 * ms)
				if a := w.do(request{path: "/pause" + tt.mode}); a.body != `{"status":"paused"}` || time.Since(start) != tt.answers {
					t.Errorf("after %v: %+v", time.Since(start), a)
				}
				third := send("third", 11)
				if a := w.do(request{method: "GET", path: "/is_paused"}); a.body != `{"is_paused":true}` || !e.Stats().Paused {
					t.Errorf("%+v", a)
				}
				if a := w.do(request{method: "GET", path: "/health"}); a.status != 200 {
					t.Errorf("%+v", a)
				}
				if s := e.Stats(); tt.mode != "?mode=keep" && (s.Waiting != 0 || s.Running != 0) {
					t.Errorf("%+v", s)
				}
				time.Sleep(time.Second - time.Since(start))
				if a := w.do(request{path: "/resume"}); a.body != `{"status":"resumed"}` || e.Stats().Paused {
					t.Errorf("%+v", a)
				}
				if a, b, c := first(), second(), third(); a != tt.first || b != tt.second || c != tt.third {
					t.Errorf("%s, %s, %s", a, b, c)
				}
				if s := e.Stats(); s.UsedBlocks != 0 || s.Running != 0 || s.Halted {
					t.Errorf("%+v", s)
				}
				clean(t, e)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		if a := w.do(request{path: "/pause?mode=no"}); a.status != 400 || e.Stats().Paused {
			t.Errorf("%+v", a)
		}
		e.SetPaused(true)
		e.SetPaused(true)
		if !e.Stats().Paused || !e.Stats().Halted {
			t.Error("not paused")
		}
		e.SetPaused(false)
		if a := w.do(comp("1", "a", 1)); a.status != 200 {
			t.Errorf("%+v", a)
		}
	})
}

// TestPauseLeavesAlone checks that a pause aborts nothing that is not in the engine.
func TestPauseLeavesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		e.Fault(enginesim.Fault{RequestID: "before", Action: "gate", Gate: "g"})
		e.Fault(enginesim.Fault{RequestID: "within", Point: "chunk:1", Action: "gate", Gate: "g"})
		before := w.later(t.Context(), comp("before", "a", 3))
		within := w.later(t.Context(), comp("within", "a", 3).streamed())
		synctest.Wait()
		w.do(request{path: "/pause"})
		if a := <-within; !strings.Contains(a.body, `"finish_reason":"abort"`) || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
			t.Errorf("%+v", a)
		}
		w.do(request{path: "/resume"})
		e.Open("g")
		if a := <-before; a.get(t, "choices", 0, "finish_reason") != "length" {
			t.Errorf("%+v", a)
		}
	})
}

func TestScaling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		if a := w.do(request{path: "/sim/scaling", body: `{"scaling":true}`}); a.status != 204 || !e.Stats().Scaling {
			t.Errorf("%+v", a)
		}
		const want = `{"error":"The model is currently scaling. Please try again later."}`
		for _, q := range []request{comp("1", "a", 1), {method: "GET", path: "/health"}, {method: "GET", path: "/metrics"}, {path: "/x"}} {
			if a := w.do(q); a.status != 503 || a.body != want || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("%+v", a)
			}
		}
		e.SetScaling(false)
		if a := w.do(comp("2", "a", 1)); a.status != 200 {
			t.Errorf("%+v", a)
		}
		if a := w.do(request{path: "/sim/scaling", body: `x`}); a.status != 400 {
			t.Errorf("%+v", a)
		}
	})
}

// TestSetSleeping checks that sleep loses the cache, and disturbs nothing.
func TestSetSleeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{DecodePerToken: 10 * ms})
		w.do(comp("1", prompt, 1))
		if a := w.do(comp("2", prompt, 1)); cached(t, a) != 48 {
			t.Errorf("%+v", a)
		}
		running := w.later(t.Context(), comp("3", "a", 10))
		time.Sleep(30 * ms)
		e.SetSleeping(1) // blocks are held: nothing is lost
		if a := <-running; a.status != 200 {
			t.Errorf("%+v", a)
		}
		e.SetSleeping(0)
		if a := w.do(comp("4", prompt, 1)); cached(t, a) != 48 {
			t.Errorf("%+v", a)
		}
		e.SetSleeping(2)
		want := `vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 1.0`
		if got := w.lines("vllm:engine_sleep_state"); got != want {
			t.Error(got)
		}
		e.SetSleeping(0)
		if a := w.do(comp("5", prompt, 1)); cached(t, a) != 0 {
			t.Errorf("%+v", a)
		}
	})
}

// TestRanks checks the metrics of an engine with several ranks.
func TestRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{DPSize: 3, DecodePerToken: 100 * ms, MaxSeqs: 5, Connector: "nixl"})
		var all []<-chan answer
		for i, rank := range []string{"2", "2", "1", "", "x", "", ""} { // others than 1 and 2 are balanced
			q := comp(fmt.Sprint("r", i), fmt.Sprint("prompt ", i), 2)
			if rank != "" {
				q = q.pinned(rank)
			}
			all = append(all, w.later(t.Context(), q))
			synctest.Wait()
		}
		want := `vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_running{engine="2",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="2",model_name="m"} 0.0`
		if got := w.lines("vllm:num_requests_running") + "\n" + w.lines("vllm:num_requests_waiting{"); got != want {
			t.Error(got)
		}
		for _, ch := range all {
			if a := <-ch; a.status != 200 {
				t.Errorf("%+v", a)
			}
		}
		want = `vllm:generation_tokens_total{engine="0",model_name="m"} 6.0
vllm:generation_tokens_total{engine="1",model_name="m"} 4.0
vllm:generation_tokens_total{engine="2",model_name="m"} 4.0`
		if got := w.lines("vllm:generation_tokens_total"); got != want {
			t.Error(got)
		}
		for _, rank := range []string{"0", "1", "2"} {
			for _, name := range []string{
				"vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total",
				`vllm:request_success_total`, "vllm:engine_sleep_state", "vllm:nixl_num_kv_expired_reqs_total",
			} {
				if w.lines(name+`{engine="`+rank+`"`) == "" {
					t.Errorf("no %s of rank %s", name, rank)
				}
			}
		}
		if n := strings.Count(w.lines("vllm:cache_config_info"), `kv_cache_size_tokens="65536",num_gpu_blocks="4096"`); n != 3 {
			t.Errorf("%d lines of the cache", n)
		}
		if s := e.Stats(); s.GeneratedTokens != 14 || s.Finished["length"] != 7 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLessMetrics checks what can be missing.
func TestLessMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{NoStartTime: true})
		if w.lines("process_") != "" || w.lines("vllm:") == "" {
			t.Error(w.lines(""))
		}
		w.start(enginesim.Config{NoStats: true})
		if w.lines("process_start_time_seconds") == "" || w.lines("vllm:") != "" {
			t.Error(w.lines(""))
		}
	})
}

// TestRestart starts an engine again at its address: it is another one.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first, d := pair(w, func(p, _ *enginesim.Config) { p.EngineID = "" })
		kv := w.do(prefill(addrP, "r1", prompt)).handoff(t)
		if !strings.Contains(kv, `"remote_engine_id":"`+first.Stats().EngineID+`"`) {
			t.Error(kv)
		}
		first.Close()
		time.Sleep(time.Minute)
		second := w.start(enginesim.Config{Role: "prefill", Connector: "nixl", Advertise: addrP})
		if first.Stats().EngineID == second.Stats().EngineID {
			t.Error("the same engine id")
		}
		if a := w.do(decode(addrD, "r1", prompt, kv)); a.status != 500 {
			t.Errorf("%+v", a)
		}
		a := w.do(prefill(addrP, "r2", prompt))
		if kv := a.handoff(t); !strings.Contains(kv, `"remote_engine_id":"`+second.Stats().EngineID+`"`) || cached(t, a) != 0 {
			t.Error(kv)
		}
		clean(t, second)
		if d.Stats().FailedLoads != 1 {
			t.Errorf("%+v", d.Stats())
		}
		m := w.do(request{addr: addrP, method: "GET", path: "/metrics"}).body
		if !strings.Contains(m, "process_start_time_seconds 946684860.000\n") || !strings.Contains(m, `vllm:generation_tokens_total{engine="0",model_name="m"} 1.0`) {
			t.Error(m)
		}
	})
}
