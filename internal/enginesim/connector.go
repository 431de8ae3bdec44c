package enginesim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// peerTimeout bounds a call to another engine.
const peerTimeout = 5 * time.Second

// connector is one way of handing KV blocks from engine to engine.
type connector interface {
	// load fetches the blocks of a decode leg that was just admitted. It returns
	// false if the leg has no hand-off to speak of, so that the prompt is computed
	// here.
	load(j *job) (bool, error)
	// beat tells the other engine that a decode leg waits for admission.
	beat(ctx context.Context, j *job)
	// drop tells the other engine that a decode leg will not use its hand-off.
	drop(j *job)
	// give pins the prompt of a finished prefill leg and returns the parameters of
	// the answer, nil for none.
	give(j *job) json.RawMessage
	// serve answers another engine's call to /sim/kv/{what}.
	serve(what string, body []byte) any
	// statsLocked adds the connector's figures.
	statsLocked(*Stats)
	// closeLocked forgets all hand-offs.
	closeLocked()
}

func newConnector(e *Engine) (connector, error) {
	switch e.cfg.Connector {
	case "":
		return noConnector{e}, nil
	case "nixl":
		return newNixl(e)
	default:
		return nil, fmt.Errorf("connector %q is unknown", e.cfg.Connector)
	}
}

// noConnector ignores kv_transfer_params, as an engine without one does.
type noConnector struct{ e *Engine }

func (n noConnector) ignore() {
	n.e.mu.Lock()
	defer n.e.mu.Unlock()
	n.e.count.ignoredKV++
}

func (n noConnector) load(*job) (bool, error)   { n.ignore(); return false, nil }
func (n noConnector) give(*job) json.RawMessage { n.ignore(); return nil }
func (noConnector) beat(context.Context, *job)  {}
func (noConnector) drop(*job)                   {}
func (noConnector) statsLocked(*Stats)          {}
func (noConnector) closeLocked()                {}

func (noConnector) serve(string, []byte) any {
	return collected{Reason: http.StatusText(http.StatusNotFound)}
}
