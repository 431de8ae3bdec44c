// Package admin is the operator's side of the router: the worker list with its
// true figures, and collectors that show the same to Prometheus. It changes
// nothing; what changes workers is mounted beside it.
package admin

import (
	"net/http"
	"time"

	"github.com/baton-llm/baton/internal/breaker"
	"github.com/baton-llm/baton/internal/discovery/api"
	"github.com/baton-llm/baton/internal/health"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// Admin answers questions about workers.
type Admin struct {
	Pools    map[worker.Role]*worker.Pool
	Registry *registry.Registry
	Health   *health.Checker
	Breaker  *breaker.Breaker
}

// Mount adds the routes to an admin mux.
func (a *Admin) Mount(mux api.Mux) {
	mux.HandleFunc("GET /workers", a.list)
	mux.HandleFunc("GET /workers/{worker...}", a.one)
	mux.HandleFunc("GET /list_workers", a.urls)
	mux.HandleFunc("GET /get_loads", a.loads)
}

// view is one worker as GET /workers shows it. The first fields are those of
// vllm-router.
type view struct {
	URL            string            `json:"url"` // with @rank
	ModelID        string            `json:"model_id"`
	WorkerType     string            `json:"worker_type"`
	IsHealthy      bool              `json:"is_healthy"` // fit for new work, be it as the last resort
	Load           int64             `json:"load"`       // leases now
	ConnectionMode string            `json:"connection_mode"`
	Generation     worker.Generation `json:"generation"`
	State          string            `json:"state"` // ready, or the reasons why not
	Holds          int64             `json:"holds"`
	Picked         uint64            `json:"picked"`
	WaitingTokens  int64             `json:"waiting_tokens"`
	HeldTokens     int64             `json:"held_tokens"`
	Models         []string          `json:"models"` // null: any
	Dialect        string            `json:"kv_connector,omitempty"`
	ZMQ            string            `json:"zmq_address,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Sources        []string          `json:"sources"`
	LastError      string            `json:"last_error,omitempty"`
	Drained        bool              `json:"drained,omitempty"` // draining, and no work left
	Breaker        string            `json:"breaker"`           // closed, open or half_open
	ForeignLoad    int64             `json:"foreign_load"`      // requests on the engine that are not this router's
	Engine         *engineView       `json:"engine,omitempty"`  // absent until the engine's metrics have been read
}

// engineView are the engine's own figures.
type engineView struct {
	Running     int64   `json:"running"`
	Waiting     int64   `json:"waiting"`
	KVUsage     float64 `json:"kv_usage"` // 0 to 1
	CacheTokens int64   `json:"cache_tokens"`
	AgeSecs     float64 `json:"age_secs"`
}

func (a *Admin) view(w *worker.Worker) view {
	id, work, models := w.ID(), w.Work(), w.Models().Names()
	v := view{
		URL: id.Label(), ModelID: "unknown", WorkerType: id.Role.String(), IsHealthy: w.Blocked().Ready(),
		Load: w.Load(), ConnectionMode: "Http", Generation: id.Generation, State: w.Blocked().String(),
		Holds: w.Holds(), Picked: w.Picked(), WaitingTokens: work.Waiting, HeldTokens: work.Held,
		Models: models, Dialect: w.Endpoint().Dialect, ZMQ: w.Endpoint().ZMQ, Labels: w.Labels(),
		Sources: a.Registry.Sources(id.Role, id.URL, id.Rank), LastError: a.Health.LastError(w),
	}
	if len(models) > 0 {
		v.ModelID = models[0]
	}
	v.Drained, v.ForeignLoad = api.Drained(w), w.Foreign()
	v.Breaker = a.Breaker.State(w).String()
	if e := w.Engine(); e != nil {
		v.Engine = &engineView{e.Running, e.Waiting, e.KVUsage, e.CacheTokens, time.Since(e.At).Seconds()}
	}
	return v
}

func (a *Admin) list(w http.ResponseWriter, _ *http.Request) {
	views := []view{}
	stats := map[string]int{}
	for _, role := range worker.Roles() {
		workers := a.Pools[role].Snapshot().Workers
		stats[role.String()+"_count"] = len(workers)
		for _, wk := range workers {
			views = append(views, a.view(wk))
		}
	}
	api.Reply(w, http.StatusOK, map[string]any{"workers": views, "total": len(views), "stats": stats})
}

// one answers with the workers of one URL, in any role: with @rank that rank,
// without it all.
func (a *Admin) one(w http.ResponseWriter, r *http.Request) {
	base, rank, err := api.Target(r)
	if err != nil {
		api.Fail(w, http.StatusBadRequest, "INVALID_URL", err.Error())
		return
	}
	views := []view{}
	for _, role := range worker.Roles() {
		for _, wk := range a.Pools[role].Snapshot().Workers {
			if id := wk.ID(); id.URL == base && (rank == 0 || id.Rank == rank) {
				views = append(views, a.view(wk))
			}
		}
	}
	switch len(views) {
	case 0:
		label := worker.ID{URL: base, Rank: rank}.Label()
		api.Fail(w, http.StatusNotFound, "WORKER_NOT_FOUND", "worker "+label+" not found")
	case 1:
		api.Reply(w, http.StatusOK, views[0])
	default:
		api.Reply(w, http.StatusOK, map[string]any{"workers": views, "total": len(views)})
	}
}

// urls answers with the labels alone, as vllm-router does.
func (a *Admin) urls(w http.ResponseWriter, _ *http.Request) {
	urls := []string{}
	for _, role := range worker.Roles() {
		for _, wk := range a.Pools[role].Snapshot().Workers {
			urls = append(urls, wk.Label())
		}
	}
	api.Reply(w, http.StatusOK, map[string]any{"urls": urls})
}

// loads answers with the load of each worker, as vllm-router does: leases, and
// what others have put on the engine as far as its metrics tell.
func (a *Admin) loads(w http.ResponseWriter, _ *http.Request) {
	type load struct {
		Worker string `json:"worker"`
		Load   int64  `json:"load"`
	}
	loads := []load{}
	for _, role := range worker.Roles() {
		for _, wk := range a.Pools[role].Snapshot().Workers {
			loads = append(loads, load{wk.Label(), wk.Load() + wk.Foreign()})
		}
	}
	api.Reply(w, http.StatusOK, map[string]any{"workers": loads})
}
