package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxNames is the number of names that a path may have.
const maxNames = 3

// Paths is an immutable compiled set of member paths such as "model" or
// "sampling_params.extra_args.kv_transfer_params". It may be used by many
// goroutines at once.
type Paths struct {
	nodes   []node  // a tree in preorder; nodes[0] is the body itself
	ids     []int32 // the node of each path, by path ID
	slots   []int32 // hash of parent and name to the first node of a chain; 0 is none
	longest int     // length of the longest name
}

// node is one name in one parent.
type node struct {
	name   string
	member string // the name as it is written in front of a value: quoted, with its colon
	parent int32
	end    int32 // one past the node's last descendant
	next   int32 // next node of the hash chain; 0 is none
}

// NewPaths compiles paths of one to three names with dots between them. The
// i-th path has the ID i. A path may lead through another one: "a" and "a.b"
// can both be in a set.
//
// A malformed set is a programming error and panics: an empty name, more than
// three names, a path given twice, or a name that is not plain UTF-8.
func NewPaths(paths ...string) *Paths {
	root := &branch{id: -1}
	for id, path := range paths {
		root.add(id, path)
	}
	p := &Paths{ids: make([]int32, len(paths))}
	p.flatten(root, 0)

	size := 4
	for size < 4*len(p.nodes) {
		size *= 2
	}
	p.slots = make([]int32, size)
	for n := int32(1); n < int32(len(p.nodes)); n++ {
		nd := &p.nodes[n]
		slot := &p.slots[p.slot(nd.parent, []byte(nd.name))]
		nd.next, *slot = *slot, n
		p.longest = max(p.longest, len(nd.name))
	}
	return p
}

// branch is a node while the set is being compiled.
type branch struct {
	name string
	id   int // -1 if no path ends here
	kids []*branch
}

func (b *branch) add(id int, path string) {
	names := strings.Split(path, ".")
	if len(names) > maxNames {
		panic(fmt.Sprintf("BUG: path %q has more than %d names", path, maxNames))
	}
	for _, name := range names {
		// A lone surrogate in a body reads as U+FFFD, so a name with that
		// character could not be told from one without.
		if name == "" || !utf8.ValidString(name) || strings.ContainsRune(name, utf8.RuneError) {
			panic(fmt.Sprintf("BUG: path %q has an empty or malformed name", path))
		}
		i := slices.IndexFunc(b.kids, func(k *branch) bool { return k.name == name })
		if i < 0 {
			i = len(b.kids)
			b.kids = append(b.kids, &branch{name: name, id: -1})
		}
		b = b.kids[i]
	}
	if b.id >= 0 {
		panic(fmt.Sprintf("BUG: path %q is given twice", path))
	}
	b.id = id
}

// flatten appends b and all below it to p.nodes.
func (p *Paths) flatten(b *branch, parent int32) {
	n := int32(len(p.nodes))
	quoted, err := json.Marshal(b.name)
	if err != nil {
		panic("BUG: a string cannot be written as JSON: " + err.Error())
	}
	p.nodes = append(p.nodes, node{name: b.name, member: string(quoted) + ":", parent: parent})
	if b.id >= 0 {
		p.ids[b.id] = n
	}
	for _, k := range b.kids {
		p.flatten(k, n)
	}
	p.nodes[n].end = int32(len(p.nodes))
}

// hasChildren reports whether a path leads through n.
func (p *Paths) hasChildren(n int32) bool { return p.nodes[n].end > n+1 }

// slot hashes a name by its length and its ends, which tell the names of a
// set apart well enough.
func (p *Paths) slot(parent int32, name []byte) uint {
	h := uint(parent)*31 + uint(len(name))*7
	if len(name) > 0 {
		h += uint(name[0])*3 + uint(name[len(name)-1])
	}
	return h & uint(len(p.slots)-1)
}

// child returns the node of a name below n, or 0. The name is given without
// its quotes, but otherwise as it stands in the body; scratch is a buffer for
// unescaping it, and is returned for the next call.
func (p *Paths) child(n int32, raw, scratch []byte) (int32, []byte) {
	if bytes.IndexByte(raw, '\\') >= 0 {
		// An escape has at most six bytes for each byte it stands for.
		if len(raw) > 6*p.longest {
			return 0, scratch
		}
		scratch = appendUnescaped(scratch[:0], raw)
		raw = scratch
	}
	c := p.slots[p.slot(n, raw)]
	for c != 0 && (p.nodes[c].parent != n || p.nodes[c].name != string(raw)) {
		c = p.nodes[c].next
	}
	return c, scratch
}
