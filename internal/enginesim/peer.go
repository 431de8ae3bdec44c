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
	"time"
)

// peerTimeout bounds a call to another engine.
const peerTimeout = 5 * time.Second

// peerRetry is the time between two tries to reach another engine.
const peerRetry = time.Second

// collected is the answer to a call about a hand-off.
type collected struct {
	OK     bool     `json:"ok"`
	Reason string   `json:"reason,omitempty"` // why not
	Late   float64  `json:"late,omitempty"`   // seconds after the validity
	Tokens int      `json:"tokens,omitempty"`
	Sum    string   `json:"sum,omitempty"`
	Diff   string   `json:"diff,omitempty"`  // how the parameters differ from what was given
	Notes  []string `json:"notes,omitempty"` // what else is wrong
}

// callPeer posts q to another engine's /sim/kv/{what}. ctx bounds it.
func (e *Engine) callPeer(ctx context.Context, addr, what string, q any) (a collected, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/sim/kv/"+what, bytes.NewReader(encode(q)))
	if err != nil {
		return a, err
	}
	resp, err := e.peers.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return a, err
	}
	if resp.StatusCode != http.StatusOK {
		return a, fmt.Errorf("the other engine answers %s", resp.Status)
	}
	return a, json.Unmarshal(body, &a)
}

// readCall reads what another engine asks.
func readCall(body []byte, q any) bool { return json.Unmarshal(body, q) == nil }

// accept looks at what the prefill engine says about the hand-off of a decode leg.
func (j *job) accept(a collected) error {
	if a.Diff != "" {
		j.c.violate("kv_transfer_params differ from what prefill gave: %s", a.Diff)
	}
	if a.Late > 0 {
		j.c.violate("hand-off used %.3g s after its validity", a.Late)
	}
	for _, note := range a.Notes {
		j.c.violate("%s", note)
	}
	if !a.OK {
		return errors.New(a.Reason)
	}
	j.match(0, a.Tokens, a.Sum)
	return nil
}

// match compares a prompt with the one whose blocks were handed over.
func (j *job) match(index, tokens int, sum string) {
	if p := j.prompts[index]; p.sum != sum {
		j.c.violate("wrong prompt for hand-off: prefill had %d tokens, decode has %d", tokens, len(p.tokens))
		j.misled(index, sum) // what comes out follows the blocks
	}
}

// misled makes the answer to one prompt follow another.
func (j *job) misled(index int, sum string) {
	for _, s := range j.seqs[index*j.n : (index+1)*j.n] {
		s.story = newStory(sum, s.index%j.n)
		s.story.head(s.shown)
	}
}

// zmqOffset is the distance of an engine's ZMQ port from its HTTP port, unless the
// configuration says otherwise.
const zmqOffset = 1000

// peerHTTP is the default of Config.PeerHTTP.
func peerHTTP(zmq string) string {
	host, port, ok := cutPort(zmq)
	if c, isComposite := parseComposite(zmq); isComposite {
		host, port, ok = c.host, c.handshake, true
	}
	if !ok || port <= zmqOffset {
		return ""
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port-zmqOffset))
}

// cutPort splits "host:port" at its last colon; an IPv6 address need not be in
// brackets, for vLLM writes none.
func cutPort(addr string) (host string, port int, ok bool) {
	i := strings.LastIndexByte(addr, ':')
	if i < 1 {
		return "", 0, false
	}
	port, err := strconv.Atoi(addr[i+1:])
	return addr[:i], port, err == nil && port > 0 && port < 1<<16
}

// composite is the ZMQ address of a MoRI-IO engine.
type composite struct {
	host              string
	handshake, notify int
}

func (c composite) String() string {
	return fmt.Sprintf("host:%s,handshake:%d,notify:%d", c.host, c.handshake, c.notify)
}

// parseComposite reads "host:IP,handshake:PORT,notify:PORT" as the engine does:
// parts in any order, each split at its first colon.
func parseComposite(s string) (c composite, ok bool) {
	parts := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(part, ":")
		parts[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	var errs [2]error
	c.host, ok = parts["host"]
	c.handshake, errs[0] = strconv.Atoi(parts["handshake"])
	c.notify, errs[1] = strconv.Atoi(parts["notify"])
	return c, ok && errs[0] == nil && errs[1] == nil
}
