package openai

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind is the kind of a JSON value.
type Kind uint8

// The kinds. NaN, Infinity and -Infinity are of the kind Number.
const (
	Missing Kind = iota // no such member
	Null
	False
	True
	Number
	String
	Array
	Object
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	names := [...]string{"missing", "null", "false", "true", "number", "string", "array", "object"}
	if int(k) < len(names) {
		return names[k]
	}
	return "invalid"
}

// kinds gives the kind of a value by its first byte; Missing if none begins so.
var kinds = [256]Kind{
	'n': Null, 'f': False, 't': True, '"': String, '[': Array, '{': Object,
	'-': Number, 'N': Number, 'I': Number,
	'0': Number, '1': Number, '2': Number, '3': Number, '4': Number,
	'5': Number, '6': Number, '7': Number, '8': Number, '9': Number,
}

// Value is one value in a scanned body. The zero Value is a missing one.
type Value struct {
	Kind  Kind
	Raw   []byte // the value's bytes, part of the body; nil if missing
	Len   int    // elements of an array, or members of an object, repeated names included
	First Kind   // kind of an array's first element
}

// Bool reports whether the value is true.
func (v Value) Bool() bool { return v.Kind == True }

// Int returns the value of a whole number in plain digits that fits an int64.
// It is false for anything else, 5.0 and 1e2 included.
func (v Value) Int() (int64, bool) {
	const longest = len("-9223372036854775808")
	if v.Kind != Number || len(v.Raw) > longest {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.Raw), 10, 64)
	return n, err == nil
}

// AppendString appends the text of a string to dst. Half of a surrogate pair
// without its other half becomes U+FFFD, as with encoding/json; bytes that are
// not UTF-8 are passed on as they are, which encoding/json would not do. If
// the value is not a string, AppendString returns dst and false.
func (v Value) AppendString(dst []byte) ([]byte, bool) {
	if v.Kind != String {
		return dst, false
	}
	return appendUnescaped(dst, v.Raw[1:len(v.Raw)-1]), true
}

// Text returns the text of a string and true, or false if the value is not a
// string. The text is valid UTF-8, fit for a label or a log: each run of bytes
// that are not UTF-8 becomes one U+FFFD.
func (v Value) Text() (string, bool) {
	if v.Kind != String {
		return "", false
	}
	raw := v.Raw[1 : len(v.Raw)-1]
	if bytes.IndexByte(raw, '\\') >= 0 {
		raw = appendUnescaped(nil, raw)
	}
	return strings.ToValidUTF8(string(raw), "\uFFFD"), true
}

// appendUnescaped appends to dst the text of a string that has been checked
// and is given without its quotes.
func appendUnescaped(dst, s []byte) []byte {
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		s = s[i:]
		switch c := s[1]; c {
		case 'u':
			r, n := unescapeRune(s)
			dst = utf8.AppendRune(dst, r)
			s = s[n:]
			continue
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default: // a quote, a backslash or a slash
			dst = append(dst, c)
		}
		s = s[2:]
	}
}

// unescapeRune reads the \u escape at the start of s, or the two of a
// surrogate pair, and returns how many bytes it took.
func unescapeRune(s []byte) (rune, int) {
	r := hex4(s[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(s) >= 12 && s[6] == '\\' && s[7] == 'u' {
		if pair := utf16.DecodeRune(r, hex4(s[8:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// hex4 returns the number that four hexadecimal digits stand for.
func hex4(s []byte) rune {
	var r rune
	for _, c := range s[:4] {
		switch {
		case c <= '9':
			c -= '0'
		default:
			c = c&^0x20 - 'A' + 10
		}
		r = r<<4 | rune(c)
	}
	return r
}
