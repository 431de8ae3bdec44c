package enginesim

import (
	"context"
	"regexp"
	"strconv"
)

// The patterns by which a P2P NCCL engine finds the other side in a request id,
// which is inside its own: cmpl-ID-0, chatcmpl-ID.
var (
	p2pPrefill = regexp.MustCompile(`___prefill_addr_(.*):(\d+)___`)
	p2pDecode  = regexp.MustCompile(`___decode_addr_(.*):(\d+)`)
)

// p2p is vLLM's P2pNcclConnector, of engines until June 2026. The request id names
// both engines and nothing else is handed over. Prefill sends its tensors while it
// computes; decode waits for those of its own request id, within a step of the
// model. So these engines are easily hurt:
//
//	no addresses in the id             the engine dies
//	decode leg, but no tensors         the decode engine stands still until they
//	                                   come, even if the client leaves
//	tensors, but no decode leg         they stay (Stats.P2PUnclaimed)
//	decode leg sent to another engine  that one stands still
//	the decode engine is out of reach  the prefill engine stands still
//	no memory for tensors              decode goes on without: wrong text
//	the whole prompt is cached         decode needs no tensors; those there are
//	                                   stay until the request ends
//
// Such engines add no random suffix to their ids. Its fields are guarded by
// Engine.mu.
type p2p struct {
	quiet
	e       *Engine
	tensors map[string]*tensors // received, by the engine's request id
	arrived chan struct{}       // closed and replaced when tensors come
}

// tensors are the blocks of one request, as received from a prefill engine.
type tensors struct {
	ID      string `json:"id"`
	Tokens  int    `json:"tokens"`
	Sum     string `json:"sum"`
	lost    bool   // there was no memory for them
	claimed bool   // by a decode leg
}

func newP2P(e *Engine) *p2p {
	return &p2p{e: e, tensors: map[string]*tensors{}, arrived: make(chan struct{})}
}

// leg tells the leg from the engine's role: an engine that can do both is a prefill
// engine.
func (p *p2p) leg(object) string {
	if p.e.cfg.Role == RoleDecode {
		return LegDecode
	}
	return LegPrefill
}

// lacks is about what these old engines do not serve yet. (They have /v1/responses,
// but its ids have no addresses.)
func (*p2p) lacks(path string) bool {
	return path == "/v1/messages" || path == "/inference/v1/generate"
}

// names are the ids that the engine gives the requests of j, by prompt and then by
// choice: of several choices each has its own.
func (j *job) names() [][]string {
	var out [][]string
	for i := range j.prompts {
		id := j.id
		if _, ok := j.view.(*completionView); ok {
			id += "-" + strconv.Itoa(i)
		}
		if j.n == 1 {
			out = append(out, []string{id})
			continue
		}
		var children []string
		for k := range j.n {
			children = append(children, strconv.Itoa(k)+"_"+id)
		}
		out = append(out, children)
	}
	return out
}

// peer reads the address of the other engine out of the id of j, and dies if it is
// not there.
func (p *p2p) peer(j *job) (string, error) {
	find := func(re *regexp.Regexp) string {
		if m := re.FindStringSubmatch(j.names()[0][0]); m != nil {
			return m[1] + ":" + m[2]
		}
		return ""
	}
	own, other := find(p2pPrefill), find(p2pDecode)
	if j.leg() == LegDecode {
		own, other = other, own
	}
	if other == "" {
		j.c.violate("no addresses in the request id %q: the engine dies", clip(j.names()[0][0]))
		p.e.die()
		return "", errDead
	}
	if own != p.e.cfg.ZMQAddress {
		j.c.violate("the request id names the %s engine %q, this is %q", j.leg(), clip(own), p.e.cfg.ZMQAddress)
	}
	return other, nil
}

// computed sends the prompts of j to the decode engine that its id names.
func (p *p2p) computed(j *job) error {
	decode, err := p.peer(j)
	if err != nil {
		return err
	}
	addr := p.e.cfg.PeerHTTP(decode)
	for i, ids := range j.names() {
		for _, id := range ids {
			t := tensors{ID: id, Tokens: len(j.prompts[i].tokens), Sum: j.prompts[i].sum}
			if err := p.send(j, addr, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// send returns when the tensors are there, or refused. Until then the engine stands
// still, for it waits at the end of its step.
func (p *p2p) send(j *job, addr string, t tensors) error {
	e := p.e
	defer e.halt(j.c.life)()
	ctx, cancel := j.c.lasting(e.cfg.SendTimeout)
	defer cancel()
	for {
		a, err := p.put(ctx, addr, t)
		if err == nil {
			e.mu.Lock()
			e.count.produced++
			e.mu.Unlock()
			if !a.OK {
				e.log.Warn("tensors refused", "reason", a.Reason)
			}
			return nil
		}
		e.log.Warn("tensors not sent", "err", err)
		retry, stop := context.WithTimeout(ctx, peerRetry)
		err = j.c.persist(retry.Done())
		stop()
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

func (p *p2p) put(ctx context.Context, addr string, t tensors) (collected, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	return p.e.callPeer(ctx, addr, "put", t)
}

// serve implements connector: it receives tensors, also while the engine stands
// still.
func (p *p2p) serve(c *call, what string, body []byte) (any, error) {
	t := &tensors{}
	if what != "put" || !readCall(body, t) {
		return unknownCall, nil
	}
	t.lost = c.form("refuse_kv") != nil
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	p.tensors[t.ID] = t
	close(p.arrived)
	p.arrived = make(chan struct{})
	if t.lost {
		return collected{Reason: "out of memory"}, nil
	}
	return collected{OK: true}, nil
}

// load implements connector. The last token of a prompt is never handed over.
func (p *p2p) load(j *job) (int, error) {
	if _, err := p.peer(j); err != nil {
		return 0, err
	}
	total := 0
	for i, ids := range j.names() {
		n := len(j.prompts[i].tokens) - 1 - j.hits(i)
		if n <= 0 {
			continue
		}
		for _, id := range ids {
			t, err := p.await(j, id)
			if err != nil {
				return 0, err
			}
			if t.lost {
				p.e.log.Warn("no tensors", "id", id)
				j.misled(i, "")
				continue
			}
			j.match(i, t.Tokens, t.Sum)
		}
		total += n
		j.tail++
	}
	return total, nil
}

// await returns the tensors of one request. While they are not there the engine
// stands still, whatever becomes of the client.
func (p *p2p) await(j *job, id string) (*tensors, error) {
	t, arrived := p.claim(id)
	if t != nil {
		return t, nil
	}
	j.c.violate("a decode leg without prefill: nothing has come for %q, the engine stands still", clip(id))
	defer p.e.halt(j.c.life)()
	for t == nil {
		if err := j.c.persist(arrived); err != nil {
			return nil, err
		}
		t, arrived = p.claim(id)
	}
	return t, nil
}

// claim returns the tensors of one request, or else what ends when any come.
func (p *p2p) claim(id string) (*tensors, <-chan struct{}) {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	t := p.tensors[id]
	if t != nil {
		t.claimed = true
	}
	return t, p.arrived
}

// finished implements connector: the engine lets go of the tensors of a request that
// it has had, even if it has not used them.
func (p *p2p) finished(j *job) {
	if j.leg() != LegDecode {
		return
	}
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	for _, ids := range j.names() {
		for _, id := range ids {
			delete(p.tensors, id)
		}
	}
}

func (p *p2p) statsLocked(s *Stats) {
	for _, t := range p.tensors {
		if !t.claimed {
			s.P2PUnclaimed++
		}
	}
}

func (p *p2p) lostLocked() { clear(p.tensors) }
