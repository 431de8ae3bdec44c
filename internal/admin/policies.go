package admin

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-llm/baton/internal/discovery/api"
	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/prefix"
	"github.com/baton-llm/baton/internal/worker"
)

// Policies are the policies of the roles, as far as they keep something.
type Policies struct {
	ByRole map[worker.Role]policy.Policy
	Pools  map[worker.Role]*worker.Pool
}

var _ prometheus.Collector = Policies{}

// Mount adds the route by which clients end a session, that of the proposal
// vllm-project/router#235.
func (p Policies) Mount(mux api.Mux) {
	mux.HandleFunc("POST /finish_session", p.finish)
}

// finish forgets a session in every role whose policy is sticky. It answers 200
// also for a session that is not known, and 400 without ?session_id=.
func (p Policies) finish(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("session_id")
	if id == "" {
		api.Fail(w, http.StatusBadRequest, "SESSION_ID_MISSING", "the query needs session_id, the name of the session to forget")
		return
	}
	for _, of := range p.ByRole {
		if s, ok := of.(*policy.Sticky); ok {
			s.Finish(id)
		}
	}
	api.Reply(w, http.StatusOK, map[string]string{"status": "ok", "session_id": id})
}

// indexed is a policy with a prefix index.
type indexed interface{ IndexStats() prefix.Stats }

var roleLabel = []string{"role"}

var (
	sessionsDesc = prometheus.NewDesc("baton_sessions",
		"Sessions that the sticky policy remembers.", roleLabel, nil)
	workerSessionsDesc = prometheus.NewDesc("baton_worker_sessions",
		"Sessions that the worker is home to under the sticky policy.", workerLabels, nil)
	indexBytesDesc = prometheus.NewDesc("baton_prefix_index_bytes",
		"Memory of the prefix index, taken once when the role gets its first worker.", roleLabel, nil)
	indexUsedDesc = prometheus.NewDesc("baton_prefix_index_used_bytes",
		"The part of the prefix index in use.", roleLabel, nil)
	indexKeyBytesDesc = prometheus.NewDesc("baton_prefix_index_key_bytes",
		"Length of the prefixes that workers are known to have been sent, counted for each worker.", roleLabel, nil)
	indexEvictedDesc = prometheus.NewDesc("baton_prefix_index_evicted_total",
		"Blocks of living workers that the prefix index forgot to make room.", roleLabel, nil)
)

// Describe implements [prometheus.Collector].
func (p Policies) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		sessionsDesc, workerSessionsDesc, indexBytesDesc, indexUsedDesc, indexKeyBytesDesc, indexEvictedDesc,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector]. A role has the series of its own
// policy only.
func (p Policies) Collect(ch chan<- prometheus.Metric) {
	metric := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for role, of := range p.ByRole {
		if s, ok := of.(*policy.Sticky); ok {
			metric(sessionsDesc, prometheus.GaugeValue, float64(s.Sessions()), role.String())
			for _, w := range p.Pools[role].Snapshot().Workers {
				metric(workerSessionsDesc, prometheus.GaugeValue, float64(s.HomeOf(w)), role.String(), w.Label())
			}
		}
		if i, ok := of.(indexed); ok {
			stats := i.IndexStats()
			if stats.Bytes == 0 {
				continue
			}
			metric(indexBytesDesc, prometheus.GaugeValue, float64(stats.Bytes), role.String())
			metric(indexUsedDesc, prometheus.GaugeValue, float64(stats.Used), role.String())
			metric(indexKeyBytesDesc, prometheus.GaugeValue, float64(stats.KeyBytes), role.String())
			metric(indexEvictedDesc, prometheus.CounterValue, float64(stats.Evicted), role.String())
		}
	}
}
