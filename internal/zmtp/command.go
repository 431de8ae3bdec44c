package zmtp

import (
	"encoding/binary"
	"strings"
)

// A command's body is its name, led by one length byte, and its data.
const (
	cmdReady = "READY"
	cmdError = "ERROR"
	cmdPing  = "PING"
	cmdPong  = "PONG"

	propSocketType = "Socket-Type"
	propIdentity   = "Identity"

	maxIdentity    = 255
	maxPingContext = 16
)

func appendCommand(b []byte, name string, data []byte) []byte {
	body := make([]byte, 0, 1+len(name)+len(data))
	body = append(body, byte(len(name)))
	body = append(body, name...)
	body = append(body, data...)
	return appendFrame(b, flagCommand, body)
}

// parseCommand splits a command's body.
func parseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || body[0] == 0 || int(body[0]) >= len(body) {
		return "", nil, &Error{ReasonMalformed, "command without a name"}
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}

// metadata is what one side says about itself in READY.
type metadata struct {
	socketType string
	identity   string
}

// properties returns them as READY carries them: a name led by one length byte, a value led by four.
func (m metadata) properties() []byte {
	var b []byte
	property := func(name, value string) {
		b = append(b, byte(len(name)))
		b = append(b, name...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
		b = append(b, value...)
	}
	property(propSocketType, m.socketType)
	property(propIdentity, m.identity)
	return b
}

// parseMetadata reads READY's properties. Names are compared without case, unknown ones are skipped.
func parseMetadata(b []byte) (metadata, error) {
	var m metadata
	for len(b) > 0 {
		name, rest, ok := cutProperty(b, 1)
		if !ok || len(name) == 0 {
			return metadata{}, &Error{ReasonMalformed, "property name"}
		}
		value, rest, ok := cutProperty(rest, 4)
		if !ok {
			return metadata{}, &Error{ReasonMalformed, "property value"}
		}
		b = rest
		switch {
		case strings.EqualFold(string(name), propSocketType):
			m.socketType = string(value)
		case strings.EqualFold(string(name), propIdentity):
			if len(value) > maxIdentity {
				return metadata{}, &Error{ReasonIdentity, "longer than 255 bytes"}
			}
			m.identity = string(value)
		}
	}
	return m, nil
}

// cutProperty cuts a field led by a length of one or four bytes.
func cutProperty(b []byte, lenBytes int) (field, rest []byte, ok bool) {
	if len(b) < lenBytes {
		return nil, nil, false
	}
	size := uint64(b[0])
	if lenBytes == 4 {
		size = uint64(binary.BigEndian.Uint32(b))
	}
	b = b[lenBytes:]
	if size > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:size], b[size:], true
}

// appendPong answers the data of a PING: two bytes of time to live, then a context to send back. The time to
// live is not acted on: IdleTimeout and TCP keep-alive do that.
func appendPong(b, ping []byte) ([]byte, error) {
	if len(ping) < 2 {
		return b, &Error{ReasonMalformed, "PING without a time to live"}
	}
	context := ping[2:]
	return appendCommand(b, cmdPong, context[:min(len(context), maxPingContext)]), nil
}
