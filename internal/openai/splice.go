package openai

import (
	"cmp"
	"fmt"
	"slices"
)

// Edit sets or removes the member at a path.
type Edit struct {
	Path int    // a path's ID
	Raw  []byte // one JSON value, which is not checked; nil removes the member
}

// Splice appends to dst the body with edits made in it, in any order. All that
// no edit concerns is byte for byte as it was, and with no edits all is. dst
// must not overlap the body. Splice allocates at most once, for dst.
//
// After a set, the name stands once in its parent, with the value of the edit:
// a reader that takes the first of repeated names and one that takes the last
// see the same. A member that is there keeps its place and gets the new value,
// the last one if the name is repeated; the others of that name go. A member
// that is not there is added behind the last one of its parent; several come
// in the order of the paths. A parent that is missing is added, one that is
// not an object is replaced by one, and edits below share it.
//
// A removal takes every member of that name from its parent, and does nothing
// if there is none.
//
// If a parent is repeated, the last one is edited; those before it, which do
// not count, stay.
//
// Of two edits of one path the later in edits counts. It is a programming
// error to edit a path and another that leads through it, or to call Splice
// when d holds no body.
func (d *Doc) Splice(dst []byte, edits []Edit) []byte {
	if d.paths == nil {
		panic("BUG: splice of a Doc that holds no body")
	}
	d.mark(edits)
	d.patches = d.patches[:0]
	size := len(d.body) + d.collect(0)
	slices.SortFunc(d.patches, func(a, b patch) int { return cmp.Compare(a.at, b.at) })
	d.widen()
	for _, p := range d.patches {
		size -= p.end - p.at
	}

	dst = slices.Grow(dst, size)
	at := 0
	for _, p := range d.patches {
		dst = append(dst, d.body[at:p.at]...)
		switch p.does {
		case cut:
		case replace:
			dst = d.appendValue(dst, p.node)
		case addFirst:
			dst = d.appendMembers(dst, p.node, "")
		case addNext:
			dst = d.appendMembers(dst, p.node, ",")
		}
		at = p.end
	}
	clear(d.marks) // lets go of the edits' bytes
	return append(dst, d.body[at:]...)
}

// mark is what the edits want of one node.
type mark struct {
	raw    []byte
	edited bool // an edit names this node; it is a removal if raw is nil
	within bool // an edit names this node or one below
	sets   bool // the same, for edits that set
	add    bool // the member is to be written with its name
}

// mark fills d.marks, all but add.
func (d *Doc) mark(edits []Edit) {
	nodes := d.paths.nodes
	if cap(d.marks) < len(nodes) {
		d.marks = make([]mark, len(nodes))
	}
	d.marks = d.marks[:len(nodes)]
	clear(d.marks)
	for _, e := range edits {
		if e.Raw != nil && len(e.Raw) == 0 {
			panic("BUG: edit with an empty value")
		}
		d.marks[d.paths.ids[e.Path]] = mark{raw: e.Raw, edited: true, within: true, sets: e.Raw != nil}
	}
	for n := len(nodes) - 1; n > 0; n-- { // children before their parents
		m, parent := &d.marks[n], &d.marks[nodes[n].parent]
		if m.within && parent.edited {
			panic(fmt.Sprintf("BUG: edits of %q and of a path that leads through it", nodes[nodes[n].parent].name))
		}
		parent.within = parent.within || m.within
		parent.sets = parent.sets || m.sets
	}
}

// patch replaces the bytes from at to end of the body.
type patch struct {
	at, end int
	node    int32
	does    action
}

// action is what a patch puts in place of the bytes it takes out.
type action uint8

const (
	cut      action = iota // nothing
	replace                // the value of the node
	addFirst               // members of the node, which has none left
	addNext                // members of the node, which has others
)

// collect appends the patches for the object of node n, which is there, and
// all below. It returns how many bytes they write at most.
func (d *Doc) collect(n int32) int {
	size, gone, adds := 0, 0, false
	for c := n + 1; c < d.paths.nodes[n].end; c = d.paths.nodes[c].end {
		want, last := &d.marks[c], d.last[c]
		m := &d.found[last]
		switch {
		case !want.within:
		case want.edited && !want.sets:
			gone += d.cutAll(last)
		case last != 0 && want.edited:
			d.patches = append(d.patches, patch{m.val, m.end, c, replace})
			gone += d.cutAll(m.prev)
			size += len(want.raw)
		case last != 0 && m.kind == Object:
			size += d.collect(c)
		case !want.sets: // removals below a parent that is not there
		case last != 0:
			d.patches = append(d.patches, patch{m.val, m.end, c, replace})
			size += d.create(c)
		default:
			want.add, adds = true, true
			size += d.create(c)
		}
	}
	if adds {
		obj := &d.found[d.last[n]]
		does := addNext
		if obj.count == gone {
			does = addFirst
		}
		at := backSpace(d.body, obj.end-1)
		d.patches = append(d.patches, patch{at, at, n, does})
	}
	return size
}

// cutAll appends a patch for the member at index i of d.found and for each
// earlier one of the same name, and returns how many there are.
func (d *Doc) cutAll(i int32) (count int) {
	for ; i != 0; i = d.found[i].prev {
		d.patches = append(d.patches, patch{at: d.found[i].key, end: d.found[i].end, does: cut})
		count++
	}
	return count
}

// create marks what is to be set below n as members to write, and returns how
// many bytes n and they take at most.
func (d *Doc) create(n int32) (size int) {
	for c := n; c < d.paths.nodes[n].end; c++ {
		if m := &d.marks[c]; m.sets {
			m.add = m.add || c != n
			size += len(d.paths.nodes[c].member) + len(m.raw) + len(",{}")
		}
	}
	return size
}

// widen makes the patches that cut members take a comma with them: the one
// before the member or, while all members before it are cut too, the one after.
// The patches must be in order.
func (d *Doc) widen() {
	b, first := d.body, -1 // first is where a member begins that has become the first
	for i := range d.patches {
		p := &d.patches[i]
		if p.does != cut {
			continue
		}
		if p.at != first {
			before := backSpace(b, p.at) - 1
			if b[before] == ',' {
				p.at = before
				continue
			}
		}
		if next := skipSpace(b, p.end); b[next] == ',' {
			p.end = skipSpace(b, next+1)
			first = p.end
		}
	}
}

// backSpace returns the least index from which on there is only white space up
// to i.
func backSpace(b []byte, i int) int {
	for b[i-1] == ' ' || b[i-1] == '\n' || b[i-1] == '\t' || b[i-1] == '\r' {
		i--
	}
	return i
}

// appendValue appends the value that the edits give to n: its own, or an
// object with those below it.
func (d *Doc) appendValue(dst []byte, n int32) []byte {
	if m := &d.marks[n]; m.edited {
		return append(dst, m.raw...)
	}
	dst = append(dst, '{')
	dst = d.appendMembers(dst, n, "")
	return append(dst, '}')
}

// appendMembers appends the members of n that are to be written, the first
// one after comma.
func (d *Doc) appendMembers(dst []byte, n int32, comma string) []byte {
	for c := n + 1; c < d.paths.nodes[n].end; c = d.paths.nodes[c].end {
		if d.marks[c].add {
			dst = append(dst, comma...)
			dst = append(dst, d.paths.nodes[c].member...)
			dst = d.appendValue(dst, c)
			comma = ","
		}
	}
	return dst
}
