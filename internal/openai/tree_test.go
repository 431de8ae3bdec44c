package openai_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// tree is a JSON value as encoding/json reads it, but with the members of an
// object in order and with repeated names. It is the model that Splice is
// tested against.
type tree struct {
	raw     string // the bytes of a value that is no object
	object  bool
	members []member
}

type member struct {
	name  string
	value *tree
}

// readTree reads one value that is known to be valid.
func readTree(t fataler, raw []byte) *tree {
	t.Helper()
	raw = bytes.TrimSpace(raw)
	if raw[0] != '{' {
		return &tree{raw: string(raw)}
	}
	n := &tree{object: true}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		n.members = append(n.members, member{name.(string), readTree(t, value)})
	}
	if _, err := dec.Token(); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return n
}

// last returns the last value of a name, or nil.
func (n *tree) last(name string) *tree {
	for _, m := range slices.Backward(n.members) {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func (n *tree) count(name string) (count int) {
	for _, m := range n.members {
		if m.name == name {
			count++
		}
	}
	return count
}

// find returns the parent of the member at a path, and false if there is no
// such parent.
func (n *tree) find(names []string) (*tree, bool) {
	for _, name := range names[:len(names)-1] {
		if n = n.last(name); n == nil || !n.object {
			return nil, false
		}
	}
	return n, true
}

// edit does what Splice does with one edit.
func (n *tree) edit(names []string, raw []byte) {
	name, rest := names[0], names[1:]
	last := n.last(name)
	if len(rest) > 0 {
		switch {
		case last != nil && last.object:
		case raw == nil:
			return
		case last == nil:
			last = &tree{object: true}
			n.members = append(n.members, member{name, last})
		default:
			*last = tree{object: true}
		}
		last.edit(rest, raw)
		return
	}
	n.members = slices.DeleteFunc(n.members, func(m member) bool {
		return m.name == name && (raw == nil || m.value != last)
	})
	switch {
	case raw == nil:
	case last == nil:
		n.members = append(n.members, member{name, rawTree(raw)})
	default:
		*last = *rawTree(raw)
	}
}

// rawTree reads the value of an edit, which the test made itself.
func rawTree(raw []byte) *tree { return readTree(panicker{}, raw) }

type panicker struct{}

func (panicker) Helper()                        {}
func (panicker) Fatalf(format string, _ ...any) { panic(format) }

// text writes n with its members in the order of their names; those of one
// name keep their order.
func (n *tree) text() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

func (n *tree) write(b *strings.Builder) {
	if !n.object {
		b.WriteString(n.raw)
		return
	}
	members := slices.Clone(n.members)
	slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	b.WriteString("{")
	for _, m := range members {
		b.WriteString(strconv.Quote(m.name) + ": ")
		m.value.write(b)
		b.WriteString("\n")
	}
	b.WriteString("}")
}
