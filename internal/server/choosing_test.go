package server_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// load returns the leases on all workers of a role.
func (f *fleet) load(role worker.Role) (n int64) {
	for _, w := range f.pools[role].Snapshot().Workers {
		n += w.Load()
	}
	return n
}

// picked returns how often each worker of a role was chosen, in the order of
// their positions.
func (f *fleet) picked(role worker.Role) (n []uint64) {
	for _, w := range f.pools[role].Snapshot().Workers {
		n = append(n, w.Picked())
	}
	return n
}

// fleetOf makes n prefill and n decode engines, or n regular ones.
func fleetOf(n int, paired bool) (engines []enginesim.Config) {
	for range n {
		if paired {
			engines = append(engines, pdEngines()...)
		} else {
			engines = append(engines, enginesim.Config{})
		}
	}
	return engines
}

// bodyFor is a request that suits every path well enough to be sent to a worker.
const bodyFor = `{"model":"m","prompt":"hi","messages":[{"role":"user","content":"hi"}],"input":"hi","token_ids":[1],"sampling_params":{}}`

// TestEveryPathCounts is cases 3.3 and 3.7: a request is load on its worker for as
// long as it runs, whatever its path, streamed or not, on one worker or on two.
func TestEveryPathCounts(t *testing.T) {
	for _, paired := range []bool{false, true} {
		for _, path := range append(openai.RoutePaths(), "/v1/unheard/of") {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s paired %t stream %t", path, paired, stream), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := start(t, options{engines: fleetOf(1, paired)})
						for _, e := range f.engines {
							e.Fault(enginesim.Fault{Path: "*", Action: "delay", Delay: 20 * time.Second})
						}
						body := bodyFor
						if stream {
							body = streamed(body)
						}
						over := make(chan answer, 1)
						go func() {
							over <- f.post(strings.TrimSuffix(path, "/")+"x"[:strings.Count(path[len(path)-1:], "/")], body)
						}()
						time.Sleep(10 * time.Second)
						var during int64
						for _, role := range worker.Roles() {
							during += f.load(role)
						}
						a := <-over
						served := a.code() != "not_served_in_pd" && a.code() != "path_not_served"
						if served != (during == 1) {
							t.Errorf("load %d while it ran; %+v", during, a)
						}
						f.settle()
						for _, role := range worker.Roles() {
							if n := f.load(role); n != 0 {
								t.Errorf("load %d of %v afterwards", n, role)
							}
						}
					})
				})
			}
		}
	}
}

// TestLoadOfLongStreams is cases 3.8 and 3.29: a stream is load on its decode worker
// until its last byte, for ten minutes if need be.
func TestLoadOfLongStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := pdEngines()
		engines[1].DecodePerToken = 200 * time.Second
		f := start(t, options{engines: engines})
		over := make(chan answer)
		go func() { over <- f.post("/v1/completions", streamed(comp)) }()
		for minute := range 13 {
			time.Sleep(time.Minute - time.Second)
			if p, d := f.load(worker.Prefill), f.load(worker.Decode); p != 0 || d != 1 {
				t.Errorf("minute %d: load %d on prefill, %d on decode", minute, p, d)
			}
			time.Sleep(time.Second)
		}
		if a := <-over; a.status != 200 || a.err != nil {
			t.Errorf("%+v", a)
		}
		if d := f.load(worker.Decode); d != 0 {
			t.Errorf("load %d on decode at the end", d)
		}
	})
}

// TestLoadOfOddEnds is cases 3.9 and 3.38: an error whose body never comes, a
// stalled stream whose client has left, a reset from both sides at once; each
// attempt has a lease of its own, given back once.
func TestLoadOfOddEnds(t *testing.T) {
	half := "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\n0123456789"
	for name, fault := range map[string]enginesim.Fault{
		"half an error, then the end": {Action: "raw", Body: half},
		"half an error, then nothing": {},
		"stalled stream":              {Action: "hang", Point: "chunk:2"},
		"reset stream":                {Action: "reset", Point: "chunk:2", MidEvent: true},
		"stalled before the head":     {Action: "hang", Point: "headers"},
	} {
		for _, paired := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, paired %t", name, paired), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := options{engines: fleetOf(2, paired)}
					if fault.Action == "" {
						o.carrier = func(c exchange.Carrier) exchange.Carrier { return stalling{c} }
					}
					f := start(t, o)
					if fault.Action != "" {
						for _, e := range f.engines {
							defer e.Fault(fault)()
						}
					}
					var wg sync.WaitGroup
					for i := range 40 {
						wg.Go(func() {
							// Some leave early, some while it stalls, some not at all.
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%4)*20*time.Minute+time.Millisecond)
							defer cancel()
							f.do(f.request("POST", "/v1/completions", streamed(comp)).WithContext(ctx))
						})
					}
					wg.Wait()
					synctest.Wait()
					for _, role := range worker.Roles() {
						for _, w := range f.pools[role].Snapshot().Workers {
							if w.Load() != 0 || w.Work() != (worker.Work{}) || w.Holds() != 0 {
								t.Errorf("%v: load %d, holds %d, %+v", w.ID(), w.Load(), w.Holds(), w.Work())
							}
						}
					}
					time.Sleep(time.Minute) // hand-offs of failed requests expire
				})
			})
		}
	}
}

// stalling makes of each answer a 500 whose body stalls after its first bytes.
type stalling struct{ exchange.Carrier }

func (s stalling) Send(ctx context.Context, h exchange.Head, body []byte) (*exchange.Answer, error) {
	a, err := s.Carrier.Send(ctx, h, body)
	if err == nil {
		a.Status, a.Body = 500, &stalledBody{ReadCloser: a.Body, ctx: ctx, first: "0123456789"}
	}
	return a, err
}

type stalledBody struct {
	io.ReadCloser

	ctx   context.Context //nolint:containedctx // the exchange's own
	first string
}

func (b *stalledBody) Read(p []byte) (int, error) {
	if n := copy(p, b.first); n > 0 {
		b.first = b.first[n:]
		return n, nil
	}
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

// TestPrefixStaysTogether is case 3.4: with prefill and decode too, requests that
// share a prefix go to the prefill worker that has it, and the metrics show how
// much of them matched.
func TestPrefixStaysTogether(t *testing.T) {
	for _, name := range []string{"least_wait", "cache_aware"} {
		for _, paired := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s paired %t", name, paired), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := start(t, options{engines: fleetOf(3, paired), choose: name})
					prefix := strings.Repeat("prefix, ", 500)
					for i := range 20 {
						if a := f.post("/v1/chat/completions", chatBody(prefix+fmt.Sprint("question ", i))); a.status != 200 {
							t.Fatalf("%+v", a)
						}
						time.Sleep(time.Second)
					}
					role := worker.Regular
					if paired {
						role = worker.Prefill
					}
					if got := f.picked(role); slices.Max(got) != 20 {
						t.Errorf("picked %v", got)
					}
					key := f.series(fmt.Sprintf(`baton_prefix_key_bytes_total{role="%v"}`, role))
					matched := f.series(fmt.Sprintf(`baton_prefix_matched_bytes_total{role="%v"}`, role))
					if matched < .9*key || matched > key {
						t.Errorf("%v of %v bytes matched", matched, key)
					}
					f.wantSeries(map[string]float64{fmt.Sprintf(`baton_picks_total{policy=%q,reason="prefix",role="%v"}`, name, role): 19})
				})
			})
		}
	}
}

// TestDeadOwner is case 3.13: when the worker that has the prefix, or the session,
// dies, the very next request succeeds on another one, and no further request is
// sent to the dead one.
func TestDeadOwner(t *testing.T) {
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{engines: fleetOf(3, false), choose: name})
				ask := func() answer {
					return f.post("/v1/chat/completions", chatBody(strings.Repeat("prefix, ", 500)), "X-Session-Id", "s")
				}
				if a := ask(); a.status != 200 {
					t.Fatalf("%+v", a)
				}
				owner := slices.Index(f.picked(worker.Regular), 1)
				f.net.Kill(f.addrs[owner])
				for i := range 21 {
					if a := ask(); a.status != 200 {
						t.Errorf("request %d: %+v", i, a)
					}
				}
				if got := f.picked(worker.Regular)[owner]; got > 2 {
					t.Errorf("%d legs to the dead worker", got-1)
				}
			})
		})
	}
}

// TestSessionsInPairs is case 3.35: the session header counts with prefill and
// decode as well: each session has one prefill and one decode worker.
func TestSessionsInPairs(t *testing.T) {
	for _, name := range []string{"consistent_hash", "rendezvous_hash", "sticky"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{engines: fleetOf(4, true), choose: name})
				homes := map[string][2]string{}
				for i := range 40 {
					session := fmt.Sprint("s", i%5)
					if a := f.post("/v1/chat/completions", chatBody(fmt.Sprint("turn ", i)), "X-Session-Id", session); a.status != 200 {
						t.Fatalf("%+v", a)
					}
					synctest.Wait() // the line is written last
					lines := f.lines("request")
					var home [2]string
					for at, leg := range []string{"prefill_leg", "decode_leg"} {
						home[at] = lines[len(lines)-1][leg].(map[string]any)["worker"].(string)
					}
					if old, ok := homes[session]; ok && old != home {
						t.Errorf("%s moved from %v to %v", session, old, home)
					}
					homes[session] = home
				}
				if len(homes) != 5 {
					t.Errorf("homes %v", homes)
				}
			})
		})
	}
}

// TestPolicyRemembers is case 3.21, but for the reload: a policy lives as long as
// its pool. What request 1 taught it counts for request 1,000.
func TestPolicyRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{engines: fleetOf(4, false), choose: "sticky"})
		for i := range 1000 {
			session := fmt.Sprint("s", i%4)
			if a := f.post("/v1/completions", comp, "X-Session-Id", session); a.status != 200 {
				t.Fatalf("%+v", a)
			}
		}
		if got := f.picked(worker.Regular); !slices.Equal(got, []uint64{250, 250, 250, 250}) {
			t.Errorf("picked %v", got)
		}
	})
}

// TestUnicodePrompts is case 3.33: however a prompt is written, it reaches the
// worker byte for byte, and two ways to write one text share a prefix.
func TestUnicodePrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{engines: fleetOf(2, false), choose: "least_wait"})
		ask := func(text string) {
			t.Helper()
			body := `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"` + text + `"}]}`
			if a := f.post("/v1/chat/completions", body); a.status != 200 && a.status != 400 {
				t.Errorf("%.60q: %+v", text, a)
			}
			synctest.Wait()
			if !slices.ContainsFunc(f.arrived(), func(r enginesim.Record) bool { return r.Body == body }) {
				t.Errorf("no worker was sent %.60q as it was written", text)
			}
		}
		matched := func() float64 { return f.series(`baton_prefix_matched_bytes_total{role="regular"}`) }
		for _, pair := range [][2]string{
			{strings.Repeat("你", 2000), strings.Repeat(`\u4f60`, 2000)},
			{strings.Repeat("👩‍🚀", 600), strings.Repeat(`\ud83d\udc69\u200d\uD83D\uDE80`, 600)},
			{strings.Repeat("a/b", 2000), strings.Repeat(`a\/b`, 2000)},
			{strings.Repeat("aé", 2000), strings.Repeat("aé", 2000) + "è"},
		} {
			ask(pair[0])
			before := matched()
			ask(pair[1])
			if got := matched() - before; got < 5000 {
				t.Errorf("%v bytes of %.20q matched %.20q", got, pair[1], pair[0])
			}
		}
		for _, odd := range []string{`\ud83d`, `\ude00\ud83d`, `\u0000`, "\xff\xfe\xc3", "\xc3", `\ud83dx`, "a\xe4\xbd"} {
			ask(strings.Repeat(odd, 500))
		}
	})
}
