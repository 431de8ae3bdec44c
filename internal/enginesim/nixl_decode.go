package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
func (n *nixl) load(j *job) (bool, error) {
	addr, q := n.target(j, true)
	if q == nil {
		return false, nil
	}
	j.taken = true
	a, err := n.call(j.c.r.Context(), addr, "collect", q)
	if err != nil {
		if j.c.alive() != nil { // it may not have arrived
			j.taken = false
		}
		return false, err
	}
	if a.Diff != "" {
		j.c.violate("kv_transfer_params differ from what prefill gave: %s", a.Diff)
	}
	if a.Late > 0 {
		j.c.violate("hand-off used %.3g s after its validity", a.Late)
	}
	if !a.OK {
		return false, errors.New(a.Reason)
	}
	if a.Sum != j.prompts[0].sum {
		j.c.violate("wrong prompt for hand-off: prefill had %d tokens, decode has %d", a.Tokens, len(j.prompts[0].tokens))
		j.misled(a.Sum) // what comes out follows the blocks
	}
	return true, nil
}

// misled makes the answer follow another prompt.
func (j *job) misled(sum string) {
	for _, s := range j.seqs {
		s.story = newStory(sum, s.index%j.n)
		s.story.head(s.shown)
	}
}

// beat implements connector.
func (n *nixl) beat(ctx context.Context, j *job) { n.tell(ctx, j, "heartbeat") }

// drop implements connector.
func (n *nixl) drop(j *job) {
	if !j.taken {
		j.taken = true
		ctx, cancel := n.e.detached(j.c.r.Context())
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

func (n *nixl) call(ctx context.Context, addr, what string, q *collect) (a collected, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/sim/kv/"+what, bytes.NewReader(encode(q)))
	if err != nil {
		return a, err
	}
	resp, err := n.e.peers.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return a, err
	}
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("the prefill engine answers %s", resp.Status)
	}
	return a, json.Unmarshal(body, &a)
}
