package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Values of [Config.Connector].
const (
	ConnectorNone   = ""       // kv_transfer_params are ignored
	ConnectorNIXL   = "nixl"   // NixlConnector: decode pulls
	ConnectorP2P    = "p2p"    // P2pNcclConnector of older engines: prefill pushes
	ConnectorMoRIIO = "moriio" // MoRIIOConnector: decode reads or prefill writes
)

// connector is one way of handing KV blocks from engine to engine. One that embeds
// quiet implements only what it needs.
type connector interface {
	// leg names the leg that a generation request is; kv are its parameters.
	leg(kv object) string
	// lacks tells whether the engines with this connector have no such path.
	lacks(path string) bool
	// beat tells the other engine that a decode leg waits for admission.
	beat(ctx context.Context, j *job)
	// load fetches the blocks of a decode leg that was just admitted, and returns
	// for how many tokens that were not cached here; 0 if the leg has no hand-off
	// to speak of, so that the prompt is computed here.
	load(j *job) (tokens int, err error)
	// computed comes when the prompt of a prefill leg is computed.
	computed(j *job) error
	// give comes when a prefill leg has finished. It pins the prompt and returns the
	// parameters of the answer, nil for none.
	give(j *job) (json.RawMessage, error)
	// drop comes for a decode leg that will not use its hand-off.
	drop(j *job)
	// finished comes when the engine is done with a request, whatever ended it.
	finished(j *job)
	// serve answers another engine's call to /sim/kv/{what}; an error ends the
	// connection.
	serve(c *call, what string, body []byte) (any, error)
	// statsLocked adds the connector's figures.
	statsLocked(*Stats)
	// lostLocked forgets all hand-offs, the engine having died.
	lostLocked()
	// closeLocked stops what runs by itself.
	closeLocked()
}

func newConnector(e *Engine) (connector, error) {
	switch e.cfg.Connector {
	case ConnectorNone:
		return noConnector{e: e}, nil
	case ConnectorNIXL:
		return newNixl(e)
	case ConnectorP2P:
		return newP2P(e), nil
	case ConnectorMoRIIO:
		return newMoriio(e)
	default:
		return nil, fmt.Errorf("connector %q is unknown", e.cfg.Connector)
	}
}

// quiet is what a connector does unless it says otherwise: nothing.
type quiet struct{}

func (quiet) lacks(string) bool                        { return false }
func (quiet) beat(context.Context, *job)               {}
func (quiet) load(*job) (int, error)                   { return 0, nil }
func (quiet) computed(*job) error                      { return nil }
func (quiet) give(*job) (json.RawMessage, error)       { return nil, nil }
func (quiet) drop(*job)                                {}
func (quiet) finished(*job)                            {}
func (quiet) statsLocked(*Stats)                       {}
func (quiet) lostLocked()                              {}
func (quiet) closeLocked()                             {}
func (quiet) serve(*call, string, []byte) (any, error) { return unknownCall, nil }

var unknownCall = collected{Reason: http.StatusText(http.StatusNotFound)}

// leg tells the leg from the parameters, as most connectors do.
func (quiet) leg(kv object) string {
	switch {
	case string(kv["do_remote_decode"]) == "true":
		return LegPrefill
	case string(kv["do_remote_prefill"]) == "true":
		return LegDecode
	default:
		return LegPlain
	}
}

// noConnector ignores kv_transfer_params, as an engine without one does.
type noConnector struct {
	quiet
	e *Engine
}

func (n noConnector) ignore() {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	n.e.count.ignoredKV++
}

func (n noConnector) load(*job) (int, error)             { n.ignore(); return 0, nil }
func (n noConnector) give(*job) (json.RawMessage, error) { n.ignore(); return nil, nil }
