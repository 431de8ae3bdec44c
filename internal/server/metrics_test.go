package server_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/worker"
)

// series returns the value of a series, 0 if it is not there.
func (f *fleet) series(name string) float64 {
	f.t.Helper()
	for line := range strings.Lines(f.scrape()) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				f.t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// wantSeries compares the values of some series, histograms' sums to the
// microsecond.
func (f *fleet) wantSeries(want map[string]float64) {
	f.t.Helper()
	for name, v := range want {
		if got := f.series(name); got < v-1e-6 || got > v+1e-6 {
			f.t.Errorf("%s is %v, want %v", name, got, v)
		}
	}
}

// streamed makes a request's body ask for a stream.
func streamed(body string) string { return strings.Replace(body, "{", `{"stream":true,`, 1) }

// TestPhases: the phases of a request add up to its time, a stream's hand-off is
// told from its decoding, and an answer in one piece has no time of a first token.
func TestPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := pdEngines()
		engines[0].PrefillBase = 100 * time.Millisecond
		engines[1].DecodePerToken = 10 * time.Millisecond
		f := start(t, options{engines: engines})
		undo := f.engines[1].Fault(enginesim.Fault{Point: "headers", Action: "delay", Delay: 40 * time.Millisecond})
		if a := f.post("/v1/completions", streamed(comp)); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		undo()
		streamed := map[string]float64{
			`baton_phase_duration_seconds_sum{phase="prefill"}`:       .1,
			`baton_phase_duration_seconds_sum{phase="handoff"}`:       .05,
			`baton_phase_duration_seconds_sum{phase="decode"}`:        .04 + 4*.01,
			`baton_first_token_seconds_sum{route="completions"}`:      .1 + .05,
			`baton_request_duration_seconds_sum{route="completions"}`: .1 + .04 + 4*.01,
			`baton_phase_duration_seconds_count{phase="handoff"}`:     1,
			`baton_first_token_seconds_count{route="completions"}`:    1,
		}
		f.wantSeries(streamed)
		if a := f.post("/v1/completions", comp); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		f.wantSeries(map[string]float64{
			`baton_phase_duration_seconds_sum{phase="prefill"}`:    .1 + .1,
			`baton_phase_duration_seconds_sum{phase="decode"}`:     .08 + .04,
			`baton_phase_duration_seconds_count{phase="decode"}`:   2,
			`baton_phase_duration_seconds_count{phase="handoff"}`:  1,
			`baton_first_token_seconds_count{route="completions"}`: 1,
		})
	})
}

// TestPhasesOfFailures: a request that failed has no phases, and one tried again
// those of the last try.
func TestPhasesOfFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := append(pdEngines(), pdEngines()[0])
		engines[0].PrefillBase, engines[2].PrefillBase = time.Second, time.Second
		engines[1].DecodePerToken = time.Millisecond
		f := start(t, options{engines: engines})
		f.engines[1].Fault(enginesim.Fault{Action: "status", Status: 500, Times: 1})
		if a := f.post("/v1/completions", comp); a.status != 500 {
			t.Errorf("%+v", a)
		}
		f.engines[1].Fault(enginesim.Fault{Action: "cut", Point: "chunk:2", Times: 1})
		if a := f.post("/v1/completions", streamed(comp)); a.err == nil {
			t.Errorf("%+v", a)
		}
		f.wantSeries(map[string]float64{`baton_phase_duration_seconds_count{phase="prefill"}`: 0})
		for _, i := range []int{0, 2} { // whichever comes first
			f.engines[i].Fault(enginesim.Fault{Action: "status", Status: 500, Times: 1})
		}
		if a := f.post("/v1/completions", comp); a.status != 502 {
			t.Errorf("%+v", a)
		}
		f.wantSeries(map[string]float64{
			`vllm_router_retries_total{route="/v1/completions"}`:           1,
			`vllm_router_retries_exhausted_total{route="/v1/completions"}`: 1,
			`baton_phase_duration_seconds_count{phase="prefill"}`:          0,
		})
		f.engines[0].Fault(enginesim.Fault{Action: "status", Status: 500, Times: 1})
		for range 2 { // one of them begins there
			if a := f.post("/v1/completions", comp); a.status != 200 {
				t.Errorf("%+v", a)
			}
		}
		f.wantSeries(map[string]float64{
			`vllm_router_retries_total{route="/v1/completions"}`:           2,
			`vllm_router_retries_exhausted_total{route="/v1/completions"}`: 1,
			`baton_phase_duration_seconds_count{phase="prefill"}`:          2,
			`baton_phase_duration_seconds_sum{phase="prefill"}`:            2,
		})
		time.Sleep(time.Minute) // hand-offs of failed requests expire
	})
}

// TestVLLMRouterMetrics: requests are counted under vllm-router's names as well,
// each in the series where its users look for it.
func TestVLLMRouterMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{engines: pdEngines()})
		f.engines[1].Fault(enginesim.Fault{Action: "delay", Delay: 7 * time.Second, Point: "headers"})
		for range 2 {
			if a := f.post("/v1/chat/completions", chatBody("hi")); a.status != 200 {
				t.Fatalf("%+v", a)
			}
		}
		f.engines[1].Fault(enginesim.Fault{Action: "status", Status: 500, Path: "/v1/completions"})
		f.post("/v1/completions", comp)
		f.post("/v1/completions", `{"model":"m"}`) // 400
		f.post("/v1/completions", "[]")            // 400, of the router
		f.post("/v1/future", "{}")                 // 501
		f.post("/scan.php", "{}")                  // 404
		f.wantSeries(map[string]float64{
			`vllm_router_requests_total{route="/v1/chat/completions"}`:                                    2,
			`vllm_router_request_duration_seconds_sum{route="/v1/chat/completions"}`:                      14,
			`vllm_router_generate_duration_seconds_sum`:                                                   14,
			`vllm_router_generate_duration_seconds_bucket{le="5"}`:                                        0,
			`vllm_router_generate_duration_seconds_bucket{le="10"}`:                                       2,
			`vllm_router_pd_requests_total{route="/v1/chat/completions"}`:                                 2,
			`vllm_router_pd_request_duration_seconds_sum{route="/v1/chat/completions"}`:                   14,
			`vllm_router_requests_total{route="/v1/completions"}`:                                         0,
			`vllm_router_request_errors_total{error_type="non_retryable_error",route="/v1/completions"}`:  3,
			`vllm_router_pd_requests_total{route="/v1/completions"}`:                                      0,
			`vllm_router_pd_errors_total{error_type="non_retryable_error"}`:                               2,
			`vllm_router_request_errors_total{error_type="non_retryable_error",route="other"}`:            1,
			`vllm_router_request_errors_total{error_type="no_available_workers",route="/v1/completions"}`: 0,
			`baton_requests_total{route="unserved",status="404"}`:                                         1,
			`vllm_router_embeddings_total`:                                                                0,
		})
		f.pools[worker.Decode].Snapshot().Workers[0].Block(worker.Down)
		f.post("/v1/completions", comp)
		f.wantSeries(map[string]float64{
			`vllm_router_request_errors_total{error_type="no_available_workers",route="/v1/completions"}`: 1,
		})
		f.post("/v1/embeddings", `{"model":"m","input":"hi"}`)
		f.wantSeries(map[string]float64{`vllm_router_embeddings_total`: 1, `vllm_router_embeddings_errors_total{error_type="http_500"}`: 0})
		f.engines[0].Fault(enginesim.Fault{Action: "status", Status: 500, Path: "/v1/embeddings"})
		f.post("/v1/embeddings", `{"model":"m","input":"hi"}`)
		f.wantSeries(map[string]float64{`vllm_router_embeddings_total`: 1, `vllm_router_embeddings_errors_total{error_type="http_500"}`: 1})
		time.Sleep(time.Minute) // hand-offs of failed requests expire
	})
}

// TestLegEnds: each leg counts once, as what it came to, and not before its end.
func TestLegEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{engines: []enginesim.Config{{DecodePerToken: time.Second}}})
		want := func(ends ...uint64) {
			t.Helper()
			got := f.dispatcher.Legs(f.pools[worker.Regular].Snapshot().Workers[0])
			if !slices.Equal(got[:], ends) {
				t.Errorf("legs %v, want %v", got, ends)
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		over := make(chan answer)
		go func() { over <- f.do(f.request("POST", "/v1/completions", streamed(comp)).WithContext(ctx)) }()
		time.Sleep(1500 * time.Millisecond)
		want(0, 0, 0, 0, 0)
		leave()
		<-over
		synctest.Wait()
		want(0, 0, 0, 0, 1)
		f.post("/v1/completions", comp)
		want(1, 0, 0, 0, 1)
		f.post("/v1/completions", `{"model":"m"}`)
		want(1, 1, 0, 0, 1)
		f.engines[0].Fault(enginesim.Fault{Action: "status", Status: 500, Times: 1})
		f.post("/v1/completions", comp)
		want(1, 1, 1, 0, 1)
		f.engines[0].Fault(enginesim.Fault{Action: "cut", Point: "chunk:2", Times: 1})
		f.post("/v1/completions", streamed(comp))
		want(1, 1, 1, 1, 1)
		f.engines[0].Fault(enginesim.Fault{Action: "cut", Point: "headers", Times: 1})
		f.post("/v1/completions", comp)
		want(1, 1, 2, 1, 1)
	})
}

// A status that is none makes no label.
func TestMetricsOfOddStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		f.engines[0].Fault(enginesim.Fault{Action: "raw", Body: "HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n"})
		if a := f.post("/v1/completions", comp); a.status != 799 {
			t.Errorf("%+v", a)
		}
		f.wantSeries(map[string]float64{`baton_requests_total{route="completions",status="other"}`: 1})
	})
}
