package pd

import "github.com/baton-llm/baton/internal/worker"

// Set are the dialects that are built, at most 64. The i-th has bit i in
// worker.Want.Dialects. A Set is not changed once it is in use.
type Set []Dialect

// Bits returns the bit of the dialect that an endpoint speaks, 0 if none is
// built, or if the endpoint lacks the ZMQ address that its dialect needs.
func (s Set) Bits(e worker.Endpoint) uint64 {
	for i, d := range s {
		if spec := d.Spec(); spec.Name == e.Speaks() && (e.ZMQ != "" || !spec.NeedsZMQ) {
			return 1 << i
		}
	}
	return 0
}

// Of returns the dialect that a worker speaks, nil if Bits has none for it.
func (s Set) Of(w *worker.Worker) Dialect {
	for bits, i := s.Bits(w.Endpoint()), 0; bits != 0; bits, i = bits>>1, i+1 {
		if bits&1 != 0 {
			return s[i]
		}
	}
	return nil
}

// Observers returns the dialects that keep state about workers.
func (s Set) Observers() []worker.Observer {
	var all []worker.Observer
	for _, d := range s {
		if o, ok := d.(worker.Observer); ok {
			all = append(all, o)
		}
	}
	return all
}
