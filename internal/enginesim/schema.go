package enginesim

import (
	"encoding/json"
	"strconv"
	"strings"
)

// deepest is how deep an example goes into a schema that refers to itself.
const deepest = 16

// example returns a value that fits a JSON schema, written as Python's json.dumps
// does: of an object the members that the schema requires, in the order in which it
// lists them, of a list one item if it may be chosen. Words and numbers are the
// story's, so that equal prompts give equal values.
func example(schema json.RawMessage, from *story) string {
	root, _ := asObject(schema)
	x := exampler{root: root, story: from}
	x.value(schema, 0)
	return x.out.String()
}

type exampler struct {
	root  object
	story *story
	out   strings.Builder
}

func (x *exampler) value(schema json.RawMessage, depth int) {
	o, _ := asObject(schema)
	if depth > deepest {
		x.out.WriteString("null")
		return
	}
	if raw, ok := x.given(o); ok {
		x.out.Write(compact(raw))
		return
	}
	if raw, ok := x.elsewhere(o); ok {
		x.value(raw, depth+1)
		return
	}
	switch kindOf(o, depth == 0) {
	case "object":
		x.object(o, depth)
	case "array":
		x.array(o, depth)
	case "integer", "number":
		x.number(o)
	case "boolean":
		x.out.WriteString("true")
	case "null":
		x.out.WriteString("null")
	default:
		x.out.Write(encode(x.story.next()))
	}
}

// given returns the value that the schema itself names.
func (*exampler) given(o object) (json.RawMessage, bool) {
	if raw, ok := o["const"]; ok {
		return raw, true
	}
	if list, _ := asList(o["enum"]); len(list) > 0 {
		return list[0], true
	}
	return nil, false
}

// elsewhere returns the schema that stands for o.
func (x *exampler) elsewhere(o object) (json.RawMessage, bool) {
	for _, name := range []string{"anyOf", "oneOf", "allOf"} {
		if list, _ := asList(o[name]); len(list) > 0 {
			return list[0], true
		}
	}
	path, _ := asText(o["$ref"])
	path, ok := strings.CutPrefix(path, "#/")
	if !ok {
		return nil, false
	}
	at, raw := x.root, json.RawMessage(nil)
	for name := range strings.SplitSeq(path, "/") {
		raw = at[name]
		at, _ = asObject(raw)
	}
	return raw, true
}

// kindOf returns the type that a schema asks for; arguments are an object by default.
func kindOf(o object, outermost bool) string {
	kind, ok := asText(o["type"])
	if list, _ := asList(o["type"]); !ok && len(list) > 0 {
		kind, _ = asText(list[0])
	}
	if kind == "" && (outermost || o["properties"] != nil) {
		return "object"
	}
	return kind
}

func (x *exampler) object(o object, depth int) {
	members, _ := asObject(o["properties"])
	required, _ := asList(o["required"])
	x.out.WriteByte('{')
	for i, raw := range required {
		if i > 0 {
			x.out.WriteString(", ")
		}
		name, _ := asText(raw)
		x.out.Write(encode(name))
		x.out.WriteString(": ")
		x.value(members[name], depth+1)
	}
	x.out.WriteByte('}')
}

func (x *exampler) array(o object, depth int) {
	n := 1
	if least, ok := lenientInt(o["minItems"]); ok {
		n = min(least, 16)
	}
	x.out.WriteByte('[')
	for i := range n {
		if i > 0 {
			x.out.WriteString(", ")
		}
		x.value(o["items"], depth+1)
	}
	x.out.WriteByte(']')
}

func (x *exampler) number(o object) {
	for _, name := range []string{"minimum", "maximum"} {
		if !isNull(o[name]) {
			x.out.Write(compact(o[name]))
			return
		}
	}
	x.out.WriteString(strconv.Itoa(len(x.story.next())))
}
