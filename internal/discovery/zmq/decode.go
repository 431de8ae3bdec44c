package zmq

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/baton-llm/baton/internal/discovery"
	"github.com/baton-llm/baton/internal/worker"
)

// Errors of a payload; each is a reason for which a registration is dropped.
var (
	errMsgpack = errors.New("not a msgpack map or array of the fields")
	errFields  = errors.New("missing or wrong field")
	errType    = errors.New("unknown type")
	errAddress = errors.New("unusable address")
	errMode    = errors.New("transfer mode must be READ or WRITE")
)

// maxText bounds a text field, maxSize a data- or tensor-parallel size, maxDepth
// what is skipped of unknown fields.
const (
	maxText  = 512
	maxSize  = 4096
	maxDepth = 8
)

// message are the fields of a registration in any of its forms.
type message struct {
	typ, httpAddress, zmqAddress string
	dp, tp                       int64
	mode, connector, group       string

	// The form of MoRI-IO engines before vLLM #39565.
	role, requestAddress      string
	handshakePort, notifyPort int64
}

// decode reads one payload. It allocates no more than the fields it keeps.
func decode(b []byte) (worker.Registration, error) {
	var m message
	var err error
	switch msgp.NextType(b) {
	case msgp.MapType:
		err = m.readMap(b)
	case msgp.ArrayType:
		err = m.readArray(b)
	default:
		err = errMsgpack
	}
	if err != nil {
		return worker.Registration{}, err
	}
	return m.registration()
}

// readArray reads the fields in the order in which engines name them.
func (m *message) readArray(b []byte) error {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil || n < 3 || n > 16 {
		return errMsgpack
	}
	for i := range n {
		var key string
		if names := [...]string{"type", "http_address", "zmq_address", "dp_size", "tp_size", "transfer_mode"}; int(i) < len(names) {
			key = names[i]
		}
		if b, err = m.readField(key, b); err != nil {
			return err
		}
	}
	return atEnd(b)
}

func (m *message) readMap(b []byte) error {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil || n > 64 {
		return errMsgpack
	}
	for range n {
		var key []byte
		if key, b, err = msgp.ReadMapKeyZC(b); err != nil || len(key) > maxText {
			return errMsgpack
		}
		if b, err = m.readField(string(key), b); err != nil {
			return err
		}
	}
	return atEnd(b)
}

func atEnd(b []byte) error {
	if len(b) != 0 {
		return errMsgpack
	}
	return nil
}

// readField reads the value of one field; of one unknown it is skipped.
func (m *message) readField(key string, b []byte) ([]byte, error) {
	if text := m.text(key); text != nil {
		return readText(text, key, b)
	}
	if number := m.number(key); number != nil {
		return readNumber(number, key, b)
	}
	return skip(b, maxDepth)
}

func (m *message) text(key string) *string {
	switch key {
	case "type":
		return &m.typ
	case "http_address":
		return &m.httpAddress
	case "zmq_address":
		return &m.zmqAddress
	case "transfer_mode":
		return &m.mode
	case "kv_connector":
		return &m.connector
	case "group":
		return &m.group
	case "role":
		return &m.role
	case "request_address":
		return &m.requestAddress
	default:
		return nil
	}
}

func (m *message) number(key string) *int64 {
	switch key {
	case "dp_size":
		return &m.dp
	case "tp_size":
		return &m.tp
	case "handshake_port":
		return &m.handshakePort
	case "notify_port":
		return &m.notifyPort
	default:
		return nil
	}
}

func readText(dst *string, key string, b []byte) ([]byte, error) {
	if msgp.NextType(b) == msgp.NilType {
		return skip(b, maxDepth)
	}
	text, rest, err := msgp.ReadStringZC(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no text", errFields, key)
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("%w: %s is over %d bytes", errFields, key, maxText)
	}
	*dst = string(text)
	return rest, nil
}

func readNumber(dst *int64, key string, b []byte) ([]byte, error) {
	if msgp.NextType(b) == msgp.NilType {
		return skip(b, maxDepth)
	}
	n, rest, err := msgp.ReadInt64Bytes(b)
	if err != nil {
		// Some engines send ports as text.
		text, rest, textErr := msgp.ReadStringZC(b)
		if n, err = strconv.ParseInt(string(text), 10, 32); textErr != nil || err != nil {
			return nil, fmt.Errorf("%w: %s is no number", errFields, key)
		}
		*dst = n
		return rest, nil
	}
	*dst = n
	return rest, nil
}

// skip passes over one value of bounded depth.
func skip(b []byte, depth int) ([]byte, error) {
	if depth == 0 {
		return nil, errMsgpack
	}
	switch msgp.NextType(b) {
	case msgp.ArrayType:
		n, rest, err := msgp.ReadArrayHeaderBytes(b)
		if err != nil {
			return nil, errMsgpack
		}
		return skipAll(rest, uint64(n), depth)
	case msgp.MapType:
		n, rest, err := msgp.ReadMapHeaderBytes(b)
		if err != nil {
			return nil, errMsgpack
		}
		return skipAll(rest, 2*uint64(n), depth)
	default:
		rest, err := msgp.Skip(b)
		if err != nil {
			return nil, errMsgpack
		}
		return rest, nil
	}
}

func skipAll(b []byte, n uint64, depth int) ([]byte, error) {
	var err error
	for ; n > 0; n-- {
		if b, err = skip(b, depth-1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// registration judges the fields.
func (m *message) registration() (worker.Registration, error) {
	m.fromOldForm()
	reg := worker.Registration{}
	switch m.typ {
	case "P":
		reg.ID.Role = worker.Prefill
	case "D":
		reg.ID.Role = worker.Decode
	case "":
		return reg, fmt.Errorf("%w: type", errFields)
	default:
		return reg, errType
	}
	if m.httpAddress == "" || m.zmqAddress == "" {
		return reg, fmt.Errorf("%w: http_address and zmq_address are needed", errFields)
	}
	if m.dp < 0 || m.dp > maxSize || m.tp < 0 || m.tp > maxSize {
		return reg, fmt.Errorf("%w: dp_size and tp_size must be between 1 and %d", errFields, maxSize)
	}
	base, rank, err := discovery.ParseURL(withScheme(m.httpAddress))
	if err != nil {
		return reg, fmt.Errorf("%w: %w", errAddress, err)
	}
	reg.ID.URL, reg.ID.Rank = base, rank
	reg.Endpoint = worker.Endpoint{
		ZMQ: m.zmqAddress, DP: int(m.dp), TP: int(m.tp), Mode: m.mode, Dialect: m.connector,
	}
	if m.group != "" {
		reg.Labels = map[string]string{worker.GroupLabel: m.group}
	}
	if strings.HasPrefix(m.zmqAddress, "host:") {
		if reg.Endpoint.Dialect == "" {
			reg.Endpoint.Dialect = "moriio"
		}
		if _, err := ParseComposite(m.zmqAddress); err != nil {
			return reg, err
		}
	}
	if m.mode != "" || reg.Endpoint.Dialect == "moriio" {
		if m.mode != "READ" && m.mode != "WRITE" {
			return reg, fmt.Errorf("%w, not %q", errMode, m.mode)
		}
	}
	return reg, nil
}

// fromOldForm turns the registration of older MoRI-IO engines into today's.
func (m *message) fromOldForm() {
	if m.role == "" || m.requestAddress == "" {
		return
	}
	m.typ = m.role
	m.mode = strings.ToUpper(m.mode)
	// The address is that of one route, such as http://10.0.0.2:8000/v1/completions.
	m.httpAddress = m.requestAddress
	if i := strings.Index(m.httpAddress, "/v1/"); i >= 0 {
		m.httpAddress = m.httpAddress[:i]
	}
	host := strings.TrimPrefix(strings.TrimPrefix(m.httpAddress, "http://"), "https://")
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i]
	}
	m.zmqAddress = fmt.Sprintf("host:%s,handshake:%d,notify:%d", strings.Trim(host, "[]"), m.handshakePort, m.notifyPort)
}

// withScheme makes a URL of host:port, which engines announce, with the brackets
// of an IPv6 address that they leave out.
func withScheme(address string) string {
	if strings.Contains(address, "://") {
		return address
	}
	rank := ""
	if i := strings.LastIndexByte(address, '@'); i >= 0 {
		address, rank = address[:i], address[i:]
	}
	if i := strings.LastIndexByte(address, ':'); i >= 0 && !strings.HasPrefix(address, "[") && strings.Contains(address[:i], ":") {
		address = "[" + address[:i] + "]" + address[i:]
	}
	return "http://" + address + rank
}

// Composite is the ZMQ address of a MoRI-IO engine.
type Composite struct {
	Host              string
	Handshake, Notify uint16
}

// ParseComposite reads host:IP,handshake:PORT,notify:PORT as the engines do:
// parts are split at commas, and each at its first colon.
func ParseComposite(s string) (Composite, error) {
	var c Composite
	for part := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(part, ":")
		if !ok {
			return c, fmt.Errorf("%w: %q has no value", errAddress, part)
		}
		var err error
		switch key {
		case "host":
			c.Host = value
		case "handshake":
			c.Handshake, err = port(value)
		case "notify":
			c.Notify, err = port(value)
		}
		if err != nil {
			return c, fmt.Errorf("%w: %s of %q", errAddress, key, s)
		}
	}
	if c.Host == "" || c.Handshake == 0 || c.Notify == 0 {
		return c, fmt.Errorf("%w: %q needs host, handshake and notify", errAddress, s)
	}
	return c, nil
}

func port(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}

// hostOf returns the IP address of a base URL; engines announce no names.
func hostOf(base string) (netip.Addr, error) {
	_, host, _ := strings.Cut(base, "://")
	host, _, _ = strings.Cut(host, "/")
	if ap, err := netip.ParseAddrPort(host); err == nil {
		return ap.Addr().Unmap(), nil
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return addr, fmt.Errorf("%w: %q is no IP address", errAddress, host)
	}
	return addr.Unmap(), nil
}
