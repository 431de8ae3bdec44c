package enginesim

import (
	"context"
	"net"
	"strconv"
	"strings"
)

// target checks the parameters of a decode leg. A nil collect means that vLLM
// would compute the prompt itself.
func (n *nixl) target(j *job, note bool) (addr string, q *collect) {
	text := func(name string) string { s, _ := asText(j.kv[name]); return s }
	port, okPort := lenientInt(j.kv["remote_port"])
	q = &collect{EngineID: text("remote_engine_id"), RequestID: text("remote_request_id"), Params: j.kvRaw}
	host := text("remote_host")
	var missing []string
	need := func(name string, ok bool) {
		if !ok {
			missing = append(missing, name)
		}
	}
	old := isNull(j.kv["transfer_mode"])
	need("remote_block_ids", truthy(j.kv["remote_block_ids"]))
	need("remote_engine_id", q.EngineID != "")
	need("remote_request_id", q.RequestID != "" || old)
	need("remote_host", host != "")
	need("remote_port", okPort)
	if len(missing) > 0 {
		if note {
			j.c.violate("the decode leg's kv_transfer_params lack %s: decode recomputes", strings.Join(missing, ", "))
		}
		return "", nil
	}
	if note && string(j.kv["do_remote_decode"]) == "true" {
		j.c.violate("the decode leg has do_remote_decode too")
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), q
}

// load implements connector.
func (n *nixl) load(j *job) (int, error) {
	addr, q := n.target(j, true)
	if q == nil {
		return 0, nil
	}
	defer j.loading()()
	j.taken = true
	a, err := n.call(j.c.r.Context(), addr, "collect", q)
	if err != nil {
		if j.c.alive() != nil { // it may not have arrived
			j.taken = false
		}
		return 0, err
	}
	if err := j.accept(a); err != nil {
		return 0, err
	}
	return len(j.prompts[0].tokens) - j.hits(0), nil // of several prompts, the first
}

// beat implements connector.
func (n *nixl) beat(ctx context.Context, j *job) { n.tell(ctx, j, "heartbeat") }

// drop implements connector.
func (n *nixl) drop(j *job) {
	if !j.taken {
		j.taken = true
		ctx, cancel := j.c.lasting(peerTimeout)
		defer cancel()
		n.tell(ctx, j, "free")
	}
}

// tell makes a call whose answer does not matter.
func (n *nixl) tell(ctx context.Context, j *job, what string) {
	addr, q := n.target(j, false)
	if q == nil {
		return
	}
	if _, err := n.call(ctx, addr, what, q); err != nil {
		n.e.log.Debug("call to prefill engine", "what", what, "err", err)
	}
}

func (n *nixl) call(ctx context.Context, addr, what string, q *collect) (collected, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	return n.e.callPeer(ctx, addr, what, q)
}
