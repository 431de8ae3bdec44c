package pd_test

import (
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/pd"
	"github.com/baton-llm/baton/internal/worker"
)

// registered lists fixed registrations of one role.
type registered []worker.Registration

func (r registered) Stamp(worker.Role) uint64               { return 1 }
func (r registered) List(worker.Role) []worker.Registration { return append(registered(nil), r...) }

func newWorker(role worker.Role, url string, rank worker.Rank) *worker.Worker {
	pool := worker.NewPool(worker.PoolConfig{Role: role, Lister: registered{{
		ID:       worker.ID{Role: role, URL: url, Rank: rank, Generation: 1},
		Endpoint: worker.Endpoint{Dialect: "nixl"},
	}}})
	pool.Reconcile()
	return pool.Snapshot().Workers[0]
}

// pair returns a pair of workers for a request to path.
func pair(t *testing.T, path, body string) *pd.Pair {
	t.Helper()
	r := new(openai.Request)
	route := openai.FindRoute(path, nil)
	if route == nil {
		t.Fatalf("%s is not served", path)
	}
	if err := r.ParseJSON(route, []byte(body)); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return &pd.Pair{
		Request: r, ID: "id-1",
		Prefill: newWorker(worker.Prefill, "http://p:8000", worker.AtRank(3)),
		Decode:  newWorker(worker.Decode, "http://d:8000", 0),
	}
}

// ask is what a prefill leg asks for, as vLLM's own proxies write it.
const ask = `{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// params are hand-off parameters with what a router must not touch: order, white
// space, number forms, integers that are no float64, and keys of the future.
const params = `{ "do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[9007199254740993,2]],` +
	`"remote_engine_id":"e1","future":{"a":1.0,"é":"\u00e9<&>","b":[1e400,-0]},"remote_port":5600 }`

// golden fills in what the tables of legs leave out.
func golden(s string) string {
	return strings.NewReplacer("ASK", ask, "KV", params).Replace(s)
}
