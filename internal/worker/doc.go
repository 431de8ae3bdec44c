// Package worker holds the routing state of vLLM servers, one [Worker] per
// lifetime, and lets requests pick and reserve them in one step. It never
// speaks to a server, starts no goroutine and knows no policy.
//
// # Lifetimes
//
// A URL is not a worker. A worker is one lifetime of one server in one role,
// named by its [ID]: role, URL, rank and generation. A process that restarts at
// the same URL is another lifetime with state of its own; leases that were
// taken on the old one end on the old one.
//
//	Lister (the registry)        what is registered now
//	   |  read under Pool.mu
//	Pool.Reconcile               one *Worker per lifetime, kept while it lives
//	   |                         observers told: removed first, then added
//	Pick                         reconcile, check, choose and take in one
//	   |                         critical section over the pools it needs
//	Lease / Hold                 load now / chosen now and loaded later
//
// # Concurrency
//
// Everything here may be used from any goroutine. Pool.mu guards membership and
// every pick; load figures are atomics that only leases and holds change. Pools
// are locked in the order of their roles (regular, prefill, decode), and a
// Lister is called with a Pool locked, so it must not call back. No lock is
// held across I/O, because nothing here does I/O.
package worker
