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
	// Connector is "nixl" (pull) or "" for none, which ignores
	// kv_transfer_params and answers null.
	Connector string
	// EngineID is the connector's engine id; default a random UUID.
	EngineID string
	// Advertise is the host:port under which other engines reach this engine's
	// HTTP server. A connector needs it.
	Advertise string

	// BlockSize is the number of tokens in a block, default 16.
	BlockSize int
	// Blocks is the number of blocks, default 4096. Block 0 is never used.
	Blocks int
	// Validity is how long the blocks of a hand-off stay pinned, default 30 s.
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
	// DPSize is the number of data-parallel ranks, default 1.
	DPSize int

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

// fill replaces zero values by the defaults.
func (c *Config) fill() {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	text := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	text(&c.Role, RoleRegular)
	text(&c.FailPolicy, FailPolicyFail)
	if len(c.Models) == 0 {
		c.Models = []string{"m"}
	}
	set(&c.BlockSize, 16)
	set(&c.Blocks, 4096)
	set(&c.MaxSeqs, 256)
	set(&c.MaxModelLen, min(32768, (c.Blocks-1)*c.BlockSize))
	set(&c.DefaultTokens, 32)
	set(&c.DPSize, 1)
	if c.Validity == 0 {
		c.Validity = 30 * time.Second
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = 5 * time.Second
	}
	if c.EngineID == "" {
		c.EngineID = uuid4()
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
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
	for _, n := range []int{c.BlockSize, c.MaxSeqs, c.MaxModelLen, c.DefaultTokens, c.DPSize} {
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
