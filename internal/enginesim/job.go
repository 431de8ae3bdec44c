package enginesim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// job is one generation request, whatever its API.
type job struct {
	e    *Engine
	c    *call
	view view // renders the answer

	id      string // of the answer
	engine  string // the engine's own id, with its random suffix
	created int64
	model   string // as answered
	adapter string // "" for the base model
	rank    int

	prompts  []prompt
	n        int
	limit    int     // tokens to generate; 0 leaves it to the engine
	natural  bool    // the answer ends by itself
	noEOS    bool    // ignore_eos
	force    *forced // nil for none
	minimum  int
	stops    []string
	echo     bool
	logprobs int // top logprobs asked for, -1 for none
	ids      bool
	salt     string

	stream     bool
	usage      bool // a usage chunk at the end
	everyUsage bool // usage in each chunk
	interval   int  // tokens in a chunk

	mori    *moriLeg // what a moriio prefill leg says, once it is computed
	kv      object   // hand-off parameters, nil if none
	kvRaw   json.RawMessage
	handoff json.RawMessage // kv_transfer_params of the answer, nil for none

	ticket  *ticket
	seqs    []*sequence
	cached  int       // prompt tokens not computed
	remote  bool      // the prompt's blocks came from another engine
	tail    int       // prompt tokens not handed over, computed with the first one generated
	taken   bool      // its hand-off was collected or freed
	settled bool      // blocks given back and counted
	late    *apiError // found by the engine's input check, after the stream began
	store   bool
	limited string // name of the request's limit field, for messages
}

// prompt is one prompt of a job.
type prompt struct {
	text   string
	tokens []int
	sum    string
}

func newPrompt(text string) prompt { return prompt{text: text, tokens: tokenize(text)} }
func tokenPrompt(ids []int) prompt { return prompt{text: detokenize(ids), tokens: ids} }

// check finds what the model cannot compute.
func (p *prompt) check() *apiError {
	if len(p.tokens) == 0 {
		return badValue("", "The decoder prompt cannot be empty")
	}
	for _, id := range p.tokens {
		if id < 0 || id >= vocabSize {
			return badValue("", "Token id %d is out of vocabulary", id)
		}
	}
	return nil
}

func hex16() string                  { return fmt.Sprintf("%016x", rand.Uint64()) }
func (j *job) leg() string           { return j.c.rec.Leg }
func (j *job) promptTokens() (n int) { return sumTokens(j.prompts) }

func sumTokens(list []prompt) (n int) {
	for _, p := range list {
		n += len(p.tokens)
	}
	return n
}

// parser reads the body of one API into a job.
type parser func(*job, *reader)

// generation serves one API.
func generation(parse parser) endpoint {
	return func(e *Engine, c *call) error {
		if e.conn.lacks(c.r.URL.Path) {
			c.violate("the engines with connector %s have no such path", e.cfg.Connector)
			return c.refuse(statusError(http.StatusNotFound))
		}
		j := &job{
			e: e, c: c, created: time.Now().Unix(), n: 1, logprobs: -1, interval: 1,
		}
		if err := j.read(parse); err != nil {
			if j.leg() == LegDecode {
				e.conn.drop(j) // as vLLM does for what it refuses
			}
			return c.refuse(err)
		}
		return j.run()
	}
}

// read parses and validates the request.
func (j *job) read(parse parser) *apiError {
	o, err := j.c.decoded()
	if err != nil {
		return err
	}
	r := &reader{object: o}
	if raw := kvParams(j.c.r.URL.Path, o); !isNull(raw) {
		kv, ok := asObject(raw)
		if !ok {
			return badField("dict_type", "kv_transfer_params", "Input should be a valid dictionary")
		}
		j.kv, j.kvRaw = kv, raw
	}
	name := r.text("model")
	parse(j, r)
	j.checkLeg(r)
	if j.leg() != LegPlain && len(j.prompts) > 1 {
		j.c.violate("a %s leg with %d prompts: only the first is handed over", j.leg(), len(j.prompts))
	}
	if r.err != nil {
		return r.err
	}
	if err := j.chooseModel(name); err != nil {
		return err
	}
	j.engine = j.id
	if v, ok := j.view.(interface{ engineID(*job) string }); ok {
		j.engine = v.engineID(j)
	}
	j.engine += fmt.Sprintf("-%08x", rand.Uint32())
	if err := j.validate(); err != nil {
		return err
	}
	rank, err := j.e.rank(j.c.r.Header)
	if err != nil && !j.stream {
		return err
	}
	j.rank, j.late = rank, err
	return nil
}

// requestID is the id that the client gave, or a new one.
func (j *job) requestID(r *reader) string {
	if id := j.c.r.Header.Get("X-Request-Id"); id != "" {
		return id
	}
	if id := r.text("request_id"); id != "" {
		return id
	}
	return hex16()
}

func (j *job) chooseModel(name string) *apiError {
	m, ok := j.e.lookup(name)
	if !ok {
		return notFound("model", "The model `%s` does not exist.", name)
	}
	j.model = m.name
	if m.parent != "" {
		j.adapter = m.name
	}
	return nil
}

// sampling reads the fields that all APIs with vLLM's sampling parameters share.
// limits are the names of the token limit, the one that wins first.
func (j *job) sampling(r *reader, limits ...string) {
	for _, name := range limits {
		if n := r.integer(name); n != nil && j.limited == "" {
			j.limit, j.limited = *n, name
		}
	}
	j.minimum = r.intOr("min_tokens", 0)
	for _, name := range []string{"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"} {
		r.number(name)
	}
	j.noEOS = r.flag("ignore_eos", false)
	j.n = r.intOr("n", 1)
	j.interval = max(1, r.intOr("stream_interval", 1))
	if v, ok := asText(r.object["stop"]); ok {
		j.stops = append(j.stops, v)
	} else if list, ok := asList(r.object["stop"]); ok {
		for _, item := range list {
			if v, ok := asText(item); ok && v != "" {
				j.stops = append(j.stops, v)
			}
		}
	}
	j.ids = r.flag("return_token_ids", false)
}

// streaming reads stream and stream_options.
func (j *job) streaming(r *reader) {
	j.stream = r.flag("stream", false)
	if truthy(r.object["stream_options"]) && !truthy(r.object["stream"]) {
		r.fail(badBody("stream_options", "Stream options can only be defined when `stream=True`."))
		return
	}
	opts := &reader{object: r.inner("stream_options")}
	j.usage = opts.flag("include_usage", false)
	j.everyUsage = j.usage && opts.flag("continuous_usage_stats", false)
	if opts.err != nil {
		r.fail(opts.err)
	}
}

func (j *job) cacheSalt(r *reader) {
	j.salt = r.text("cache_salt")
	if r.given("cache_salt") && j.salt == "" {
		r.fail(badBody("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided."))
	}
}

// validate checks values as vLLM's sampling parameters and input check do.
func (j *job) validate() *apiError {
	longest := 0
	for _, p := range j.prompts {
		longest = max(longest, len(p.tokens))
		if err := p.check(); err != nil {
			return err
		}
	}
	size := j.e.cfg.MaxModelLen
	switch {
	case j.n < 1:
		return badValue("n", "n must be at least 1, got %d.", j.n)
	case j.limited != "" && j.limit < 1:
		return badValue("max_tokens", "%s must be at least 1, got %d.", j.limited, j.limit)
	case j.minimum < 0:
		return badValue("", "min_tokens must be greater than or equal to 0, got %d.", j.minimum)
	case j.limit > 0 && j.minimum > j.limit:
		return badValue("", "min_tokens must be less than or equal to max_tokens=%d, got %d.", j.limit, j.minimum)
	case longest+max(j.limit, 1) > size:
		return badValue("input_tokens", "This model's maximum context length is %d tokens. However, you requested "+
			"%d output tokens and your prompt contains at least %d input tokens, for a total of at least %d tokens. "+
			"Please reduce the length of the input prompt or the number of requested output tokens.",
			size, j.limit, longest, longest+j.limit)
	}
	if j.limit == 0 {
		j.natural = !j.noEOS
		j.limit = min(max(j.e.cfg.DefaultTokens, j.minimum), size-longest)
	}
	need := 0
	for i := range j.prompts {
		p := &j.prompts[i]
		p.sum = checksum(p.tokens)
		need += (len(p.tokens) + j.e.cfg.BlockSize - 1) / j.e.cfg.BlockSize
	}
	if need > j.e.cfg.Blocks-1 {
		return badValue("", "The prompts need %d blocks, the KV cache has %d.", need, j.e.cfg.Blocks-1)
	}
	return nil
}

// checkLeg notes what is wrong with the body of a prefill or decode leg.
func (j *job) checkLeg(r *reader) {
	if j.leg() != LegPrefill {
		return
	}
	c, body := j.c, r.object
	if j.c.r.URL.Path == "/inference/v1/generate" {
		body, _ = asObject(r.object["sampling_params"])
	}
	if j.stream {
		c.violate("the prefill leg streams")
	}
	if !isNull(r.object["stream_options"]) {
		c.violate("the prefill leg has stream_options")
	}
	if string(j.kv["do_remote_prefill"]) == "true" {
		c.violate("the prefill leg has do_remote_prefill too")
	}
	if j.limit != 1 {
		c.violate("the prefill leg does not limit its answer to 1 token")
	}
	in := &reader{object: body}
	for _, name := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		if n := in.integer(name); n != nil && *n != 1 {
			c.violate("the prefill leg has %s %d", name, *n)
		}
	}
	for _, name := range []string{"min_tokens", "min_completion_tokens", "n", "best_of"} {
		if name == "n" && c.e.cfg.Connector == ConnectorP2P {
			continue // there it must be that of decode
		}
		if n := in.integer(name); n != nil && *n > 1 {
			c.violate("the prefill leg has %s %d", name, *n)
		}
	}
	if r.flag("background", false) || (j.store && j.e.cfg.Store) {
		c.violate("the prefill leg is stored or runs in the background")
	}
}

// extra is what keeps equal prompts apart in the cache.
func (j *job) extra() string {
	if j.adapter == "" && j.salt == "" {
		return ""
	}
	return strconv.Quote(j.adapter) + " " + strconv.Quote(j.salt)
}
