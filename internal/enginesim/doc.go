// Package enginesim is a simulated vLLM server: the HTTP surface, the scheduler,
// the prefix cache and the KV hand-off of a real one, without a model.
//
// It is an oracle. It validates requests as vLLM does, keeps the blocks of a
// hand-off pinned until they are collected or their validity has passed, and
// notes as a violation whatever a correct router would never send. For that
// reason it shares no code with the router.
//
// A token is a byte of text (id = byte value + 3), so that sizes can be
// predicted, and the generated text is a function of the prompt alone, so that
// the answer of a prefill/decode pair can be compared with a plain one. A tool is
// called when tool_choice forces a call, with arguments made from its schema.
//
// Engines hand KV blocks over as [Config.Connector] says. What real ones tell each
// other over ZMQ and RDMA, these tell each other over HTTP, under /sim/kv/; an engine
// that is named by its ZMQ address is found as [Config.PeerHTTP] says. The one thing
// that they do send over ZMQ is their registration with a router: [Engine.RunPings].
//
// An [Engine] is an [net/http.Handler] that works on any listener. It waits only
// on channels, contexts and timers, and no goroutine of it outlives the request
// it serves, so that it can run inside a testing/synctest bubble.
//
// Failures are scripted with [Fault], and points where a request stops with
// [Engine.Gate] and [Engine.Open]. The state of an engine is set with
// [Engine.SetSleeping], [Engine.SetPaused] and [Engine.SetScaling], and with vLLM's
// own /sleep, /wake_up, /pause and /resume; [Engine.PausePings] lets a router believe
// it gone, and [Engine.Revive] brings back one that died of a request that no router
// should send. The same works over HTTP:
//
//	GET    /sim/stats               -> Stats
//	GET    /sim/requests            -> list of Record
//	POST   /sim/faults              Fault -> {"id":1}
//	DELETE /sim/faults/1
//	POST   /sim/gates/NAME/open     also .../close
//	POST   /sim/pings               {"paused":true}
//	POST   /sim/scaling             {"scaling":true}
//	POST   /sim/revive
//
// For example, this makes the second prefill leg lose its connection once:
//
//	curl -d '{"action":"reset","leg":"prefill","nth":2,"times":1}' http://engine:8000/sim/faults
package enginesim
