package enginesim

import (
	"encoding/binary"
	"fmt"
)

// member is one key of a msgpack map, with a text or a number.
type member struct {
	key   string
	value any // string or int
}

// packMap writes a msgpack map as Python's msgpack.dumps does: the shortest form of
// everything, keys in the order given.
func packMap(list []member) []byte {
	var b []byte
	if n := len(list); n < 16 {
		b = append(b, 0x80|byte(n))
	} else {
		b = binary.BigEndian.AppendUint16(append(b, 0xde), uint16(n)) //nolint:gosec // no registration has 64 Ki members
	}
	for _, m := range list {
		b = packText(b, m.key)
		switch v := m.value.(type) {
		case string:
			b = packText(b, v)
		case int:
			b = packInt(b, v)
		default:
			panic(fmt.Sprintf("BUG: %T in a registration", v))
		}
	}
	return b
}

func packText(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n < 1<<8:
		b = append(b, 0xd9, byte(n))
	default:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(min(n, 1<<16-1))) //nolint:gosec // bounded
		s = s[:min(n, 1<<16-1)]
	}
	return append(b, s...)
}

func packInt(b []byte, n int) []byte {
	switch {
	case n >= 0 && n < 1<<7:
		return append(b, byte(n))
	case n >= 0 && n < 1<<8:
		return append(b, 0xcc, byte(n))
	case n >= 0 && n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n)) //nolint:gosec // two's complement is meant
	}
}
