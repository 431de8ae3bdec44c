package static_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/discovery/static"
	"github.com/baton-llm/baton/internal/registry"
	"github.com/baton-llm/baton/internal/worker"
)

// registered lists what the registry holds, by role.
func registered(reg *registry.Registry) []string {
	var all []string
	for _, role := range worker.Roles() {
		regs := reg.List(role)
		slices.SortFunc(regs, func(a, b worker.Registration) int { return cmp.Compare(a.ID.Label(), b.ID.Label()) })
		for _, r := range regs {
			all = append(all, fmt.Sprintf("%v %s dialect=%s %v", role, r.ID.Label(), r.Endpoint.Dialect,
				reg.Sources(role, r.ID.URL, r.ID.Rank)))
		}
	}
	return all
}

func TestRegister(t *testing.T) {
	t.Parallel()
	reg := registry.New()
	err := static.Register(static.Config{
		Regular: []string{"http://a:8000", "http://b:8000@0", "http://b:8000@1"},
		Prefill: []string{"https://P.example/"},
		Decode:  []string{"http://a:8000", "http://d:8000"}, // also regular: another worker
		Dialect: "nixl",
	}, reg)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"regular http://a:8000 dialect= [static]",
		"regular http://b:8000@0 dialect= [static]",
		"regular http://b:8000@1 dialect= [static]",
		"prefill https://p.example dialect=nixl [static]",
		"decode http://a:8000 dialect=nixl [static]",
		"decode http://d:8000 dialect=nixl [static]",
	}
	if got := registered(reg); !slices.Equal(got, want) {
		t.Errorf("registered\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestRanks is --intra-node-data-parallel-size: an engine named without a rank
// stands for all of its ranks.
func TestRanks(t *testing.T) {
	t.Parallel()
	reg := registry.New()
	cfg := static.Config{Regular: []string{"http://a:8000", "http://b:8000@5"}, Decode: []string{"http://a:8000"}, Dialect: "nixl", Ranks: 2}
	if err := static.Register(cfg, reg); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"regular http://a:8000@0 dialect= [static]",
		"regular http://a:8000@1 dialect= [static]",
		"regular http://b:8000@5 dialect= [static]",
		"decode http://a:8000@0 dialect=nixl [static]",
		"decode http://a:8000@1 dialect=nixl [static]",
	}
	if got := registered(reg); !slices.Equal(got, want) {
		t.Errorf("registered\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	cfg.Regular = []string{"http://a:8000", "http://a:8000@1"}
	if err := static.Register(cfg, registry.New()); err == nil || !strings.Contains(err.Error(), "http://a:8000@1") {
		t.Errorf("a rank named besides its engine: %v", err)
	}
}

func TestRegisterNothing(t *testing.T) {
	t.Parallel()
	reg := registry.New()
	if err := static.Register(static.Config{Dialect: "nixl"}, reg); err != nil {
		t.Error(err)
	}
	if got := registered(reg); got != nil {
		t.Errorf("registered %v", got)
	}
}

// TestErrorsNameTheFlag: a mistake anywhere registers nobody.
func TestErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	good := []string{"http://a:8000"}
	tests := []struct {
		name string
		cfg  static.Config
		want string
	}{
		{
			"regular",
			static.Config{Regular: []string{"http://b:8000", "b:8000"}, Decode: good},
			`--worker-urls: worker URL "b:8000": it must start with http:// or https://`,
		},
		{
			"prefill",
			static.Config{Regular: good, Prefill: []string{""}, Decode: good},
			`--prefill: worker URL "": it must start with http:// or https://`,
		},
		{
			"decode",
			static.Config{Regular: good, Prefill: good, Decode: []string{"http://d:0"}},
			`--decode: worker URL "http://d:0": its port must be between 1 and 65535`,
		},
		{
			"duplicate",
			static.Config{Regular: good, Decode: []string{"http://d", "http://e", "HTTP://D:80/"}},
			`--decode: "http://d" and "HTTP://D:80/" are the same worker`,
		},
		{
			"duplicate rank",
			static.Config{Prefill: []string{"http://d@1", "http://d/@01"}},
			`--prefill: "http://d@1" and "http://d/@01" are the same worker`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reg := registry.New()
			err := static.Register(tt.cfg, reg)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if got := registered(reg); got != nil {
				t.Errorf("registered %v", got)
			}
		})
	}
}

func TestRegistryFull(t *testing.T) {
	t.Parallel()
	var urls []string
	for i := range registry.DefaultMaxEntries + 1 {
		urls = append(urls, fmt.Sprintf("http://a/%d", i))
	}
	err := static.Register(static.Config{Decode: urls}, registry.New())
	if want := fmt.Sprintf("worker http://a/%d: registry full", registry.DefaultMaxEntries); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
