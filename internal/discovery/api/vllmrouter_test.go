package api_test

import (
	"net/http"
	"testing"

	"github.com/baton-llm/baton/internal/discovery/api"
	"github.com/baton-llm/baton/internal/worker"
)

// TestVLLMRouterRoutes: scripts made for vllm-router add and remove workers by their
// URL.
func TestVLLMRouterRoutes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	if _, _, err := d.reg.Register("flags", worker.Registration{ID: worker.ID{Role: worker.Decode, URL: "http://f:8000"}}, 0); err != nil {
		t.Fatal(err)
	}
	d.want(200, "Successfully added worker: http://a:8000")(d.do("POST", "/add_worker?url=http://a:8000", ""))
	d.want(200, "Successfully added worker: http://b:8000@0")(d.do("POST", "/add_worker?url=http%3A%2F%2Fb%3A8000%400", ""))
	d.want(200, "Successfully added worker: http://b:8000@1")(d.do("POST", "/add_worker?url=http://b:8000@1", ""))
	d.want(400, "Worker http://a:8000 already exists")(d.do("POST", "/add_worker?url=http://a:8000/", ""))
	d.want(400, "url is missing")(d.do("POST", "/add_worker", ""))
	d.want(400, `worker URL "a:8000": it must start with http:// or https://`)(d.do("POST", "/add_worker?url=a:8000", ""))
	d.wantRegistered("decode http://f:8000", "regular http://a:8000", "regular http://b:8000@0", "regular http://b:8000@1")
	d.want(200, "Successfully removed worker: http://a:8000")(d.do("POST", "/remove_worker?url=http://a:8000", ""))
	d.want(200, "Successfully removed worker: http://a:8000")(d.do("POST", "/remove_worker?url=http://a:8000", ""))
	d.want(200, "Successfully removed worker: http://b:8000")(d.do("POST", "/remove_worker?url=http://b:8000", ""))
	d.want(409, "decode worker http://f:8000 is also registered by [flags] and would come back")(d.do("POST", "/remove_worker?url=http://f:8000", ""))
	d.want(400, `worker URL "": it must start with http:// or https://`)(d.do("POST", "/remove_worker", ""))
	d.wantRegistered("decode http://f:8000")
	if status, _ := d.do("GET", "/add_worker?url=http://c:8000", ""); status != 405 {
		t.Errorf("GET /add_worker answered %d", status)
	}
}

// TestRanks: an engine named without a rank stands for all of its ranks when they
// are added and when they are removed.
func TestRanks(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.mux = http.NewServeMux()
	(&api.API{Registry: d.reg, Pools: d.pools, Dialect: "nixl", Ranks: 2}).Mount(d.mux)
	d.want(200, `{"message":"2 ranks of http://a:8000 registered","success":true,"worker":{"generation":1,"url":"http://a:8000@0","worker_type":"regular"},`+
		`"workers":[{"generation":1,"url":"http://a:8000@0","worker_type":"regular"},{"generation":2,"url":"http://a:8000@1","worker_type":"regular"}]}`)(
		d.add(`{"url":"http://a:8000"}`))
	d.want(200, `{"message":"worker http://b:8000@1 added","success":true,"worker":{"generation":1,"url":"http://b:8000@1","worker_type":"decode"}}`)(
		d.add(`{"url":"http://b:8000@1","worker_type":"decode"}`))
	d.wantRegistered("decode http://b:8000@1", "regular http://a:8000@0", "regular http://a:8000@1")
	d.want(400, "Worker http://a:8000 already exists")(d.do("POST", "/add_worker?url=http://a:8000", ""))
	d.want(200, `{"message":"worker http://a:8000@1 removed","success":true}`)(d.do("DELETE", "/workers/http:%2F%2Fa:8000@1", ""))
	d.want(200, "Successfully added worker: http://a:8000")(d.do("POST", "/add_worker?url=http://a:8000", ""))
	d.wantRegistered("decode http://b:8000@1", "regular http://a:8000@0", "regular http://a:8000@1")
	d.want(200, `{"message":"worker http://a:8000 removed","success":true}`)(d.do("DELETE", "/workers/http:%2F%2Fa:8000", ""))
	d.wantRegistered("decode http://b:8000@1")
}
