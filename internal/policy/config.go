package policy

import (
	"errors"
	"time"

	"github.com/baton-llm/baton/internal/worker"
)

// Config is what policies are made with. Each uses what it needs of it.
type Config struct {
	Role worker.Role // of the workers to choose from

	CacheThreshold float64 // share of a prompt that must match for cache_aware to follow it
	BalanceAbs     int64   // requests above the least loaded that cache_aware takes for balanced
	BalanceRel     float64 // the same as a multiple
	TokenWindow    int64   // tokens above the least wait within which least_wait prefers the longest match
	MaxTreeSize    int64   // bytes of prompts remembered of a worker whose KV capacity is not known
	IndexMemory    int64   // bytes of the prefix index

	SessionTTL  time.Duration // for which sticky remembers an idle session
	MaxSessions int           // that sticky remembers
}

// DefaultConfig returns the configuration used unless flags say otherwise.
func DefaultConfig() Config {
	return Config{
		Role:           worker.Regular,
		CacheThreshold: 0.3,
		BalanceAbs:     64,
		BalanceRel:     1.5,
		TokenWindow:    8192,
		MaxTreeSize:    64 << 20,
		IndexMemory:    64 << 20,
		SessionTTL:     2 * time.Hour,
		MaxSessions:    1 << 18,
	}
}

// Validate names the first value that makes no sense.
func (c *Config) Validate() error {
	for _, v := range []struct {
		bad  bool
		text string
	}{
		{!(c.CacheThreshold >= 0 && c.CacheThreshold <= 1), "--cache-threshold must be from 0 to 1"},
		{c.BalanceAbs < 0, "--balance-abs-threshold must not be negative"},
		{!(c.BalanceRel >= 1 && c.BalanceRel <= maxRel), "--balance-rel-threshold must be from 1 to 1000000"},
		{c.TokenWindow < 0, "--balance-token-window must not be negative"},
		{c.MaxTreeSize <= 0, "--max-tree-size must be above 0"},
		{c.IndexMemory <= 0, "--prefix-index-memory must be above 0"},
		{c.SessionTTL <= 0, "--session-ttl must be above 0"},
		{c.MaxSessions <= 0, "--max-sessions must be above 0"},
	} {
		if v.bad {
			return errors.New(v.text)
		}
	}
	return nil
}

const maxRel = 1e6

// window is a range of load: w is inside iff n(w) - min <= abs or
// n(w) <= rel x min. The multiple is in thousandths, for use under a lock.
type window struct{ abs, rel int64 }

func newWindow(abs int64, rel float64) window { return window{abs, int64(rel * 1000)} }

func (w window) inside(n, least int64) bool { return n-least <= w.abs || n*1000 <= w.rel*least }
