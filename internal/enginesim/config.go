package enginesim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"
)

// Values of [Config.Role].
const (
	RoleRegular = "regular" // serves whole requests
	RolePrefill = "prefill" // meant for prefill legs
	RoleDecode  = "decode"  // meant for decode legs
)

// Values of [Config.FailPolicy], vLLM's kv_load_failure_policy.
const (
	FailPolicyFail      = "fail"      // a lost hand-off is an error
	FailPolicyRecompute = "recompute" // a lost hand-off is computed anew
)

// Values of [Config.TransferMode].
const (
	TransferRead  = "READ"  // decode reads
	TransferWrite = "WRITE" // prefill writes
)

// moriioValidity is how long a MoRI-IO engine in read mode keeps unread blocks.
const moriioValidity = time.Hour

// Version is the vLLM version the engine claims to be.
const Version = "0.29.0"

// Config describes one simulated engine. The zero value is a regular engine
// that serves the model "m" and answers without delay.
type Config struct {
	// Role is RoleRegular (default), RolePrefill or RoleDecode. Any role accepts
	// any request, as vLLM does; see Strict.
	Role string
	// Models are the served names, by default "m" alone. The first is the base
	// model. A further "name" is another name of it, and "name=parent" is a LoRA
	// adapter of parent.
	Models []string
	// Connector is one of the Connector constants.
	Connector string
	// EngineID is the connector's engine id; default a random UUID, so that a
	// restarted engine has another one. With moriio it is always host:port.
	EngineID string
	// Advertise is the host:port under which other engines reach this engine's
	// HTTP server. A connector needs it.
	Advertise string

	// ZMQAddress is the address that the engine registers and that request ids
	// name. Default: the host of Advertise with its port + 1000; with moriio
	// "host:H,handshake:A,notify:B" of that host, HandshakePort and NotifyPort.
	ZMQAddress string
	// HandshakePort and NotifyPort are for moriio: default the port of Advertise
	// + 1000 and + 2000.
	HandshakePort, NotifyPort int
	// PeerHTTP returns the host:port of the HTTP server of the engine with a ZMQ
	// address, "" for none. The default follows ZMQAddress: the same host, and the
	// port (of moriio the handshake port) - 1000. An engine does not listen on its
	// ZMQ port: what real engines say there, simulated ones say over HTTP.
	PeerHTTP func(zmqAddress string) string

	// Discovery is the host:port of a router's ZMQ socket, for RunPings.
	Discovery string
	// PingInterval is the time between registrations, default 3 s.
	PingInterval time.Duration
	// PingIdentity gives the ZMQ socket ZMQAddress as its identity, which p2p
	// always does.
	PingIdentity bool
	// ExtraRegistration are further members of a registration. With kv_connector
	// "nixl", say, engines can register that do not do so by themselves.
	ExtraRegistration map[string]string
	// OldMoRIIO registers moriio in the form of engines before April 2026.
	OldMoRIIO bool
	// DialZMQ connects RunPings; nil means Dial.
	DialZMQ func(ctx context.Context, addr string) (net.Conn, error)

	// TransferMode is for moriio: TransferRead or TransferWrite (default).
	TransferMode string
	// TransferTimeout is how long a moriio decode leg waits for its blocks, default
	// 30 s.
	TransferTimeout time.Duration
	// DeferTimeout is how long a moriio prefill leg that has finished keeps its
	// blocks for a decode leg to write to, default 60 s.
	DeferTimeout time.Duration
	// WriteWaits makes a moriio prefill leg in write mode answer only when its
	// decode leg has come, or after DeferTimeout, so that a router must send both
	// at once.
	WriteWaits bool
	// SendTimeout is how long a p2p prefill engine stands still when it cannot reach
	// the decode engine; 0 is without end, as real ones do.
	SendTimeout time.Duration

	// BlockSize is the number of tokens in a block, default 16.
	BlockSize int
	// Blocks is the number of blocks, default 4096. Block 0 is never used.
	Blocks int
	// Validity is how long the blocks of a hand-off stay pinned: default 30 s, with
	// moriio in read mode an hour.
	Validity time.Duration
	// MaxSeqs is how many sequences run at once, default 256. The rest waits in
	// order of arrival, without limit.
	MaxSeqs int
	// PrefillSlots is how many prompts are computed at once; 0 means all that run.
	PrefillSlots int
	// MaxModelLen is the context length in tokens, default the lesser of 32768
	// and what the blocks hold.
	MaxModelLen int
	// DefaultTokens is the length of an answer whose request gives no limit,
	// default 32.
	DefaultTokens int
	// DPSize is the number of data-parallel ranks, default 1. They share one
	// scheduler and one cache.
	DPSize int
	// TPSize is the number of tensor-parallel ranks, default 1.
	TPSize int

	// PrefillBase is the time of any prefill, default 0.
	PrefillBase time.Duration
	// PrefillPerToken is the further time for each prompt token that was not
	// cached, default 0.
	PrefillPerToken time.Duration
	// DecodePerToken is the time of each generated token after the first,
	// default 0.
	DecodePerToken time.Duration

	// APIKey, if set, guards the paths that begin with /v1, /v2 and /inference.
	APIKey string
	// KeepAlive is how long the server of NewServer keeps an idle connection,
	// default 5 s as uvicorn.
	KeepAlive time.Duration
	// FailPolicy is FailPolicyFail (default) or FailPolicyRecompute.
	FailPolicy string
	// HideCached leaves usage.prompt_tokens_details null, as vLLM does without
	// --enable-prompt-tokens-details.
	HideCached bool
	// NoStartTime leaves process_start_time_seconds out of /metrics, as engines behind
	// several API processes do.
	NoStartTime bool
	// NoStats leaves all vllm: lines out of /metrics, as --disable-log-stats does.
	NoStats bool
	// Store keeps answers of /v1/responses for GET, as vLLM does with
	// VLLM_ENABLE_RESPONSES_API_STORE=1.
	Store bool
	// Strict adds the violations that hold only behind a router: a request that
	// is not the leg of the engine's role, and a Host other than Advertise.
	Strict bool

	// Dial connects to other engines; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Logger is nil for none.
	Logger *slog.Logger
}

// or replaces a zero value by its default.
func or[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}

// fill replaces zero values by the defaults.
func (c *Config) fill() {
	or(&c.Role, RoleRegular)
	or(&c.FailPolicy, FailPolicyFail)
	or(&c.TransferMode, TransferWrite)
	if len(c.Models) == 0 {
		c.Models = []string{"m"}
	}
	or(&c.BlockSize, 16)
	or(&c.Blocks, 4096)
	or(&c.MaxSeqs, 256)
	or(&c.MaxModelLen, min(32768, (c.Blocks-1)*c.BlockSize))
	or(&c.DefaultTokens, 32)
	or(&c.DPSize, 1)
	or(&c.TPSize, 1)
	if c.Connector == ConnectorMoRIIO && c.TransferMode == TransferRead {
		or(&c.Validity, moriioValidity)
	}
	or(&c.Validity, 30*time.Second)
	or(&c.KeepAlive, 5*time.Second)
	or(&c.PingInterval, 3*time.Second)
	or(&c.TransferTimeout, 30*time.Second)
	or(&c.DeferTimeout, 60*time.Second)
	if c.EngineID == "" {
		c.EngineID = uuid4()
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.DialZMQ == nil {
		c.DialZMQ = func(ctx context.Context, addr string) (net.Conn, error) { return c.Dial(ctx, "tcp", addr) }
	}
	if c.PeerHTTP == nil {
		c.PeerHTTP = peerHTTP
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) check() error {
	switch c.Role {
	case RoleRegular, RolePrefill, RoleDecode:
	default:
		return fmt.Errorf("role %q is not regular, prefill or decode", c.Role)
	}
	switch c.FailPolicy {
	case FailPolicyFail, FailPolicyRecompute:
	default:
		return fmt.Errorf("fail policy %q is not fail or recompute", c.FailPolicy)
	}
	if c.Models[0] == "" || strings.Contains(c.Models[0], "=") {
		return fmt.Errorf("%q cannot be the base model", c.Models[0])
	}
	switch c.TransferMode {
	case TransferRead, TransferWrite:
	default:
		return fmt.Errorf("transfer mode %q is not READ or WRITE", c.TransferMode)
	}
	for _, n := range []int{c.BlockSize, c.MaxSeqs, c.MaxModelLen, c.DefaultTokens, c.DPSize, c.TPSize} {
		if n < 1 {
			return errors.New("sizes and limits must be positive")
		}
	}
	if c.Blocks < 2 {
		return errors.New("an engine needs at least 2 blocks")
	}
	if c.MaxModelLen > (c.Blocks-1)*c.BlockSize {
		return fmt.Errorf("%d blocks of %d tokens cannot hold a context of %d tokens",
			c.Blocks-1, c.BlockSize, c.MaxModelLen)
	}
	if c.Connector == ConnectorP2P || c.Connector == ConnectorMoRIIO || c.Discovery != "" {
		return c.addresses()
	}
	return nil
}

// addresses completes ZMQAddress.
func (c *Config) addresses() error {
	host, port, err := c.advertised()
	if err != nil {
		return err
	}
	if c.ZMQAddress == "" && port+2*zmqOffset >= 1<<16 {
		return fmt.Errorf("advertised address %q: no room for ports above %d", c.Advertise, port)
	}
	or(&c.HandshakePort, port+zmqOffset)
	or(&c.NotifyPort, port+2*zmqOffset)
	if c.Connector != ConnectorMoRIIO {
		or(&c.ZMQAddress, net.JoinHostPort(host, strconv.Itoa(port+zmqOffset)))
		return nil
	}
	or(&c.ZMQAddress, composite{host, c.HandshakePort, c.NotifyPort}.String())
	if _, ok := parseComposite(c.ZMQAddress); !ok {
		return fmt.Errorf("%q is no ZMQ address of a moriio engine", c.ZMQAddress)
	}
	return nil
}

// advertised splits Advertise into the pair that a hand-off names.
func (c *Config) advertised() (host string, port int, err error) {
	host, p, err := net.SplitHostPort(c.Advertise)
	if err != nil {
		return "", 0, fmt.Errorf("advertised address: %w", err)
	}
	port, err = strconv.Atoi(p)
	if err != nil || host == "" {
		return "", 0, fmt.Errorf("advertised address %q is not host:port", c.Advertise)
	}
	return host, port, nil
}

func uuid4() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
