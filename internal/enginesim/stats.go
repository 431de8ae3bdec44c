package enginesim

import (
	"maps"
)

// Stats is a picture of an engine.
type Stats struct {
	// Role and EngineID are those of the Config.
	Role     string `json:"role"`
	EngineID string `json:"engine_id"`
	// Running and Waiting are sequences; those that wait for remote blocks wait.
	Running int `json:"running"`
	Waiting int `json:"waiting"`
	// Connections are open now, ConnectionsTotal were ever opened. Only the server
	// of NewServer counts them.
	Connections      int `json:"connections"`
	ConnectionsTotal int `json:"connections_total"`
	// UsedBlocks are held by requests or hand-offs, PinnedBlocks by hand-offs (a
	// block of two hand-offs counts twice), Blocks is the size of the pool.
	UsedBlocks   int `json:"used_blocks"`
	PinnedBlocks int `json:"pinned_blocks"`
	Blocks       int `json:"blocks"`
	// PinnedHandoffs were given and are not over yet. The others count all that
	// were ever given, collected by decode, given back unused, and expired.
	PinnedHandoffs    int `json:"pinned_handoffs"`
	HandoffsProduced  int `json:"handoffs_produced"`
	HandoffsCollected int `json:"handoffs_collected"`
	HandoffsFreed     int `json:"handoffs_freed"`
	HandoffsExpired   int `json:"handoffs_expired"`
	// P2PUnclaimed are prompts that a p2p decode engine has received and for which no
	// decode leg has come: they stay until one does.
	P2PUnclaimed int `json:"p2p_unclaimed"`
	// DecodesWaiting are decode legs that wait at this moriio prefill engine for their
	// blocks to be written.
	DecodesWaiting int `json:"decodes_waiting"`
	// FailedLoads are hand-offs that could not be loaded here.
	FailedLoads int `json:"failed_loads"`
	// IgnoredKV counts kv_transfer_params that had no effect: no connector, or not
	// inside sampling_params.extra_args of /inference/v1/generate.
	IgnoredKV int `json:"ignored_kv"`
	// PromptTokens and GeneratedTokens were processed; CachedTokens of the former
	// were in the prefix cache, RemoteTokens came from another engine.
	PromptTokens    int `json:"prompt_tokens"`
	GeneratedTokens int `json:"generated_tokens"`
	CachedTokens    int `json:"cached_tokens"`
	RemoteTokens    int `json:"remote_tokens"`
	// Preemptions counts steps for which there was no free block.
	Preemptions int `json:"preemptions"`
	// Paths counts requests by path, Outcomes those that are over by outcome, and
	// Finished sequences by finish reason.
	Paths    map[string]int `json:"paths"`
	Outcomes map[string]int `json:"outcomes"`
	Finished map[string]int `json:"finished"`
	// Gates tells how many requests wait at each gate.
	Gates map[string]int `json:"gates"`
	// Violations are the first things that a correct router would not have done;
	// ViolationCount counts them all.
	Violations     []string `json:"violations"`
	ViolationCount int      `json:"violation_count"`
	// Sleeping, Paused and Scaling tell the state that the engine was put into.
	Sleeping bool `json:"sleeping"`
	Paused   bool `json:"paused"`
	Scaling  bool `json:"scaling"`
	// Halted tells that all requests stand still; Dead that the engine has died, and
	// answers nothing until Revive.
	Halted bool `json:"halted"`
	Dead   bool `json:"dead"`
	// PingsPaused tells whether registrations are held back.
	PingsPaused bool `json:"pings_paused"`
}

// Stats returns a picture of the engine, exact at this moment.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Stats{Role: e.cfg.Role, EngineID: e.cfg.EngineID}
	e.conn.statsLocked(&s) // first: it ends what has expired
	n, r := e.count, e.sumLocked()
	s.Running, s.Waiting = r.running-r.loading, r.waiting+r.loading
	s.Connections, s.ConnectionsTotal = len(e.conns), e.connsTotal
	s.UsedBlocks, s.Blocks = e.cache.used(), e.cfg.Blocks
	s.HandoffsProduced, s.HandoffsCollected = n.produced, n.collected
	s.HandoffsFreed, s.HandoffsExpired = n.freed, n.expired
	s.FailedLoads, s.IgnoredKV = n.failedLoads, n.ignoredKV
	s.PromptTokens, s.GeneratedTokens = r.promptTokens, r.generatedTokens
	s.CachedTokens, s.RemoteTokens = r.cacheHits, r.remoteHits
	s.Preemptions = r.preemptions
	s.Paths, s.Outcomes, s.Finished = maps.Clone(e.byPath), maps.Clone(e.outcomes), r.finished
	s.Gates = map[string]int{}
	for name, g := range e.gates {
		if !g.opened || g.waiting > 0 {
			s.Gates[name] = g.waiting
		}
	}
	s.Violations, s.ViolationCount = append([]string{}, e.violations...), e.violated
	s.Sleeping, s.Paused, s.Scaling = e.sleepLevel > 0, e.resumed != nil, e.scaling
	s.Dead, s.Halted = e.dead, e.life.halts > 0
	s.PingsPaused = e.pingsPaused
	return s
}
