//go:build e2e

package e2e_test

import (
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
)

// dialect is a KV connector as the engines are started with it. Its name is a
// model that its engines serve besides the one that all do.
type dialect struct {
	name      string
	connector string // --kv-connector of a router that has no others
	args      []string
	apis      []string // that it serves
	goesOn    bool     // a leg goes on without its client until the hand-off is over
}

// times of engines are short here, where real ones wait for half a minute or an
// hour.
const (
	transferTimeout = time.Second            // for blocks that do not come
	sendTimeout     = 500 * time.Millisecond // for a p2p decode engine out of reach
)

var dialects = []*dialect{
	{
		name: "nixl", connector: "nixl",
		args: []string{"--kv-connector", "nixl", "--registration", "kv_connector=nixl"},
		apis: []string{"chat", "completions", "responses", "messages", "generate"},
	},
	{
		name: "p2p", connector: "p2p",
		args: []string{"--kv-connector", "p2p", "--send-timeout", sendTimeout.String()},
		apis: []string{"chat", "completions"}, goesOn: true,
	},
	{
		name: "moriio_read", connector: "moriio",
		args: []string{"--kv-connector", "moriio", "--transfer-mode", "READ", "--transfer-timeout", transferTimeout.String()},
		apis: []string{"chat", "completions"}, goesOn: true,
	},
	{
		name: "moriio_write", connector: "moriio",
		args: []string{
			"--kv-connector", "moriio", "--transfer-mode", "WRITE", "--transfer-timeout", transferTimeout.String(),
			"--defer-timeout", "2s",
		},
		apis: []string{"chat", "completions"},
	},
}

func (d *dialect) String() string { return d.name }

// eachDialect runs a test for each dialect.
func eachDialect(t *testing.T, do func(t *testing.T, d *dialect)) {
	t.Helper()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			do(t, d)
		})
	}
}

// zmqConfig says how a fleet registers over ZMQ.
type zmqConfig struct {
	prefill, decode int // of each dialect
	dialects        []*dialect
	period, ttl     time.Duration // of registrations
	router, engines []string      // flags
}

// newRegistered starts a router and engines that register with it.
func newRegistered(t testing.TB, cfg zmqConfig) *fleet {
	t.Helper()
	f := &fleet{t: t}
	discovery := "127.0.0.1:" + freePort(t)
	connector := "p2p" // of those whose registration does not tell
	if len(cfg.dialects) == 1 {
		connector = cfg.dialects[0].connector
	}
	f.router = startRouter(t, append([]string{
		"--vllm-discovery-address", discovery, "--discovery-ttl", cfg.ttl.String(), "--kv-connector", connector,
		"--policy", "least_load",
	}, cfg.router...)...)
	f.client = newClient(t, f.url)
	for _, d := range cfg.dialects {
		args := slices.Concat(d.args, []string{
			"--model", d.name, "--discovery", discovery, "--ping-interval", cfg.period.String(),
		}, cfg.engines)
		for range cfg.prefill {
			f.prefill = append(f.prefill, startEngine(t, prefill, args...))
		}
		for range cfg.decode {
			f.decode = append(f.decode, startEngine(t, decode, args...))
		}
	}
	await(t, patience, "all workers ready", func() error { return f.ready(len(f.engines())) })
	t.Cleanup(f.verify)
	return f
}

// port is the engine's own plus an offset.
func (e *engine) port(offset int) string {
	e.t.Helper()
	_, text, err := net.SplitHostPort(e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		e.t.Fatal(err)
	}
	return strconv.Itoa(port + offset)
}

// zmq is the address under which the engine registers unless it is told another.
func (e *engine) zmq() string {
	if slices.Contains(e.args, "moriio") {
		return "host:127.0.0.1,handshake:" + e.port(1000) + ",notify:" + e.port(2000)
	}
	return "127.0.0.1:" + e.port(1000)
}

// otherIdentity are the flags with which the engine registers under another ZMQ
// address than by itself, and still finds its peers and they it.
func (e *engine) otherIdentity() []string {
	switch {
	case slices.Contains(e.args, "moriio"):
		return []string{"--notify-port", e.port(2001)}
	case slices.Contains(e.args, "p2p"):
		return []string{"--zmq-address", "localhost:" + e.port(1000)}
	default:
		return []string{"--zmq-address", "127.0.0.1:" + e.port(1001), "--engine-id", "another-" + newID()}
	}
}

// of returns the engines of one dialect.
func of(d *dialect, engines []*engine) (list []*engine) {
	for _, e := range engines {
		if slices.Contains(e.args, d.name) {
			list = append(list, e)
		}
	}
	return list
}

// settled returns why an engine has something left of what it was asked, nil if
// it has not: a standstill, or a hand-off that nobody will fetch.
func (f *fleet) settled() error {
	for _, e := range f.engines() {
		if !e.running() {
			continue
		}
		s, err := e.stats()
		switch {
		case err != nil:
			return err
		case s.Halted, s.Dead:
			return fmt.Errorf("%s: stands still %t, died %t: %q", e, s.Halted, s.Dead, s.Violations)
		case s.P2PUnclaimed != 0, s.DecodesWaiting != 0:
			return fmt.Errorf("%s: %d prompts not fetched, %d decodes wait", e, s.P2PUnclaimed, s.DecodesWaiting)
		}
	}
	return f.quiet()
}

// unpinned returns which engine keeps blocks for a decode, nil if none does.
func (f *fleet) unpinned() error {
	for _, e := range f.engines() {
		if !e.running() {
			continue
		}
		s, err := e.stats()
		if err != nil {
			return err
		}
		if s.PinnedHandoffs != 0 || s.PinnedBlocks != 0 {
			return fmt.Errorf("%s: %d hand-offs pinned", e, s.PinnedHandoffs)
		}
	}
	return nil
}

// clean is what must hold at the end, while all the processes still run: those
// that were restarted are gone when verify comes.
func (f *fleet) clean(t *testing.T) {
	t.Helper()
	await(t, patience, "everything done", f.settled)
	for _, e := range f.engines() {
		if err := e.innocent(); err != nil {
			t.Error(err)
		}
	}
	f.checkPairs(t)
}

// pairAddrs reads the addresses out of the request id of a leg.
var pairAddrs = regexp.MustCompile(`^___prefill_addr_(.+)___decode_addr_(.+)_[0-9a-f]{32}$`)

// checkPairs wants each leg whose id names a pair to be where the id says, each
// id to be used once, and a decode leg to follow its prefill leg.
func (f *fleet) checkPairs(t *testing.T) {
	t.Helper()
	type place struct{ leg, id string }
	seen := map[place]enginesim.Record{}
	prefills := map[string]*engine{} // by ZMQ address
	var decodes []enginesim.Record
	for _, e := range f.engines() {
		if slices.Contains(e.args, "nixl") || !e.running() {
			continue
		}
		w, err := f.worker(e)
		if err != nil {
			t.Error(err)
			continue
		}
		if e.role == prefill {
			prefills[w.ZMQ] = e
		}
		for _, r := range e.records() {
			id := r.Header.Get("X-Request-Id")
			m := pairAddrs.FindStringSubmatch(id)
			if m == nil {
				t.Errorf("%s: the id names no pair: %q", e, id)
				continue
			}
			if own := map[string]string{prefill: m[1], decode: m[2]}[e.role]; own != w.ZMQ {
				t.Errorf("%s is %q, its leg is for %q", e, w.ZMQ, own)
			}
			at := place{r.Leg, id}
			if _, again := seen[at]; again {
				t.Errorf("two %s legs with the id %q", r.Leg, id)
			}
			seen[at] = r
			if r.Leg == decode {
				decodes = append(decodes, r)
			}
		}
	}
	for _, r := range decodes {
		id := r.Header.Get("X-Request-Id")
		e := prefills[pairAddrs.FindStringSubmatch(id)[1]]
		if e == nil || !e.running() || e.began.After(r.Arrival) {
			continue // its log is of a later process
		}
		if slices.Contains(e.args, "moriio_write") {
			continue // neither leg follows the other
		}
		if p, ok := seen[place{prefill, id}]; !ok || p.Status != http.StatusOK {
			t.Errorf("%s: a decode leg and no good prefill leg before it: %q, %+v", e, id, p)
		}
	}
}

// legsOf returns the legs of a question that no other one has the prompt of.
func (f *fleet) legsOf(q question) (list []string) {
	f.t.Helper()
	sent := string(encode(q.prompt))
	if q.api.name == "generate" {
		sent = strings.Trim(string(encode(tokenIDs(q.prompt))), "[]")
	}
	for _, e := range f.engines() {
		for _, r := range e.records() {
			if strings.Contains(r.Body, sent) {
				list = append(list, fmt.Sprintf("%s leg on %s engine: %d %s", r.Leg, e.role, r.Status, r.Outcome))
			}
		}
	}
	slices.Sort(list)
	return list
}

// TestDialectRoutes asks every generating route of engines that have registered,
// in each dialect.
func TestDialectRoutes(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(t *testing.T, d *dialect) {
		f := newRegistered(t, zmqConfig{prefill: 2, decode: 2, dialects: []*dialect{d}, period: 500 * time.Millisecond, ttl: 10 * time.Second})
		both := []string{"decode leg on decode engine: 200 success", "prefill leg on prefill engine: 200 success"}
		for range 2 { // both engines of a role
			eachAPI(t, func(t *testing.T, q question) {
				q.prompt += " " + newID()
				a := f.client.post(q.api.path, q.body())
				await(t, patience, "legs over", f.quiet)
				if !slices.Contains(d.apis, q.api.name) {
					code, message := a.code()
					if a.status != http.StatusNotImplemented || code != "not_served_by_connector" || message == "" {
						t.Errorf("a route that the connector does not serve: %v", a)
					}
					if got := f.legsOf(q); len(got) != 0 {
						t.Errorf("legs are %q, want none", got)
					}
					return
				}
				if err := q.check(a); err != nil {
					t.Fatal(err)
				}
				if got := f.legsOf(q); !slices.Equal(got, both) {
					t.Errorf("legs are %q, want %q", got, both)
				}
			})
		}
		for _, e := range f.engines() {
			if w := f.look(e); w.Picked == 0 || w.ZMQ != e.zmq() {
				t.Errorf("%s: %+v, want it used and its ZMQ address %s", e, w, e.zmq())
			}
		}
		f.clean(t)
		await(t, patience, "nothing pinned", f.unpinned)
	})
}
