package worker

import "strings"

// Block is a set of reasons why a worker gets no new work. Each bit has one
// owner, which alone sets and clears it.
type Block uint32

// The reasons.
const (
	Pending  Block = 1 << iota // not yet admitted, or a connect failed since; owner: health
	Down                       // failed its probes; owner: health
	Asleep                     // sleeping, paused or scaling; owner: health
	Ejected                    // too many failures; owner: breaker
	Trial                      // re-admission being tried by one request; owner: breaker
	Draining                   // an operator takes it out; owner: admin
	numBlock = iota
)

var blockNames = [numBlock]string{"pending", "down", "asleep", "ejected", "trial", "draining"}

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
