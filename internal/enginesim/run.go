package enginesim

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errLoad is the failure to load the blocks of a hand-off.
var errLoad = errors.New("kv load failure")

// view renders the answer of one API. The events it returns are complete,
// with their empty line.
type view interface {
	opening(j *job) [][]byte // sent with the head of the stream
	delta(j *job, o output) [][]byte
	closing(j *job) [][]byte
	failure(j *job, err *apiError) [][]byte
	whole(j *job) []byte // the plain answer
}

// run generates the answer.
func (j *job) run() error {
	j.c.settle = j.settle
	defer j.settle()
	err := j.begin()
	if err == nil && j.late == nil {
		err = j.work()
		j.c.aborts = nil // too late for that
	}
	return j.conclude(err)
}

func (j *job) begin() error {
	if !j.stream {
		return nil
	}
	if err := j.c.startStream(); err != nil {
		return err
	}
	var first [][]byte
	if j.late == nil {
		first = j.view.opening(j)
	}
	return j.events(first)
}

func (j *job) events(list [][]byte) error {
	for _, ev := range list {
		if err := j.c.event(ev); err != nil {
			return err
		}
	}
	return nil
}

// work admits, loads or computes the prompt, and generates.
func (j *job) work() error {
	if err := j.c.enter(); err != nil {
		return err
	}
	if err := j.c.alive(); err != nil {
		return err
	}
	if err := j.admit(); err != nil {
		return err
	}
	if err := j.c.moving(); err != nil { // it may have ended in the same moment
		return err
	}
	if j.c.inject != "" {
		return j.c.inject
	}
	if err := j.load(); err != nil {
		return err
	}
	if err := j.prefill(); err != nil {
		return err
	}
	gives := j.leg() == LegPrefill && j.c.form("no_kv") == nil && j.c.form("null_kv") == nil
	if gives {
		if err := j.e.conn.computed(j); err != nil {
			return err
		}
	}
	if err := j.decode(); err != nil {
		return err
	}
	if !gives {
		return nil
	}
	var err error
	j.handoff, err = j.e.conn.give(j)
	return err
}

func (j *job) admit() error {
	t := &ticket{weight: min(j.n*len(j.prompts), j.e.cfg.MaxSeqs), rank: &j.e.ranks[j.rank]}
	for i := range j.prompts {
		h := j.e.cache.newHold(j.prompts[i].tokens, j.extra())
		t.holds = append(t.holds, h)
		for range j.n {
			j.seqs = append(j.seqs, j.newSequence(len(j.seqs), &j.prompts[i], h))
		}
	}
	j.ticket = t
	if j.e.enqueue(t) {
		return nil
	}
	if j.leg() == LegDecode {
		defer j.heartbeat()()
	}
	return j.e.admitted(j.c, t)
}

// heartbeat tells the prefill engine every sixth of the validity that the leg is
// in the queue, until stop.
func (j *job) heartbeat() (stop func()) {
	ctx, cancel := context.WithCancel(j.c.r.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(j.e.cfg.Validity / 6)
		defer ticker.Stop()
		for {
			j.e.conn.beat(ctx, j)
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// hits is the number of tokens of a prompt that were cached here.
func (j *job) hits(index int) int { return j.ticket.holds[index].hits * j.e.cfg.BlockSize }

// load fetches the blocks of a hand-off.
func (j *job) load() error {
	e := j.e
	hits, loaded := 0, 0
	for i := range j.prompts {
		hits += j.hits(i)
	}
	if j.leg() == LegDecode {
		var err error
		loaded, err = e.conn.load(j)
		if gone := j.c.alive(); gone != nil {
			return gone
		}
		if err != nil {
			e.log.Warn("kv load failure", "err", err)
			e.mu.Lock()
			e.count.failedLoads++
			e.mu.Unlock()
			if e.cfg.FailPolicy == FailPolicyFail {
				return errLoad
			}
		}
		j.remote = loaded > 0
	}
	total := j.promptTokens()
	j.cached = hits + loaded
	e.mu.Lock()
	defer e.mu.Unlock()
	r := j.ticket.rank
	r.cacheQueries += total
	r.cacheHits += hits
	r.remoteQueries += loaded
	r.remoteHits += loaded
	r.promptTokens += total
	j.c.rec.Cached = j.cached
	return nil
}

// prefill spends the time of the prompt and makes its blocks findable.
func (j *job) prefill() error {
	e := j.e
	if todo := j.promptTokens() - j.cached - j.tail; todo > 0 {
		leave, err := e.lane(j.c)
		if err != nil {
			return err
		}
		err = j.c.sleep(e.cfg.PrefillBase + time.Duration(todo)*e.cfg.PrefillPerToken)
		leave()
		if err == nil {
			err = j.c.moving()
		}
		if err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range j.ticket.holds {
		e.cache.keep(h.blocks, h.hashes)
	}
	return nil
}

// decode generates, one token of each choice in a step. The first one is the
// prefill's.
func (j *job) decode() error {
	for step := 0; ; step++ {
		if step > 0 || j.remote {
			if err := j.c.sleep(j.e.cfg.DecodePerToken); err != nil {
				return err
			}
		}
		if err := j.c.moving(); err != nil {
			return err
		}
		if err := j.injected(step); err != nil {
			return err
		}
		j.step()
		going := false
		for _, s := range j.seqs {
			going = going || s.finish == ""
			if len(s.pending.tokens) == 0 || !j.stream {
				continue
			}
			if step == 0 || s.finish != "" || len(s.pending.tokens) >= j.interval {
				if err := j.deliverDelta(s); err != nil {
					return err
				}
			}
		}
		if !going {
			return nil
		}
	}
}

func (j *job) step() {
	e := j.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range j.seqs {
		if s.finish == "" {
			s.advance()
			if !e.growLocked(s) {
				j.ticket.rank.preemptions++ // vLLM would preempt; here it goes on without
			}
			j.ticket.rank.generatedTokens++
			j.c.rec.Generated++
		}
	}
}

// injected returns the fault that ends a plain answer after so many tokens. In a
// stream the events themselves meet it.
func (j *job) injected(tokens int) error {
	if j.stream {
		return nil
	}
	for _, f := range j.c.faults {
		if f.fired || f.point > tokens {
			continue
		}
		switch f.Action {
		case "error_event", "abort", "error_finish":
			f.fired = true
			return injection(f.Action)
		}
	}
	return nil
}
