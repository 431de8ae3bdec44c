// Package zmtp speaks the part of ZMTP 3.0 and 3.1 (the wire protocol of ZeroMQ) that vLLM uses: ROUTER and
// DEALER sockets over TCP with the NULL mechanism.
//
// It never logs, never looks at the content of a message, and never keys anything by a peer's identity:
// two peers with one identity are two peers, so a process that restarts under its old identity is heard at once.
//
// Whatever a peer sends costs that peer its own connection at most. Nothing is allocated because a length
// claims it: buffers grow as bytes arrive, up to [Limits]. Each refusal has a [Reason].
//
// Concurrency: a socket is run by one call of its Run, which returns after everything it started has ended.
// All other methods may be called from any goroutine, before, during and after Run. The hooks in a
// configuration are called from several goroutines at once and say so. Everything waits on channels, timers
// and connections only, so a socket can live in a testing/synctest bubble on an in-memory network.
//
// One file per socket type: router.go and dealer.go hold what is particular to theirs. The listening side
// (accept.go), the connecting side (dial.go), one connection (session.go), its opening (greeting.go,
// handshake.go), and the bytes (frame.go, command.go) are shared by all types.
package zmtp
