package openai

const (
	// maxDepth is how deep arrays and objects may be nested, the body included.
	maxDepth = 1000
	// maxMembers is how many members the body may have at its top level, and
	// how many may be recorded in one scan.
	maxMembers = 4096
)

// Doc is what one scan found in one body. The zero value is ready for use.
//
// A Doc can be used for one body after the other and then allocates nothing.
// It refers to the body, which must not change while the Doc is in use. It
// must not be used by two goroutines at once.
type Doc struct {
	paths *Paths // nil if the Doc holds no body
	body  []byte

	// found has the body itself at index 0 and then every member that a path
	// names. last has, by node, the index of the last member of that name in
	// the last parent of that name; 0 is none.
	found []member
	last  []int32

	closers [maxDepth + 1]byte // by depth, the bracket that closes what is open
	key     []byte             // scratch: an unescaped name

	marks   []mark  // scratch of Splice, by node
	patches []patch // scratch of Splice
}

// member is one occurrence of a wanted name.
type member struct {
	key   int   // offset of the name's first quote
	val   int   // offset of the value
	end   int   // offset one past the value
	count int   // elements or members of the value
	prev  int32 // index in found of the name's occurrence before in this parent; 0 is none
	kind  Kind
}

// Reset makes d forget its body.
func (d *Doc) Reset() {
	d.paths, d.body = nil, nil
	d.found = d.found[:0]
}

// Scan checks that body is one JSON object, with white space around it or
// not, and finds in it the members that p names. It takes one pass and time
// linear in the body.
//
// Accepted are the objects that encoding/json accepts, with these
// differences: NaN, Infinity and -Infinity may stand where a value may;
// nesting ends at 1,000 levels and the top level at 4,096 members; and the
// paths may name no more than 4,096 members, repeated ones included.
// Bytes in strings need not be UTF-8. Names are compared unescaped and with
// case.
//
// The error is a *SyntaxError, ErrNotObject, ErrTooDeep or ErrTooManyMembers;
// d then holds no body.
func (p *Paths) Scan(d *Doc, body []byte) error {
	d.paths, d.body = p, body
	d.found = append(d.found[:0], member{})
	if cap(d.last) < len(p.nodes) {
		d.last = make([]int32, len(p.nodes))
	}
	d.last = d.last[:len(p.nodes)]
	clear(d.last)

	if err := d.scan(); err != nil {
		d.Reset()
		return err
	}
	return nil
}

func (d *Doc) scan() error {
	b := d.body
	start := skipSpace(b, 0)
	if c := peek(b, start); c != '{' {
		if kinds[c] != Missing {
			return ErrNotObject
		}
		return unexpected(b, start, "'{'")
	}
	end, count, err := d.members(0, start, 0)
	if err != nil {
		return err
	}
	if i := skipSpace(b, end); i < len(b) {
		return unexpected(b, i, "the end of the body")
	}
	d.found[0] = member{key: start, val: start, end: end, count: count, kind: Object}
	return nil
}

// Value returns the value of the path with the given ID. Where a name is
// repeated, the last one counts, at each level by itself: if a parent is
// repeated, only the members of the last parent count, and if that is no
// object there are none.
func (d *Doc) Value(id int) Value {
	if d.paths == nil {
		return Value{}
	}
	i := d.last[d.paths.ids[id]]
	if i == 0 {
		return Value{}
	}
	m := &d.found[i]
	v := Value{Kind: m.kind, Raw: d.body[m.val:m.end:m.end], Len: m.count}
	if v.Kind == Array && v.Len > 0 {
		v.First = kinds[d.body[skipSpace(d.body, m.val+1)]]
	}
	return v
}

// members scans the object at i, whose node is n and which stands in depth
// others, and records the members that are wanted. It returns where the object
// ends and how many members it has.
func (d *Doc) members(n int32, i, depth int) (end, count int, err error) {
	b := d.body
	depth++ // at most maxNames: far below maxDepth
	i = skipSpace(b, i+1)
	if peek(b, i) == '}' {
		return i + 1, 0, nil
	}
	for {
		count++
		if n == 0 && count > maxMembers {
			return 0, 0, ErrTooManyMembers
		}
		if i, err = d.member(n, i, depth); err != nil {
			return 0, 0, err
		}
		i = skipSpace(b, i)
		switch peek(b, i) {
		case ',':
			i = skipSpace(b, i+1)
		case '}':
			return i + 1, count, nil
		default:
			return 0, 0, unexpected(b, i, "',' or '}'")
		}
	}
}

// member scans the member at i of an object whose node is n, and returns where
// its value ends.
func (d *Doc) member(n int32, i, depth int) (end int, err error) {
	b := d.body
	if peek(b, i) != '"' {
		return 0, unexpected(b, i, "a member name in double quotes")
	}
	m := member{key: i}
	if i, err = skipString(b, i); err != nil {
		return 0, err
	}
	n, d.key = d.paths.child(n, b[m.key+1:i-1], d.key)
	if m.val, err = skipColon(b, i); err != nil {
		return 0, err
	}
	if n == 0 {
		end, _, err = d.value(m.val, depth)
		return end, err
	}

	m.kind = kinds[peek(b, m.val)]
	if d.paths.hasChildren(n) {
		clear(d.last[n+1 : d.paths.nodes[n].end]) // an earlier parent's members count no more
	}
	if m.kind == Object && d.paths.hasChildren(n) {
		m.end, m.count, err = d.members(n, m.val, depth)
	} else {
		m.end, m.count, err = d.value(m.val, depth)
	}
	if err != nil {
		return 0, err
	}
	if len(d.found) > maxMembers { // the body itself is one of them
		return 0, ErrTooManyMembers
	}
	m.prev = d.last[n]
	d.last[n] = int32(len(d.found))
	d.found = append(d.found, m)
	return m.end, nil
}

// value checks the value at i, which stands in base arrays and objects, and
// records nothing. It returns where the value ends and how many elements or
// members it has. It does not recurse: a body chooses how deep it is.
func (d *Doc) value(i, base int) (end, count int, err error) {
	b, depth := d.body, base
values:
	for {
		switch peek(b, i) {
		case '{':
			if depth++; depth > maxDepth {
				return 0, 0, ErrTooDeep
			}
			d.closers[depth] = '}'
			if i = skipSpace(b, i+1); peek(b, i) != '}' {
				if i, err = skipKey(b, i); err != nil {
					return 0, 0, err
				}
				continue
			}
			i, depth = i+1, depth-1
		case '[':
			if depth++; depth > maxDepth {
				return 0, 0, ErrTooDeep
			}
			d.closers[depth] = ']'
			if i = skipSpace(b, i+1); peek(b, i) != ']' {
				continue
			}
			i, depth = i+1, depth-1
		default:
			if i, err = skipScalar(b, i); err != nil {
				return 0, 0, err
			}
		}
		// Each turn: a value that stands in depth others has ended at i.
		for depth > base {
			if depth == base+1 {
				count++
			}
			i = skipSpace(b, i)
			switch c := peek(b, i); {
			case c == ',':
				i = skipSpace(b, i+1)
				if d.closers[depth] == '}' {
					if i, err = skipKey(b, i); err != nil {
						return 0, 0, err
					}
				}
				continue values
			case c == d.closers[depth]:
				i, depth = i+1, depth-1
			case d.closers[depth] == '}':
				return 0, 0, unexpected(b, i, "',' or '}'")
			default:
				return 0, 0, unexpected(b, i, "',' or ']'")
			}
		}
		return i, count, nil
	}
}
