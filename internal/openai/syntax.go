package openai

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
)

// Errors of Paths.Scan, other than *SyntaxError. Their texts are meant for the
// client that sent the body.
var (
	ErrNotObject      = errors.New("body is not a JSON object")
	ErrTooDeep        = errors.New("body is nested too deeply: at most " + strconv.Itoa(maxDepth) + " levels are accepted")
	ErrTooManyMembers = errors.New("body has too many members: at most " + strconv.Itoa(maxMembers) + " are accepted")
)

// SyntaxError says where and why a body is not JSON. Its text is meant for the
// client that sent the body and quotes at most one character of it.
type SyntaxError struct {
	Offset int    // of the byte that was not expected; the body's length if it ended too soon
	Msg    string // what was found there, and what was expected
}

func (e *SyntaxError) Error() string { return "body is not valid JSON: " + e.Msg }

// unexpected returns the error for what stands at b[i].
func unexpected(b []byte, i int, want string) error {
	var found string
	switch {
	case i >= len(b):
		found = "unexpected end"
	case b[i] < 0x20 || b[i] == 0x7f:
		found = fmt.Sprintf("unexpected control character 0x%02X", b[i])
	case b[i] > 0x7f:
		found = fmt.Sprintf("unexpected byte 0x%02X", b[i])
	default:
		found = fmt.Sprintf("unexpected character '%c'", b[i])
	}
	return &SyntaxError{Offset: i, Msg: fmt.Sprintf("%s at byte %d: expected %s", found, i, want)}
}

// peek returns b[i], or at the end a byte that no JSON text has outside of a
// string.
func peek(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// skipSpace returns the index of the first byte from i on that is not white
// space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipColon expects a colon from i on, and returns where the value after it
// begins.
func skipColon(b []byte, i int) (int, error) {
	i = skipSpace(b, i)
	if peek(b, i) != ':' {
		return i, unexpected(b, i, "':'")
	}
	return skipSpace(b, i+1), nil
}

// skipKey expects a member's name and its colon at i, and returns where the
// value begins.
func skipKey(b []byte, i int) (int, error) {
	if peek(b, i) != '"' {
		return i, unexpected(b, i, "a member name in double quotes")
	}
	i, err := skipString(b, i)
	if err != nil {
		return i, err
	}
	return skipColon(b, i)
}

// skipScalar expects a value that is no array or object at i, and returns
// where it ends.
func skipScalar(b []byte, i int) (int, error) {
	switch peek(b, i) {
	case '"':
		return skipString(b, i)
	case 't':
		return skipLiteral(b, i, "true")
	case 'f':
		return skipLiteral(b, i, "false")
	case 'n':
		return skipLiteral(b, i, "null")
	case 'N':
		return skipLiteral(b, i, "NaN")
	case 'I':
		return skipLiteral(b, i, "Infinity")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return skipNumber(b, i)
	}
	return i, unexpected(b, i, "a value")
}

func skipLiteral(b []byte, i int, word string) (int, error) {
	if end := i + len(word); end <= len(b) && string(b[i:end]) == word {
		return end, nil
	}
	for j := range len(word) {
		if peek(b, i+j) != word[j] {
			return i, unexpected(b, i+j, "the literal "+word)
		}
	}
	panic("BUG: a literal differs from itself")
}

func skipNumber(b []byte, i int) (int, error) {
	if b[i] == '-' {
		i++
		if peek(b, i) == 'I' {
			return skipLiteral(b, i, "Infinity")
		}
	}
	var err error
	if peek(b, i) == '0' {
		i++ // no digit may follow, so that 01 fails at its 1
	} else if i, err = skipDigits(b, i); err != nil {
		return i, err
	}
	if peek(b, i) == '.' {
		if i, err = skipDigits(b, i+1); err != nil {
			return i, err
		}
	}
	if peek(b, i)|0x20 == 'e' {
		i++
		if c := peek(b, i); c == '+' || c == '-' {
			i++
		}
		return skipDigits(b, i)
	}
	return i, nil
}

// skipDigits expects at least one digit at i.
func skipDigits(b []byte, i int) (int, error) {
	start := i
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	if i == start {
		return i, unexpected(b, i, "a digit")
	}
	return i, nil
}

const (
	ones  = 0x0101010101010101 // a byte repeated is the byte times ones
	highs = 0x80 * ones
)

// stops sets the high bit of each byte of x that a string cannot simply run
// over: a double quote, a backslash or a control character. Bytes above the
// lowest one that is marked may be marked falsely.
func stops(x uint64) uint64 {
	control, quote, backslash := x-0x20*ones, (x^'"'*ones)-ones, (x^'\\'*ones)-ones
	return (control | quote | backslash) &^ x & highs
}

// skipString returns where the string that begins with the quote at i ends.
// It takes eight bytes at a time, since nearly all of a body is strings.
func skipString(b []byte, i int) (int, error) {
	s := b[i+1:]
	for len(s) >= 8 {
		m := stops(binary.LittleEndian.Uint64(s))
		if m == 0 {
			s = s[8:]
			continue
		}
		k := bits.TrailingZeros64(m) / 8 & 7
		switch s[k] {
		case '"':
			return len(b) - len(s) + k + 1, nil
		case '\\':
			end, err := skipEscape(b, len(b)-len(s)+k)
			if err != nil {
				return end, err
			}
			s = b[end:]
		default:
			i = len(b) - len(s) + k
			return i, unexpected(b, i, "it to be escaped in a string")
		}
	}
	for i = len(b) - len(s); i < len(b); {
		switch c := b[i]; {
		case c == '"':
			return i + 1, nil
		case c == '\\':
			var err error
			if i, err = skipEscape(b, i); err != nil {
				return i, err
			}
		case c < 0x20:
			return i, unexpected(b, i, "it to be escaped in a string")
		default:
			i++
		}
	}
	return i, unexpected(b, i, "the end of a string")
}

// skipEscape returns where the escape that begins with the backslash at i
// ends.
func skipEscape(b []byte, i int) (int, error) {
	i++
	switch peek(b, i) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1, nil
	case 'u':
	default:
		return i, unexpected(b, i, `one of "\/bfnrtu after a backslash`)
	}
	for range 4 {
		i++
		if c := peek(b, i); c-'0' > 9 && c|0x20-'a' > 5 {
			return i, unexpected(b, i, `four hexadecimal digits after \u`)
		}
	}
	return i + 1, nil
}
