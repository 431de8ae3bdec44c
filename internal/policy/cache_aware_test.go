package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// TestCacheAwareRules goes through the rules of vllm-router's cache_aware, which
// has max-min > abs and max > min*rel for "imbalanced", and states where this one
// differs. Every case has the workers a, b and c with some load; A is owned by
// the workers named, in that order.
func TestCacheAwareRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule   string
		load   [3]int // of a, b and c
		owners string
		down   string // workers that are not ready
		prompt string
		want   string
		reason string
	}{
		{
			rule: "2, 3: balanced by the absolute threshold alone: the owner",
			load: [3]int{0, 4, 0}, owners: "b", prompt: "A4000", want: "b", reason: "prefix",
		},
		{
			rule: "2, 3: balanced by the relative threshold alone: the owner",
			load: [3]int{12, 18, 12}, owners: "b", prompt: "A4000", want: "b", reason: "prefix",
		},
		{
			rule: "3: the owner is above both: the least loaded; there the first of equals, here the one picked longest ago",
			load: [3]int{1, 6, 1}, owners: "b", prompt: "A4000", want: "a", reason: "overload",
		},
		{
			rule: "3, different: somebody is above both, but not this owner: there affinity ends for all",
			load: [3]int{1, 2, 9}, owners: "b", prompt: "A4000", want: "b", reason: "prefix",
		},
		{
			rule: "3, different: one owner is above both, another one is not",
			load: [3]int{0, 9, 3}, owners: "bc", prompt: "A4000", want: "c", reason: "prefix",
		},
		{
			rule: "4, different: nothing known at all: the least loaded; there a random worker",
			load: [3]int{2, 1, 2}, prompt: "A4000", want: "b", reason: "load",
		},
		{
			rule: "5: no text has the match rate 0",
			load: [3]int{2, 2, 1}, owners: "b", prompt: "", want: "c", reason: "load",
		},
		{
			rule: "6: a rate above the threshold: the owner",
			load: [3]int{0, 1, 0}, owners: "b", prompt: "A4096X4096", want: "b", reason: "prefix",
		},
		{
			rule: "6: a rate of just the threshold, which must be more: the least loaded",
			load: [3]int{0, 1, 0}, owners: "b", prompt: "A4096X12288", want: "a", reason: "load",
		},
		{
			rule: "6, different: of two owners the less loaded; there the one that came last",
			load: [3]int{0, 3, 2}, owners: "cb", prompt: "A4000", want: "c", reason: "prefix",
		},
		{
			rule: "8, different: the owner is not ready: the least loaded; there the first worker, and all of the owner's affinity is gone",
			load: [3]int{1, 0, 0}, owners: "b", down: "b", prompt: "A4000", want: "c", reason: "load",
		},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			cfg := small()
			cfg.BalanceAbs, cfg.BalanceRel, cfg.CacheThreshold = 4, 1.5, 0.25
			p := policy.NewCacheAware(cfg)
			r := newRingOf(t, p, "a", "b", "c")
			for _, owner := range c.owners {
				r.own(p, string(owner), "A4096")
			}
			for i, n := range c.load {
				r.want(policy.LeastLoad{}, n, strings.Repeat(string(rune('a'+i)), n), others(string(rune('a'+i)))...)
			}
			for _, name := range c.down {
				r.worker(string(name)).Block(worker.Down)
			}
			request := &policy.Request{Source: &source{key: text(c.prompt)}}
			choice := p.Prepare(request, r.pool.Snapshot())
			grants, err := worker.Pick(worker.Need{Pool: r.pool, Take: worker.Acquire, Chooser: choice})
			if err != nil {
				t.Fatal(err)
			}
			if got := grants[0].Worker(); got != r.worker(c.want) || choice.Why(got).Reason != c.reason {
				t.Errorf("chose %s (%s), want %s (%s)", got.Label(), choice.Why(got).Reason, c.want, c.reason)
			}
		})
	}
}

func others(name string) []string {
	return strings.Split(strings.Trim(strings.ReplaceAll(strings.ReplaceAll("a,b,c", name, ""), ",,", ","), ","), ",")
}

// own makes a worker an owner of a prompt.
func (r *ring) own(p policy.Policy, name, prompt string) {
	r.t.Helper()
	request := &policy.Request{Source: &source{key: text(prompt)}}
	choice := p.Prepare(request, r.pool.Snapshot())
	choice.Keep(r.worker(name))
	request.Done()
}

// TestCacheAwareRule1 is rule 1: without a candidate there is no choice.
func TestCacheAwareRule1(t *testing.T) {
	t.Parallel()
	p := policy.NewCacheAware(small())
	r := newRingOf(t, p)
	choice := p.Prepare(&policy.Request{Source: &source{key: text("A4000")}}, r.pool.Snapshot())
	if _, err := worker.Pick(worker.Need{Pool: r.pool, Take: worker.Acquire, Chooser: choice}); !errors.Is(err, worker.ErrNone) {
		t.Errorf("error %v", err)
	}
}

// TestCacheAwareRule7 is rule 7: whoever is chosen owns the prompt from then on,
// also when the choice was by load, and the owners before it still do.
func TestCacheAwareRule7(t *testing.T) {
	t.Parallel()
	for _, p := range []policy.Policy{policy.NewCacheAware(small()), policy.NewLeastWait(small())} {
		r := newRingOf(t, p, "a", "b", "c")
		src := &source{key: text("A4000")}
		for _, step := range []struct{ except, want string }{{"", "a"}, {"", "a"}, {"a", "b"}, {"c", "b"}} {
			var except []string
			if step.except != "" {
				except = []string{step.except}
			}
			got, grant := r.pickFor(p, src, except...)
			if got != step.want {
				t.Errorf("%s without %q: chose %s, want %s", p.Name(), step.except, got, step.want)
			}
			if step.except == "" {
				defer grant.Lease.Release()
			} else {
				grant.Lease.Release()
			}
		}
	}
}
