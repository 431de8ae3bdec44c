package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/discovery/api"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// desk is the API on a mux, with the registry behind it.
type desk struct {
	t     *testing.T
	reg   *registry.Registry
	pools map[worker.Role]*worker.Pool
	mux   *http.ServeMux
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, reg: registry.New(), pools: make(map[worker.Role]*worker.Pool), mux: http.NewServeMux()}
	for _, role := range worker.Roles() {
		d.pools[role] = worker.NewPool(worker.PoolConfig{Role: role, Lister: d.reg})
	}
	(&api.API{Registry: d.reg, Pools: d.pools, Dialect: "nixl"}).Mount(d.mux)
	return d
}

// do sends one request and returns status and body.
func (d *desk) do(method, target, body string) (int, string) {
	d.t.Helper()
	w := httptest.NewRecorder()
	d.mux.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w.Code, strings.TrimSpace(w.Body.String())
}

func (d *desk) add(body string) (int, string) {
	d.t.Helper()
	return d.do("POST", "/workers", body)
}

// want checks status and body of an answer.
func (d *desk) want(status int, body string) func(int, string) {
	d.t.Helper()
	return func(gotStatus int, got string) {
		d.t.Helper()
		if gotStatus != status || got != body {
			d.t.Errorf("answered %d %s\nwant     %d %s", gotStatus, got, status, body)
		}
	}
}

// registered lists the labels of all roles.
func (d *desk) registered() []string {
	all := []string{}
	for _, role := range worker.Roles() {
		for _, r := range d.reg.List(role) {
			all = append(all, fmt.Sprintf("%v %s", role, r.ID.Label()))
		}
	}
	slices.Sort(all)
	return all
}

func (d *desk) wantRegistered(want ...string) {
	d.t.Helper()
	if got := d.registered(); !slices.Equal(got, want) {
		d.t.Errorf("registered %q, want %q", got, want)
	}
}

func TestAdd(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(200, `{"message":"worker http://a:8000 added","success":true,"worker":{"generation":1,"url":"http://a:8000","worker_type":"regular"}}`)(
		d.add(`{"url":"HTTP://A:8000/"}`))
	d.want(200, `{"message":"worker http://p:8000@1 added","success":true,"worker":{"generation":1,"url":"http://p:8000@1","worker_type":"prefill"}}`)(
		d.add(`{"url":"http://p:8000@1","worker_type":"prefill","bootstrap_port":8998,"model_id":"m","labels":{"group":"g"}}`))
	d.want(200, `{"message":"worker http://d:8000 added","success":true,"worker":{"generation":1,"url":"http://d:8000","worker_type":"decode"}}`)(
		d.add(`{"url":"http://d:8000","worker_type":"decode","kv_connector":"moriio"}`))
	d.want(200, `{"message":"worker http://a:8000 kept","success":true,"worker":{"generation":1,"url":"http://a:8000","worker_type":"regular"}}`)(
		d.add(`{"url":"http://a:8000","worker_type":"regular"}`))
	d.want(200, `{"message":"worker http://a:8000 updated","success":true,"worker":{"generation":1,"url":"http://a:8000","worker_type":"regular"}}`)(
		d.add(`{"url":"http://a:8000","labels":{"group":"g"}}`))
	d.want(200, `{"message":"worker http://d:8000 replaced","success":true,"worker":{"generation":2,"url":"http://d:8000","worker_type":"decode"}}`)(
		d.add(`{"url":"http://d:8000","worker_type":"decode"}`))

	for role, want := range map[worker.Role]string{worker.Regular: "", worker.Prefill: "nixl", worker.Decode: "nixl"} {
		r := d.reg.List(role)
		if len(r) != 1 || r[0].Endpoint.Dialect != want {
			t.Errorf("%v: %+v, want the dialect %q", role, r, want)
		}
	}
	if got := d.reg.List(worker.Prefill)[0].Labels["group"]; got != "g" {
		t.Errorf("group %q", got)
	}
	if got := d.reg.Sources(worker.Decode, "http://d:8000", 0); !slices.Equal(got, []string{"api"}) {
		t.Errorf("claimed by %q", got)
	}
}

func TestAddRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		body   string
		status int
		answer string // a part
	}{
		{"empty", "", 400, `"code":"INVALID_BODY"`},
		{"no JSON", "url=http://a", 400, `"code":"INVALID_BODY"`},
		{"cut off", `{"url":"http://a:8000"`, 400, `"code":"INVALID_BODY"`},
		{"list", `[{"url":"http://a:8000"}]`, 400, `"code":"INVALID_BODY"`},
		{"trailing garbage", `{"url":"http://a:8000"} x`, 400, `"code":"INVALID_BODY"`},
		{"second object", `{"url":"http://a:8000"}{"url":"http://b:8000"}`, 400, `"code":"INVALID_BODY"`},
		{"trailing bracket", `{"url":"http://a:8000"}]`, 400, `"code":"INVALID_BODY"`},
		{"too large", `{"url":"http://a:8000","x":"` + strings.Repeat("x", 1<<20) + `"}`, 413, `"code":"BODY_TOO_LARGE"`},
		{"null", "null", 400, "url is missing"},
		{"no url", `{"worker_type":"decode"}`, 400, "url is missing"},
		{"url of another type", `{"url":8000}`, 400, `"code":"INVALID_BODY"`},
		{"bad url", `{"url":"a:8000"}`, 400, `must start with http://`},
		{"bad rank", `{"url":"http://a:8000@x"}`, 400, "data-parallel rank"},
		{"role", `{"url":"http://a:8000","worker_type":"encode"}`, 400, `worker_type \"encode\" must be regular, prefill or decode`},
		{"role of another case", `{"url":"http://a:8000","worker_type":"Decode"}`, 400, "must be regular"},
		{"labels", `{"url":"http://a:8000","labels":{"group":1}}`, 400, `"code":"INVALID_BODY"`},
		{"ttl text", `{"url":"http://a:8000","ttl_secs":"10"}`, 400, `"code":"INVALID_BODY"`},
		{"ttl negative", `{"url":"http://a:8000","ttl_secs":-1}`, 400, "ttl_secs must be"},
		{"ttl too long", `{"url":"http://a:8000","ttl_secs":1e18}`, 400, "ttl_secs must be"},
		{"ttl too short to be one", `{"url":"http://a:8000","ttl_secs":1e-10}`, 400, "ttl_secs must be"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			status, got := d.add(tt.body)
			if status != tt.status || !strings.Contains(got, tt.answer) {
				t.Errorf("answered %d %s, want %d with %s", status, got, tt.status, tt.answer)
			}
			d.wantRegistered()
		})
	}
}

func TestRegistryFull(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for i := range registry.DefaultMaxEntries {
		reg := worker.Registration{ID: worker.ID{Role: worker.Decode, URL: fmt.Sprintf("http://a/%d", i)}}
		if _, _, err := d.reg.Register("test", reg, 0); err != nil {
			t.Fatal(err)
		}
	}
	d.want(409, `{"code":"ADD_WORKER_FAILED","error":"registry full"}`)(d.add(`{"url":"http://b","worker_type":"decode"}`))
	if status, _ := d.add(`{"url":"http://b"}`); status != 200 {
		t.Errorf("another role is full too: %d", status)
	}
}

// TestTTL: a worker that is added for a time leaves unless it is added again.
func TestTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		const forTen = `{"url":"http://a:8000","ttl_secs":10}`
		d.add(forTen)
		d.add(`{"url":"http://b:8000","ttl_secs":0.5}`)
		d.add(`{"url":"http://c:8000"}`)
		time.Sleep(499 * time.Millisecond)
		d.wantRegistered("regular http://a:8000", "regular http://b:8000", "regular http://c:8000")
		time.Sleep(time.Millisecond)
		d.wantRegistered("regular http://a:8000", "regular http://c:8000")

		for range 5 {
			time.Sleep(9 * time.Second)
			d.want(200, `{"message":"worker http://a:8000 kept","success":true,"worker":{"generation":1,"url":"http://a:8000","worker_type":"regular"}}`)(
				d.add(forTen))
		}
		time.Sleep(10 * time.Second)
		d.wantRegistered("regular http://c:8000")
		d.want(404, `{"code":"WORKER_NOT_FOUND","error":"worker http://a:8000 is not registered"}`)(
			d.do("DELETE", "/workers/http%3A%2F%2Fa%3A8000", ""))

		// L3: the next registration is another lifetime.
		d.want(200, `{"message":"worker http://a:8000 added","success":true,"worker":{"generation":4,"url":"http://a:8000","worker_type":"regular"}}`)(
			d.add(forTen))
		d.add(`{"url":"http://a:8000"}`) // for good from here on
		time.Sleep(time.Hour)
		d.wantRegistered("regular http://a:8000", "regular http://c:8000")
	})
}

func TestRemoveRoles(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	fill := func() {
		for _, role := range worker.Roles() {
			for _, at := range []string{"http://a:8000", "http://a:8000@1"} {
				d.add(fmt.Sprintf(`{"url":%q,"worker_type":%q}`, at, role))
			}
		}
	}
	target := "/workers/" + url.PathEscape("http://a:8000")
	fill()
	d.want(200, `{"message":"worker http://a:8000@1 removed","success":true}`)(d.do("DELETE", target+"%401?worker_type=decode", ""))
	d.wantRegistered("decode http://a:8000", "prefill http://a:8000", "prefill http://a:8000@1", "regular http://a:8000", "regular http://a:8000@1")
	d.want(404, `{"code":"WORKER_NOT_FOUND","error":"worker http://a:8000@1 is not registered"}`)(d.do("DELETE", target+"%401?worker_type=decode", ""))
	d.want(200, `{"message":"worker http://a:8000 removed","success":true}`)(d.do("DELETE", target, ""))
	d.wantRegistered() // all ranks of the URL
	d.want(400, `{"code":"INVALID_ROLE","error":"worker_type \"x\" must be regular, prefill or decode"}`)(d.do("DELETE", target+"?worker_type=x", ""))
	d.want(400, `{"code":"INVALID_URL","error":"worker URL \"a\": it must start with http:// or https://"}`)(d.do("DELETE", "/workers/a", ""))
	if status, _ := d.do("PUT", "/workers", ""); status != 405 {
		t.Errorf("PUT answered %d", status)
	}
}

// TestRemoveClaimed: what a flag would bring back is not removed, and neither is
// anything else of that URL.
func TestRemoveClaimed(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	flag := worker.Registration{ID: worker.ID{Role: worker.Decode, URL: "http://a:8000"}}
	if _, _, err := d.reg.Register("static", flag, 0); err != nil {
		t.Fatal(err)
	}
	target := "/workers/" + url.PathEscape("http://a:8000")
	refused := d.want(409, `{"code":"WORKER_CLAIMED","error":"decode worker http://a:8000 is also registered by [static] and would come back"}`)
	refused(d.do("DELETE", target, "")) // by the flag alone
	d.add(`{"url":"http://a:8000","worker_type":"decode"}`)
	d.add(`{"url":"http://a:8000"}`)
	refused(d.do("DELETE", target, ""))
	refused(d.do("DELETE", target+"?worker_type=decode", ""))
	d.wantRegistered("decode http://a:8000", "regular http://a:8000")
	d.want(200, `{"message":"worker http://a:8000 removed","success":true}`)(d.do("DELETE", target+"?worker_type=regular", ""))
	d.wantRegistered("decode http://a:8000")
}

// TestPaths: a worker is found by its URL, however the client writes it into
// the path.
func TestPaths(t *testing.T) {
	t.Parallel()
	tests := []struct{ url, path string }{
		{"http://a:8000", "http%3A%2F%2Fa%3A8000"},
		{"http://a:8000", "http:%2F%2Fa:8000"},
		{"http://a:8000", "http%3A%2F%2FA%3A8000%2F"},
		{"http://a:8000", "http%253A%252F%252Fa%253A8000"}, // twice, as some clients do
		{"http://a:8000", "http://a:8000"},
		{"http://a:8000", "http:/a:8000"},
		{"http://a:8000", "http://a:8000/"},
		{"https://a", "https://a"},
		{"https://a", "https%3A%2F%2Fa%3A443"},
		{"http://a:8000@1", "http%3A%2F%2Fa%3A8000%401"},
		{"http://a:8000@1", "http://a:8000@1"},
		{"http://a:8000@1", "http://a:8000%401"},
		{"http://a:8000/llm/v2", "http://a:8000/llm/v2"},
		{"http://a:8000/llm", "http%3A%2F%2Fa%3A8000%2Fllm"},
		{"http://a:8000/x%2Fy", "http%3A%2F%2Fa%3A8000%2Fx%252Fy"},
		{"http://[::1]:8000", "http%3A%2F%2F%5B%3A%3A1%5D%3A8000"},
		{"http://[::1]:8000", "http://[::1]:8000"},
		{"http://[fe80::1%25eth0]:8000", "http%3A%2F%2F%5Bfe80%3A%3A1%2525eth0%5D%3A8000"},
		{"http://[fe80::1%25eth0]:8000@3", "http://[fe80::1%25eth0]:8000@3"},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			if status, got := d.add(fmt.Sprintf(`{"url":%q}`, tt.url)); status != 200 {
				t.Fatal(got)
			}
			server := httptest.NewServer(d.mux)
			defer server.Close()
			req, err := http.NewRequest("DELETE", server.URL, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.URL.Opaque = "//" + req.URL.Host + "/workers/" + tt.path // sent as it is
			resp, err := server.Client().Do(req)                         // which follows the mux's 307
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != 200 || err != nil || !strings.Contains(string(body), "worker "+tt.url+" removed") {
				t.Errorf("answered %s %s, %v", resp.Status, body, err)
			}
			d.wantRegistered()
		})
	}
}

func TestReply(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	api.Fail(w, http.StatusTeapot, "CODE", "a < b & c")
	if got, want := w.Body.String(), `{"code":"CODE","error":"a < b & c"}`+"\n"; got != want {
		t.Errorf("body %s, want %s", got, want)
	}
	if w.Code != http.StatusTeapot || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("status %d, header %v", w.Code, w.Header())
	}
}
