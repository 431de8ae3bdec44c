// Package memnet is a TCP-like network in memory, for tests that run clients
// and servers inside a testing/synctest bubble.
//
// It opens no socket, starts no goroutine and looks up no name: an address is
// known once somebody listens on it. Connections are buffered, obey deadlines
// and can be half closed, reset, stopped and cut, so that a test can play a
// dying, hung or unreachable server.
//
// Everything is safe for concurrent use. Whoever waits does so on a channel and
// holds no lock meanwhile, so a bubble with only waiters in it is durably
// blocked and its clock moves on. A connection belongs to the bubble it was
// dialed in.
package memnet
