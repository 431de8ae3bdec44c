package zmq_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/baton-llm/baton/internal/discovery/zmq"
	"github.com/baton-llm/baton/internal/worker"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDecodeVectors decodes payloads as engines send them, byte for byte.
func TestDecodeVectors(t *testing.T) {
	tests := []struct {
		name, payload string
		want          worker.Registration
	}{
		{
			"p2p",
			`83a474797065a150ac687474705f61646472657373ae31302e302e302e323a32
			 30303031ab7a6d715f61646472657373ae31302e302e302e323a3231303031`,
			worker.Registration{
				ID:       worker.ID{Role: worker.Prefill, URL: "http://10.0.0.2:20001"},
				Endpoint: worker.Endpoint{ZMQ: "10.0.0.2:21001"},
			},
		},
		{
			"moriio write",
			`86a474797065a144ac687474705f61646472657373ad31302e302e302e333a38
			 323030ab7a6d715f61646472657373d929686f73743a31302e302e302e332c68
			 616e647368616b653a373330312c6e6f746966793a3632303035a764705f7369
			 7a6501a774705f73697a6508ad7472616e736665725f6d6f6465a55752495445`,
			worker.Registration{
				ID: worker.ID{Role: worker.Decode, URL: "http://10.0.0.3:8200"},
				Endpoint: worker.Endpoint{
					ZMQ: "host:10.0.0.3,handshake:7301,notify:62005", DP: 1, TP: 8, Mode: "WRITE", Dialect: "moriio",
				},
			},
		},
		{
			"array form",
			"93 a150 ae31302e302e302e323a3230303031 ae31302e302e302e323a3231303031",
			worker.Registration{
				ID:       worker.ID{Role: worker.Prefill, URL: "http://10.0.0.2:20001"},
				Endpoint: worker.Endpoint{ZMQ: "10.0.0.2:21001"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := zmq.Decode(unhex(t, tt.payload))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// pack writes a map in the order of its arguments.
func pack(fields ...any) []byte {
	b := msgp.AppendMapHeader(nil, uint32(len(fields)/2))
	for i := 0; i < len(fields); i += 2 {
		b = msgp.AppendString(b, fields[i].(string))
		var err error
		if b, err = msgp.AppendIntf(b, fields[i+1]); err != nil {
			panic(err)
		}
	}
	return b
}

func TestDecode(t *testing.T) {
	p2p := []any{"type", "P", "http_address", "10.0.0.2:20001", "zmq_address", "10.0.0.2:21001"}
	with := func(more ...any) []byte { return pack(append(append([]any{}, p2p...), more...)...) }
	tests := []struct {
		name    string
		payload []byte
		want    string // URL@rank role dialect mode, or the error
	}{
		{"unknown fields", with("future", map[string]any{"a": []any{int64(1), "x"}}), "http://10.0.0.2:20001 prefill  "},
		{"last duplicate wins", with("type", "D"), "http://10.0.0.2:20001 decode  "},
		{"connector key", with("kv_connector", "nixl"), "http://10.0.0.2:20001 prefill nixl "},
		{"nil is unknown", with("transfer_mode", nil), "http://10.0.0.2:20001 prefill  "},
		{"IPv6 without brackets", pack("type", "D", "http_address", "fd00::1:8000", "zmq_address", "[fd00::1]:9000"), "http://[fd00::1]:8000 decode  "},
		{"rank", pack("type", "D", "http_address", "10.0.0.2:8000@3", "zmq_address", "z"), "http://10.0.0.2:8000@3 decode  "},
		{"scheme", pack("type", "D", "http_address", "https://10.0.0.2:8000", "zmq_address", "z"), "https://10.0.0.2:8000 decode  "},
		{"sizes as text", pack("type", "D", "http_address", "10.0.0.2:8000", "zmq_address", "host:h,handshake:1,notify:2", "tp_size", "4", "transfer_mode", "READ"), "http://10.0.0.2:8000 decode moriio READ"},
		{"old moriio form", pack("type", "register", "role", "P", "request_address", "http://10.0.0.2:8000/v1/completions", "handshake_port", int64(6301), "notify_port", int64(61005), "dp_size", int64(1), "tp_size", int64(1), "transfer_mode", "read"), "http://10.0.0.2:8000 prefill moriio READ"},

		{"HELLO", with("type", "HELLO"), "unknown type"},
		{"no type", pack("http_address", "10.0.0.2:1", "zmq_address", "z"), "missing or wrong field: type"},
		{"no address", pack("type", "P", "zmq_address", "z"), "missing or wrong field: http_address and zmq_address are needed"},
		{"type is a number", with("type", int64(7)), "missing or wrong field: type is no text"},
		{"size is a list", with("dp_size", []any{}), "missing or wrong field: dp_size is no number"},
		{"size is negative", with("dp_size", int64(-1)), "missing or wrong field: dp_size and tp_size must be between 1 and 4096"},
		{"long text", with("type", strings.Repeat("P", 600)), "missing or wrong field: type is over 512 bytes"},
		{"port is no port", with("http_address", "10.0.0.2:99999"), "unusable address"},
		{"composite without notify", with("zmq_address", "host:h,handshake:1"), "unusable address"},
		{"moriio without mode", with("zmq_address", "host:h,handshake:1,notify:2"), "transfer mode must be READ or WRITE, not \"\""},
		{"other mode", with("transfer_mode", "PUSH"), "transfer mode must be READ or WRITE, not \"PUSH\""},
		{"empty", nil, "not a msgpack"},
		{"text", msgp.AppendString(nil, "hello"), "not a msgpack"},
		{"trailing bytes", append(with(), 0), "not a msgpack"},
		{"truncated", with()[:20], "not a msgpack"},
		{"huge map header", []byte{0xdf, 0xff, 0xff, 0xff, 0xff}, "not a msgpack"},
		{"deep nesting", append(append([]byte{0x81, 0xa1, 'x'}, []byte(strings.Repeat("\x91", 60000))...), 0xc0), "not a msgpack"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reg, err := zmq.Decode(tt.payload)
			got := strings.Join([]string{reg.ID.Label(), reg.ID.Role.String(), reg.Endpoint.Dialect, reg.Endpoint.Mode}, " ")
			if err != nil {
				if !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("got error %q, want %q", err, tt.want)
				}
				return
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// FuzzDecode: whatever the bytes, decoding ends, and what it accepts is a
// registration of a known role at a URL in the one form of IDs.
func FuzzDecode(f *testing.F) {
	f.Add(unhex(f, `83a474797065a150ac687474705f61646472657373ae31302e302e302e323a3230303031ab7a6d715f61646472657373ae31302e302e302e323a3231303031`))
	f.Add(pack("type", "D", "http_address", "10.0.0.2:8000", "zmq_address", "host:h,handshake:1,notify:2", "transfer_mode", "READ", "x", []any{map[string]any{"y": nil}}))
	f.Add([]byte{0x91, 0x91, 0x91})
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		reg, err := zmq.Decode(b)
		if err != nil {
			return
		}
		if reg.ID.Role != worker.Prefill && reg.ID.Role != worker.Decode {
			t.Errorf("role %v", reg.ID.Role)
		}
		if !strings.HasPrefix(reg.ID.URL, "http") || reg.Endpoint.ZMQ == "" {
			t.Errorf("accepted %+v", reg)
		}
	})
}
