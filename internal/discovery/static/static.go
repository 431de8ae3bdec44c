// Package static is the source of workers named on the command line. It
// registers them once, for good.
package static

import (
	"fmt"

	"github.com/baton-llm/baton/internal/discovery"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// Source is the name under which flags claim workers.
const Source = "static"

// Config lists the workers, as users write their URLs.
type Config struct {
	Regular, Prefill, Decode []string
	Dialect                  string // of prefill and decode workers
	Ranks                    int    // data-parallel ranks of an engine named without one; 0 or 1: none
}

// Register announces all workers. It announces none if any URL is wrong or
// named twice in one role.
func Register(cfg Config, reg *registry.Registry) error {
	var all []worker.Registration
	seen := map[worker.ID]string{}
	for _, list := range []struct {
		role worker.Role
		flag string
		urls []string
	}{
		{worker.Regular, "--worker-urls", cfg.Regular},
		{worker.Prefill, "--prefill", cfg.Prefill},
		{worker.Decode, "--decode", cfg.Decode},
	} {
		for _, raw := range list.urls {
			base, rank, err := discovery.ParseURL(raw)
			if err != nil {
				return fmt.Errorf("%s: %w", list.flag, err)
			}
			for _, rank := range discovery.Ranks(rank, cfg.Ranks) {
				id := worker.ID{Role: list.role, URL: base, Rank: rank}
				if first, ok := seen[id]; ok {
					return fmt.Errorf("%s: %q and %q are the same worker", list.flag, first, raw)
				}
				seen[id] = raw
				r := worker.Registration{ID: id}
				if list.role != worker.Regular {
					r.Endpoint.Dialect = cfg.Dialect
				}
				all = append(all, r)
			}
		}
	}
	for _, r := range all {
		if _, _, err := reg.Register(Source, r, 0); err != nil {
			return fmt.Errorf("worker %s: %w", r.ID.Label(), err)
		}
	}
	return nil
}
