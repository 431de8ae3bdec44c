package registry

import (
	"cmp"
	"maps"
	"slices"

	"github.com/baton-llm/baton/internal/worker"
)

// put adds or renews a claim and reports whether its facts or labels are new.
// If they are, the claim moves to the front, so that its facts win.
func (e *entry) put(c claim) bool {
	i := slices.IndexFunc(e.claims, func(old claim) bool { return old.source == c.source })
	if i >= 0 {
		old := &e.claims[i]
		if old.endpoint == c.endpoint && maps.Equal(old.labels, c.labels) {
			old.expires = c.expires
			return false
		}
		e.claims = slices.Delete(e.claims, i, i+1)
	}
	e.claims = slices.Insert(e.claims, 0, c)
	return true
}

// rival reports whether the process with that ZMQ address lost the entry to the
// present one less than a TTL ago, or has kept announcing itself since.
func (e *entry) rival(zmq string, now, ttl int64) bool {
	if zmq == "" || ttl == 0 || zmq == e.reg.Endpoint.ZMQ {
		return false
	}
	for i := range e.rivals {
		r := &e.rivals[i]
		if r.zmq == zmq && now-r.seen <= ttl {
			r.seen = now
			return true
		}
	}
	return false
}

// replaced remembers the process that has just lost the entry.
func (e *entry) replaced(zmq string, now int64) {
	e.rivals = slices.DeleteFunc(e.rivals, func(r rival) bool { return r.zmq == zmq || r.zmq == e.reg.Endpoint.ZMQ })
	if len(e.rivals) == maxRivals {
		e.rivals = slices.Delete(e.rivals, 0, 1)
	}
	e.rivals = append(e.rivals, rival{zmq, now})
}

// drop removes the claim of a source and reports whether there was one.
func (e *entry) drop(source string) bool {
	n := len(e.claims)
	e.claims = slices.DeleteFunc(e.claims, func(c claim) bool { return c.source == source })
	return len(e.claims) < n
}

// merged returns what the claims say together; earlier ones win.
func (e *entry) merged() (worker.Endpoint, map[string]string) {
	var endpoint worker.Endpoint
	var labels map[string]string
	for _, c := range e.claims {
		endpoint = fill(endpoint, c.endpoint)
		for name, value := range c.labels {
			if _, ok := labels[name]; !ok {
				if labels == nil {
					labels = make(map[string]string)
				}
				labels[name] = value
			}
		}
	}
	return endpoint, labels
}

// fill returns a with its unknown fields taken from b.
func fill(a, b worker.Endpoint) worker.Endpoint {
	a.ZMQ = cmp.Or(a.ZMQ, b.ZMQ)
	a.DP = cmp.Or(a.DP, b.DP)
	a.TP = cmp.Or(a.TP, b.TP)
	a.Mode = cmp.Or(a.Mode, b.Mode)
	a.Dialect = cmp.Or(a.Dialect, b.Dialect)
	a.Incarnation = cmp.Or(a.Incarnation, b.Incarnation)
	return a
}

// contradicts reports whether a field known in both differs: the process
// behind the address is another one.
func contradicts(a, b worker.Endpoint) bool {
	return fill(a, b) != fill(b, a)
}
