package enginesim

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// object is a JSON object whose values are not looked at yet. Of a key that
// comes twice the last value counts, as in Python.
type object map[string]json.RawMessage

// parseObject reads a request body as Python's json.loads and a pydantic model
// would: NaN and Infinity are numbers, anything but an object is an error.
func parseObject(body []byte) (object, *apiError) {
	if !utf8.Valid(body) {
		e := statusError(400)
		e.message = "There was an error parsing the body"
		return nil, e
	}
	if o, ok := asObject(body); ok {
		return o, nil
	}
	body = withoutNaN(body)
	var v json.RawMessage
	if err := json.Unmarshal(body, &v); err != nil {
		return nil, badSchema("", "{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'ctx': {'error': '%s'}}", pyText(err.Error()))
	}
	o, ok := asObject(v)
	if !ok {
		return nil, badSchema("", "{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object to extract fields from'}")
	}
	return o, nil
}

func asObject(v json.RawMessage) (object, bool) {
	v = bytes.TrimSpace(v)
	if len(v) == 0 || v[0] != '{' {
		return nil, false
	}
	var o object
	return o, json.Unmarshal(v, &o) == nil
}

// asList splits an array; ok is false if v is none.
func asList(v json.RawMessage) (list []json.RawMessage, ok bool) {
	v = bytes.TrimSpace(v)
	if len(v) == 0 || v[0] != '[' {
		return nil, false
	}
	return list, json.Unmarshal(v, &list) == nil
}

func asText(v json.RawMessage) (s string, ok bool) {
	v = bytes.TrimSpace(v)
	if len(v) == 0 || v[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(v, &s) == nil
}

// asIDs reads a list of token ids.
func asIDs(v json.RawMessage) (ids []int, ok bool) {
	v = bytes.TrimSpace(v)
	if len(v) == 0 || v[0] != '[' {
		return nil, false
	}
	return ids, json.Unmarshal(v, &ids) == nil
}

// withoutNaN replaces the numbers that only Python knows by null.
func withoutNaN(body []byte) []byte {
	out := make([]byte, 0, len(body))
	inText := false
	for i := 0; i < len(body); i++ {
		c := body[i]
		switch {
		case inText && c == '\\' && i+1 < len(body):
			out = append(out, c)
			i++
			c = body[i]
		case c == '"':
			inText = !inText
		case !inText:
			if n := pythonNumber(body[i:]); n > 0 {
				out = append(out, "null"...)
				i += n - 1
				continue
			}
		}
		out = append(out, c)
	}
	return out
}

func pythonNumber(b []byte) int {
	for _, s := range []string{"NaN", "Infinity", "-Infinity"} {
		if bytes.HasPrefix(b, []byte(s)) {
			return len(s)
		}
	}
	return 0
}

func pyText(s string) string { return strings.ReplaceAll(s, "'", `\'`) }

// isNull tells whether v is absent or null.
func isNull(v json.RawMessage) bool {
	v = bytes.TrimSpace(v)
	return len(v) == 0 || string(v) == "null"
}

// truthy is Python's idea of a value that counts as given.
func truthy(v json.RawMessage) bool {
	if isNull(v) {
		return false
	}
	switch s := string(compact(v)); s {
	case "false", "0", `""`, "{}", "[]":
		return false
	default:
		return true
	}
}

func compact(v json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return v
	}
	return b.Bytes()
}

// reader takes typed values out of an object, with pydantic's lenience. It keeps
// the first error.
type reader struct {
	object
	err *apiError
}

func (r *reader) fail(e *apiError) {
	if r.err == nil {
		r.err = e
	}
}

func (r *reader) given(name string) bool { return !isNull(r.object[name]) }

// integer returns nil if the field is absent or null.
func (r *reader) integer(name string) *int {
	if !r.given(name) {
		return nil
	}
	n, ok := lenientInt(r.object[name])
	if !ok {
		r.fail(badField("int_parsing", name, "Input should be a valid integer"))
		return nil
	}
	return &n
}

// number checks that a member is a number, or a text of one, as pydantic does.
func (r *reader) number(name string) {
	if !r.given(name) {
		return
	}
	text := string(bytes.TrimSpace(r.object[name]))
	if s, ok := asText(r.object[name]); ok {
		text = strings.TrimSpace(s)
	}
	if _, err := strconv.ParseFloat(text, 64); err != nil {
		r.fail(badField("float_parsing", name, "Input should be a valid number"))
	}
}

func lenientInt(v json.RawMessage) (int, bool) {
	text := string(bytes.TrimSpace(v))
	if s, ok := asText(v); ok {
		text = strings.TrimSpace(s)
	}
	if n, err := strconv.Atoi(text); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int(f), true
}

func (r *reader) intOr(name string, def int) int {
	if n := r.integer(name); n != nil {
		return *n
	}
	return def
}

func (r *reader) flag(name string, def bool) bool {
	if !r.given(name) {
		return def
	}
	text := string(bytes.TrimSpace(r.object[name]))
	if s, ok := asText(r.object[name]); ok {
		text = strings.ToLower(s)
	}
	switch text {
	case "true", "1", "1.0", "yes", "on", "t", "y":
		return true
	case "false", "0", "0.0", "no", "off", "f", "n":
		return false
	}
	r.fail(badField("bool_parsing", name, "Input should be a valid boolean, unable to interpret input"))
	return def
}

func (r *reader) text(name string) string {
	if !r.given(name) {
		return ""
	}
	s, ok := asText(r.object[name])
	if !ok {
		r.fail(badField("string_type", name, "Input should be a valid string"))
	}
	return s
}

// inner returns the object in a field, nil if absent or null.
func (r *reader) inner(name string) object {
	if !r.given(name) {
		return nil
	}
	o, ok := asObject(r.object[name])
	if !ok {
		r.fail(badField("dict_type", name, "Input should be a valid dictionary"))
	}
	return o
}
