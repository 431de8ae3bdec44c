package worker

import "strings"

// Block is a set of reasons why a worker gets no new work, or is the last
// resort. Each bit has one owner, which alone sets and clears it.
type Block uint32

// The reasons.
const (
	Pending  Block = 1 << iota // not yet admitted, or a connect failed since; owner: health
	Down                       // failed its probes; owner: health
	Asleep                     // sleeping, paused or scaling; owner: health
	Ejected                    // too many failures; owner: breaker
	Trial                      // re-admission being tried by one request; owner: breaker
	Draining                   // an operator takes it out; owner: admin
	Full                       // its KV cache is nearly full: the last resort; owner: health
	numBlock = iota
)

var blockNames = [numBlock]string{"pending", "down", "asleep", "ejected", "trial", "draining", "full"}

// resorts are the reasons that a pick overlooks, step by step, when it would
// find no candidate otherwise: a full worker can queue, and an ejected one may
// be better than none. A breaker that has ejected everybody must not be an
// outage.
var resorts = [...]Block{0, Full, Full | Ejected | Trial}

// Ready reports whether a worker with these reasons is fit for work, be it as
// the last resort.
func (b Block) Ready() bool { return b&^Full == 0 }

// String lists the reasons, joined by commas, or "ready" if there is none.
func (b Block) String() string {
	if b == 0 {
		return "ready"
	}
	var names []string
	for i, name := range blockNames {
		if b&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}
