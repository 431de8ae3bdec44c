package worker

import (
	"cmp"
	"log/slog"
	"strconv"
)

// Role says what a worker does for a request.
type Role uint8

// The roles. The zero Role is invalid.
const (
	_       Role = iota
	Regular      // prompt and tokens
	Prefill      // prompts, whose KV cache it hands over
	Decode       // tokens, from a KV cache handed over
)

// NumRoles bounds arrays indexed by Role.
const NumRoles = int(Decode) + 1

// Roles lists the roles in lock order.
func Roles() []Role { return []Role{Regular, Prefill, Decode} }

// String returns the role's name as flags, logs and metrics spell it.
func (r Role) String() string {
	switch r {
	case Regular:
		return "regular"
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	default:
		return "invalid"
	}
}

// Rank is the data-parallel rank an endpoint is pinned to. The zero Rank is not
// pinned: the engine balances over its ranks itself.
type Rank uint16

// MaxRank is the largest index a Rank can hold.
const MaxRank = 1<<16 - 2

// AtRank pins to the rank with index n, 0 <= n <= MaxRank.
func AtRank(n int) Rank {
	if n < 0 || n > MaxRank {
		panic("BUG: rank " + strconv.Itoa(n) + " out of range")
	}
	return Rank(n + 1)
}

// Index returns the index a rank is pinned to, and false if it is not pinned.
func (r Rank) Index() (int, bool) { return int(r) - 1, r != 0 }

// Generation numbers one continuous registration of an endpoint. Generations
// of one role rise and are never used twice.
type Generation uint64

// ID names one lifetime of one worker. The same URL in two roles, at two ranks,
// or in two generations, is two IDs.
type ID struct {
	Role       Role
	URL        string // base URL without trailing slash and without rank, such as http://10.0.0.1:8000
	Rank       Rank
	Generation Generation
}

// Label is the worker's name in metrics and answers: the URL, with @rank if it
// is pinned to one. It is the same for every generation.
func (id ID) Label() string {
	if n, ok := id.Rank.Index(); ok {
		return id.URL + "@" + strconv.Itoa(n)
	}
	return id.URL
}

// String returns the label and the generation, such as http://a:8000@1#7.
func (id ID) String() string {
	return id.Label() + "#" + strconv.FormatUint(uint64(id.Generation), 10)
}

// LogValue groups the parts of the ID.
func (id ID) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("role", id.Role.String()),
		slog.String("url", id.Label()),
		slog.Uint64("generation", uint64(id.Generation)),
	)
}

// compare orders IDs by URL, rank and generation: the position of a worker in
// its pool, whatever order the registry lists them in.
func (id ID) compare(other ID) int {
	return cmp.Or(
		cmp.Compare(id.URL, other.URL),
		cmp.Compare(id.Rank, other.Rank),
		cmp.Compare(id.Generation, other.Generation),
	)
}

// Endpoint is what is known of a server beyond its URL. A zero field is
// unknown. Within one lifetime an unknown field may become known and a known
// one never changes: a registration that contradicts it is another lifetime.
type Endpoint struct {
	ZMQ         string // ZMQ address as the engine registered it
	DP, TP      int    // data-parallel and tensor-parallel size
	Mode        string // transfer mode of the connector, such as READ
	Dialect     string // how its KV connector wants to be spoken to, such as nixl
	Incarnation string // the process behind the address as its source knows it (pod UID and restart count, engine id)
}

// Speaks names the dialect, and the transfer mode if it has one: dialects that
// work in several modes are one for each.
func (e Endpoint) Speaks() string {
	if e.Mode == "" {
		return e.Dialect
	}
	return e.Dialect + "/" + e.Mode
}

// Registration is one registered lifetime. The label "group" names its
// compatibility group; workers pair only within one group.
type Registration struct {
	ID       ID
	Endpoint Endpoint
	Labels   map[string]string // not changed once handed over
}

// GroupLabel is the label whose value is a worker's compatibility group.
const GroupLabel = "group"
