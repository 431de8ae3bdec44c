package dispatch_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// atOnce is the carrier of a worker that has its answer ready.
type atOnce struct{ answer string }

func (c atOnce) Send(context.Context, exchange.Head, []byte) (*exchange.Answer, error) {
	return &exchange.Answer{
		Status: http.StatusOK, Fields: exchange.Fields{{Name: "Content-Type", Value: "application/json"}},
		Body: io.NopCloser(strings.NewReader(c.answer)),
	}, nil
}

// BenchmarkRequest is all that the router does with a request but for HTTP: it
// scans the body, picks among the workers, writes the legs and relays the answer.
// Prompts are of 2 KB, one in two continues an earlier one.
func BenchmarkRequest(b *testing.B) {
	for _, plan := range []string{"plain", "pairs"} {
		for _, workers := range []int{4, 64} {
			for _, name := range []string{"least_wait", "round_robin"} {
				b.Run(fmt.Sprintf("%s/workers=%d/%s", plan, workers, name), func(b *testing.B) { benchRequest(b, plan, workers, name) })
			}
		}
	}
}

func benchRequest(b *testing.B, plan string, workers int, name string) {
	reg, pools := registry.New(), make(map[worker.Role]*worker.Pool)
	policies, dialects := make(map[worker.Role]policy.Policy), pd.Set{pd.NewNIXL(pd.NIXLValidity)}
	breakers := breaker.New(breaker.Default(), nil)
	d := dispatch.New(dispatch.Default(), dispatch.Deps{
		Pools: pools, Policies: policies, Dialects: dialects, Health: quiet{}, Breaker: breakers, Logger: slog.New(slog.DiscardHandler),
		NewCarrier: func(string) (exchange.Carrier, error) { return atOnce{prefillAnswer("")}, nil },
	})
	for _, role := range worker.Roles() {
		cfg := policy.DefaultConfig()
		cfg.Role = role
		p, err := policy.New(name, cfg)
		if err != nil {
			b.Fatal(err)
		}
		policies[role] = p
		observers := []worker.Observer{d, breakers}
		if o, ok := p.(worker.Observer); ok {
			observers = append(observers, o)
		}
		pools[role] = worker.NewPool(worker.PoolConfig{Role: role, Lister: reg, Observers: observers, Dialects: dialects.Bits})
	}
	for i := range workers {
		roles := []worker.Role{worker.Regular}
		if plan == "pairs" {
			roles = []worker.Role{worker.Prefill, worker.Decode}
		}
		for _, role := range roles {
			id := worker.ID{Role: role, URL: fmt.Sprintf("http://%v-%d:8000", role, i)}
			if _, _, err := reg.Register("bench", worker.Registration{ID: id, Endpoint: worker.Endpoint{Dialect: "nixl"}}, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	route := openai.FindRoute("/v1/chat/completions", nil)
	filler := strings.Repeat("all work and no play ", 100)
	body := func(i int) []byte {
		return fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":"%08d %s"}],"max_tokens":16}`, i/2, filler)
	}
	bodies := make([][]byte, 1<<12)
	for i := range bodies {
		bodies[i] = body(i)
	}
	head := exchange.Head{Method: http.MethodPost, Target: route.Path, Fields: exchange.Fields{{Name: "Content-Type", Value: "application/json"}}}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		req := new(openai.Request)
		if err := req.ParseJSON(route, bodies[i%len(bodies)]); err != nil {
			b.Fatal(err)
		}
		i++
		if out := d.Do(context.Background(), &dispatch.Call{Request: req, ID: "r", Head: head}, discarding{}); out.Err != nil {
			b.Fatal(out.Err)
		}
	}
}
