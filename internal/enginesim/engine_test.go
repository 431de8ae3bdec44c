package enginesim_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

const ms = time.Millisecond

// cached returns how many tokens of the prompt an answer had in the cache.
func cached(t *testing.T, a answer) any {
	t.Helper()
	return a.get(t, "usage", "prompt_tokens_details", "cached_tokens")
}

func comp(id, prompt string, tokens int) request {
	return request{id: id, body: string(object("prompt", prompt, "max_tokens", tokens))}
}

func TestPrefixCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{Models: []string{"m", "lora=m"}})
		p := strings.Repeat("a", 40)
		for i, tt := range []struct {
			body string
			want int
		}{
			{`{"prompt":"` + p + `","max_tokens":1}`, 0},
			{`{"prompt":"` + p + `","max_tokens":1}`, 32},
			{`{"prompt":"` + p[:32] + `","max_tokens":1}`, 16}, // the last token is always computed
			{`{"prompt":"` + p[:33] + `","max_tokens":1}`, 32},
			{`{"prompt":"` + p[:20] + `bbbbbbbbbbbbbbbbbbbb","max_tokens":1}`, 16},
			{`{"prompt":"b` + p + `","max_tokens":1}`, 0},
			{`{"prompt":"` + p + `","max_tokens":1,"cache_salt":"s"}`, 0},
			{`{"prompt":"` + p + `","max_tokens":1,"model":"lora"}`, 0},
			{`{"prompt":"` + p + `","max_tokens":1,"model":"lora"}`, 32},
		} {
			if got := cached(t, w.do(request{id: strconv.Itoa(i), body: tt.body})); got != tt.want {
				t.Errorf("%d %s: %v cached, want %d", i, tt.body, got, tt.want)
			}
		}
		if s := e.Stats(); s.UsedBlocks != 0 || s.Running != 0 || s.CachedTokens != 32+16+32+16+32 {
			t.Errorf("%+v", s)
		}
	})
}

// TestNextTurn checks that generated text is in the cache for the next turn.
func TestNextTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{DefaultTokens: 60})
		chat := func(id string, messages ...any) answer {
			return w.do(request{path: "/v1/chat/completions", id: id, body: string(object("messages", messages))})
		}
		user := map[string]any{"role": "user", "content": "tell me more about it"}
		a := chat("1", user)
		said, _ := a.get(t, "choices", 0, "message", "content").(string)
		if len(said) != 59 || a.get(t, "choices", 0, "finish_reason") != "stop" {
			t.Fatal(a.body)
		}
		first := a.get(t, "usage", "prompt_tokens").(int)
		b := chat("2", user, map[string]any{"role": "assistant", "content": said}, user)
		if got, want := cached(t, b), (first+len(said))/16*16; got != want {
			t.Errorf("%v cached, want %d", got, want)
		}
	})
}

func TestEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{Blocks: 7}) // 6 to use
		pa, pb, pc := strings.Repeat("a", 33), strings.Repeat("b", 33), strings.Repeat("c", 33)
		w.do(comp("1", pa, 1))
		w.do(comp("2", pb, 1))
		if got := cached(t, w.do(comp("3", pa, 1))); got != 32 { // a is newer than b now
			t.Errorf("a: %v cached", got)
		}
		w.do(comp("4", pc, 1)) // takes the empty blocks and the end of b
		if got := cached(t, w.do(comp("5", pa, 1))); got != 32 {
			t.Errorf("a again: %v cached", got)
		}
		if got := cached(t, w.do(comp("6", pb, 1))); got != 16 {
			t.Errorf("b: %v cached", got)
		}
	})
}

func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{PrefillBase: 10 * ms, PrefillPerToken: ms, DecodePerToken: 5 * ms})
		took := func(q request) time.Duration {
			start := time.Now()
			if a := w.do(q); a.status != 200 {
				t.Fatal(a)
			}
			return time.Since(start)
		}
		p := strings.Repeat("p", 40)
		if got := took(comp("1", p, 4)); got != 10*ms+40*ms+3*5*ms {
			t.Errorf("cold: %v", got)
		}
		if got := took(comp("2", p, 4)); got != 10*ms+8*ms+3*5*ms {
			t.Errorf("warm: %v", got)
		}
		start := time.Now()
		q := comp("3", "x"+p, 4)
		q.body = strings.Replace(q.body, "{", `{"stream":true,`, 1)
		resp, err := w.client.Do(q.build(t.Context(), t))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := time.Since(start); got != 0 {
			t.Errorf("the head of a stream after %v", got)
		}
		b := make([]byte, 4096)
		if _, err := resp.Body.Read(b); err != nil || time.Since(start) != 51*ms {
			t.Errorf("first event after %v, %v", time.Since(start), err)
		}
		if _, err := resp.Body.Read(b); err != nil || time.Since(start) != 56*ms {
			t.Errorf("second event after %v, %v", time.Since(start), err)
		}
		r := e.Requests()[2]
		if r.Arrival.Sub(start) != 0 || r.FirstByte.Sub(start) != 51*ms || !r.End.IsZero() || r.Outcome != "" || r.Status != 200 {
			t.Errorf("%+v", r)
		}
	})
}

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{MaxSeqs: 2, PrefillBase: 100 * ms})
		var order []int
		var all []<-chan answer
		for i := range 5 {
			all = append(all, w.later(t.Context(), comp(fmt.Sprint("q", i), fmt.Sprint("p", i), 1)))
			synctest.Wait()
		}
		if s := e.Stats(); s.Running != 2 || s.Waiting != 3 {
			t.Errorf("%d running, %d waiting", s.Running, s.Waiting)
		}
		text := w.do(request{method: "GET", path: "/metrics"}).body
		for _, want := range []string{
			`vllm:num_requests_running{engine="0",model_name="m"} 2.0`,
			`vllm:num_requests_waiting{engine="0",model_name="m"} 3.0`,
			`vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.000488`,
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s", want)
			}
		}
		start := time.Now()
		for i, ch := range all {
			if a := <-ch; a.status != 200 {
				t.Fatal(a)
			}
			order = append(order, int(time.Since(start)/(100*ms)))
			_ = i
		}
		if got := fmt.Sprint(order); got != "[1 1 2 2 3]" {
			t.Errorf("ended at %s x 100 ms", got)
		}
	})
}

// TestBlocksQueue checks that requests wait for blocks, not only for sequences.
func TestBlocksQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{Blocks: 5, PrefillBase: 100 * ms})
		a := w.later(t.Context(), comp("1", strings.Repeat("a", 40), 1))
		synctest.Wait()
		b := w.later(t.Context(), comp("2", strings.Repeat("b", 40), 1))
		synctest.Wait()
		c := w.later(t.Context(), comp("3", "c", 1)) // would fit, but comes after b
		synctest.Wait()
		if s := e.Stats(); s.Running != 1 || s.Waiting != 2 || s.UsedBlocks != 3 {
			t.Errorf("%+v", s)
		}
		for _, ch := range []<-chan answer{a, b, c} {
			if r := <-ch; r.status != 200 {
				t.Error(r)
			}
		}
	})
}

// TestQueueHeadLeaves checks that what waits behind a request that is too big for
// now goes on when that one leaves.
func TestQueueHeadLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{Blocks: 5, PrefillBase: time.Second})
		w.later(t.Context(), comp("1", strings.Repeat("a", 40), 1))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		w.later(ctx, comp("2", strings.Repeat("b", 40), 1))
		synctest.Wait()
		start := time.Now()
		if a := w.do(comp("3", "c", 1)); a.status != 200 || time.Since(start) != 1100*ms {
			t.Errorf("%v %+v", time.Since(start), a)
		}
	})
}

// TestCachedBlocksAreFree checks that hits in the free list are not counted as
// free for the rest of the prompt.
func TestCachedBlocksAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{Blocks: 6, PrefillBase: time.Second}) // 5 to use
		a := strings.Repeat("a", 32)
		w.do(comp("1", a+"a", 1)) // leaves 2 blocks
		w.later(t.Context(), comp("2", strings.Repeat("b", 32), 1))
		synctest.Wait() // takes 2 of the other 3
		ch := w.later(t.Context(), comp("3", a+strings.Repeat("c", 32), 1))
		synctest.Wait() // needs those 2 and 2 more, of which there is 1
		if s := e.Stats(); s.Waiting != 1 || s.UsedBlocks != 2 {
			t.Errorf("%+v", s)
		}
		if got := cached(t, <-ch); got != 32 {
			t.Errorf("%v cached", got)
		}
	})
}

func TestPrefillSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{PrefillSlots: 1, PrefillBase: 100 * ms})
		start := time.Now()
		a := w.later(t.Context(), comp("1", "a", 1))
		b := w.later(t.Context(), comp("2", "b", 1))
		<-a
		<-b
		if got := time.Since(start); got != 200*ms {
			t.Errorf("two prefills took %v", got)
		}
	})
}

// TestDeparture checks that a client that leaves ends its request at once,
// wherever that is.
func TestDeparture(t *testing.T) {
	cfg := enginesim.Config{MaxSeqs: 1, PrefillBase: time.Second, DecodePerToken: time.Second}
	for _, stream := range []bool{false, true} {
		for _, when := range []time.Duration{0, 500 * ms, 2500 * ms} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				e := w.start(cfg)
				ctx, cancel := context.WithCancel(t.Context())
				q := request{id: "1", body: string(object("prompt", "hello world, hello world", "max_tokens", 10, "stream", stream))}
				ch := w.later(ctx, q)
				synctest.Wait()
				queued := w.later(t.Context(), comp("2", "next", 1))
				time.Sleep(when)
				synctest.Wait()
				cancel()
				<-ch
				synctest.Wait()
				r := e.Requests()[0]
				if r.Outcome != enginesim.OutcomeAbort || r.End.Sub(r.Arrival) != when {
					t.Errorf("stream %v, %v: outcome %q after %v", stream, when, r.Outcome, r.End.Sub(r.Arrival))
				}
				s := e.Stats()
				if s.Running != 1 || s.Waiting != 0 || s.UsedBlocks != 1 || s.Finished["abort"] != 1 {
					t.Errorf("stream %v, %v: %+v", stream, when, s)
				}
				<-queued
			})
		}
	}
}

// TestDepartureFromQueue checks the same for a request that was not admitted.
func TestDepartureFromQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{MaxSeqs: 1, PrefillBase: time.Second})
		first := w.later(t.Context(), comp("1", "a", 1))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		w.doContext(ctx, comp("2", "b", 1))
		synctest.Wait()
		if s := e.Stats(); s.Waiting != 0 || s.Running != 1 || s.Outcomes["abort"] != 1 {
			t.Errorf("%+v", s)
		}
		<-first
	})
}

// TestClose checks that a closed engine answers what it has, as vLLM does.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{DecodePerToken: time.Second})
		e.Fault(enginesim.Fault{RequestID: "hang", Action: "hang"})
		plain := w.later(t.Context(), comp("1", "a", 100))
		stream := w.later(t.Context(), request{id: "2", body: `{"prompt":"a","max_tokens":100,"stream":true}`})
		hung := w.later(t.Context(), comp("hang", "a", 1))
		time.Sleep(2500 * ms)
		e.Close()
		a := <-plain
		if a.get(t, "choices", 0, "finish_reason") != "abort" || len(a.text(t)) != 3 || a.status != 200 {
			t.Errorf("%+v", a)
		}
		if b := <-stream; !strings.Contains(b.body, `"finish_reason":"abort"`) || b.err != nil {
			t.Errorf("%+v", b)
		}
		if c := <-hung; c.err == nil {
			t.Errorf("%+v", c)
		}
		if d := w.do(comp("4", "a", 1)); d.err == nil {
			t.Errorf("after Close: %+v", d)
		}
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		w.do(request{path: "/sleep?level=2"})
		if text := w.do(request{method: "GET", path: "/metrics"}).body; !strings.Contains(text, `sleep_state="discard_all"} 1.0`) {
			t.Error(text)
		}
		ch := w.later(t.Context(), comp("1", "a", 1))
		synctest.Wait()
		if s := e.Stats(); !s.Sleeping || s.Waiting != 1 {
			t.Errorf("%+v", s)
		}
		w.do(request{path: "/wake_up"})
		if a := <-ch; a.status != 200 {
			t.Error(a)
		}
	})
}

func TestSameAnswerEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{Advertise: "a:1"})
		w.start(enginesim.Config{Advertise: "b:1", Role: enginesim.RoleDecode})
		texts := map[string]bool{}
		for i, addr := range []string{"a:1", "b:1", "a:1"} {
			q := comp(strconv.Itoa(i), "hello", 40)
			q.addr = addr
			texts[w.do(q).text(t)] = true
			q.id += "s"
			q.body = strings.Replace(q.body, "{", `{"stream":true,`, 1)
			text, done := w.do(q).sse(t)
			texts[text] = done
		}
		if len(texts) != 1 {
			t.Errorf("%v", texts)
		}
		if other := w.do(request{addr: "a:1", body: `{"prompt":"hellp","max_tokens":40}`}).text(t); texts[other] {
			t.Error("another prompt has the same answer")
		}
	})
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{})
		whole := w.do(comp("1", "hello", 40)).text(t)
		stop := whole[7:10]
		at := strings.Index(whole, stop)
		q := request{id: "2", body: string(object("prompt", "hello", "max_tokens", 40, "stop", []string{"~~", stop}))}
		a := w.do(q)
		if a.text(t) != whole[:at] || a.get(t, "choices", 0, "stop_reason") != stop ||
			a.get(t, "choices", 0, "finish_reason") != "stop" || a.get(t, "usage", "completion_tokens") != at+3 {
			t.Errorf("%s, want %q", a.body, whole[:at])
		}
		q.body = strings.Replace(q.body, "{", `{"stream":true,`, 1)
		q.id = "3"
		if text, done := w.do(q).sse(t); text != whole[:at] || !done {
			t.Errorf("%q, want %q", text, whole[:at])
		}
	})
}
