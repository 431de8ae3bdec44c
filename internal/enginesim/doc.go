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
// the answer of a prefill/decode pair can be compared with a plain one.
//
// An [Engine] is an [net/http.Handler] that works on any listener. It starts no
// goroutine of its own, waits only on channels, contexts and timers, and can
// therefore run inside a testing/synctest bubble.
package enginesim
