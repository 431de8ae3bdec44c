package health

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"sync"
)

// figures are what an engine's /metrics says, as far as routing needs it.
type figures struct {
	start    float64          // process_start_time_seconds, 0 if it is not there
	ranks    map[string]*rank // by the label engine, "" without one
	counters map[counter]float64
	vllm     bool // there were vllm: lines at all
}

// rank are the figures of one data-parallel rank. None is negative or infinite.
type rank struct {
	running, waiting float64
	usage            float64
	cacheTokens      float64
	measured         bool // there was a usage
	asleep           bool
}

// counter names a sum that only rises while its process lives.
type counter struct {
	engine string
	metric metric
}

// Bounds of what is read. A line that is longer is none of those wanted, and
// nor is one whose engine is not a number.
const (
	maxExposition = 16 << 20
	maxLine       = 64 << 10
	maxRanks      = 1024
	maxEngine     = 16
)

var errExposition = errors.New("metrics are longer than 16 MiB")

// readers keeps line buffers: every engine is read every few seconds.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, maxLine) }}

// readExposition reads the text format of Prometheus and keeps the few lines
// wanted. What is not understood is passed over.
func readExposition(r io.Reader) (*figures, error) {
	f := &figures{ranks: make(map[string]*rank), counters: make(map[counter]float64)}
	limited := &io.LimitedReader{R: r, N: maxExposition + 1}
	lines := readers.Get().(*bufio.Reader)
	lines.Reset(limited)
	defer func() {
		lines.Reset(nil)
		readers.Put(lines)
	}()
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if err := skipLine(lines); err != nil {
				return nil, err
			}
			continue
		case err != nil && err != io.EOF:
			return nil, err
		case limited.N == 0:
			return nil, errExposition
		}
		f.line(bytes.TrimSpace(line))
		if err == io.EOF {
			return f, nil
		}
	}
}

func skipLine(r *bufio.Reader) error {
	for {
		_, err := r.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

const (
	vllmPrefix = "vllm:"
	blanks     = " \t"
)

// metric is a metric that is read. The zero metric is any other.
type metric uint8

const (
	_ metric = iota
	startTime
	running
	waiting
	cacheUsage
	cacheConfig
	sleepState
	promptTokens
	generationTokens
	requestSuccess
)

// wanted are the metrics read, vLLM's without their prefix.
var wanted = map[string]metric{
	"process_start_time_seconds": startTime,
	"num_requests_running":       running,
	"num_requests_waiting":       waiting,
	"kv_cache_usage_perc":        cacheUsage,
	"gpu_cache_usage_perc":       cacheUsage, // before November 2025
	"cache_config_info":          cacheConfig,
	"engine_sleep_state":         sleepState,
	"prompt_tokens_total":        promptTokens,
	"generation_tokens_total":    generationTokens,
	"request_success_total":      requestSuccess,
}

// line takes in one line without the space around it.
func (f *figures) line(line []byte) {
	own, vllm := bytes.CutPrefix(line, []byte(vllmPrefix))
	f.vllm = f.vllm || vllm
	m, labels, value, ok := sample(own)
	switch {
	case !ok:
	case vllm:
		f.set(m, labels, value)
	case m == startTime:
		f.start = value
	}
}

// set takes in one sample of vLLM's metrics.
func (f *figures) set(m metric, labels []byte, value float64) {
	engine := label(labels, "engine")
	if len(engine) > maxEngine {
		return
	}
	r := f.ranks[string(engine)]
	if r == nil {
		if len(f.ranks) >= maxRanks {
			return
		}
		r = &rank{}
		f.ranks[string(engine)] = r
	}
	switch m {
	case running:
		r.running += value
	case waiting:
		r.waiting += value
	case cacheUsage:
		r.usage = max(r.usage, value)
		r.measured = true
	case cacheConfig:
		r.cacheTokens = cacheTokens(labels)
	case sleepState:
		if string(label(labels, "sleep_state")) == "awake" {
			r.asleep = value == 0
		}
	case promptTokens, generationTokens, requestSuccess:
		f.counters[counter{string(engine), m}] += value
	case startTime: // is none of vLLM's
	}
}

// cacheTokens is the size of the KV cache: as the engine says, or its blocks.
func cacheTokens(labels []byte) float64 {
	number := func(name string) float64 {
		v, _ := parse(label(labels, name)) // 0 for None
		return v
	}
	if tokens := number("kv_cache_size_tokens"); tokens > 0 {
		return tokens
	}
	return number("num_gpu_blocks") * number("block_size")
}

// parse returns a number that is finite and not negative, as all wanted are.
func parse(text []byte) (float64, bool) {
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, false
	}
	return v, true
}

// sample splits a line, which begins with the name of its metric, into the
// metric, its labels without the braces, and its value. It is not ok unless the
// metric is wanted and the value is a number.
func sample(line []byte) (m metric, labels []byte, value float64, ok bool) {
	end := bytes.IndexByte(line, '{')
	labelled := end >= 0
	if !labelled {
		end = max(bytes.IndexAny(line, blanks), 0)
	}
	rest := line[end:]
	m, ok = wanted[string(bytes.TrimRight(line[:end], blanks))]
	if ok && labelled {
		labels, rest, ok = cutLabels(rest[1:])
	}
	if !ok {
		return 0, nil, 0, false
	}
	rest = bytes.TrimLeft(rest, blanks)
	if i := bytes.IndexAny(rest, blanks); i >= 0 {
		rest = rest[:i] // a timestamp follows
	}
	value, ok = parse(rest)
	return m, labels, value, ok
}

// cutLabels splits text that begins behind the opening brace at the closing
// one.
func cutLabels(text []byte) (labels, rest []byte, ok bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '}':
			return text[:i], text[i+1:], true
		case '"':
			n := quoted(text[i+1:])
			if n < 0 {
				return nil, nil, false
			}
			i += n + 1
		}
	}
	return nil, nil, false
}

// label returns the value of a label, nil if it is not there. Values wanted
// hold no escapes.
func label(labels []byte, name string) []byte {
	for {
		key, rest, ok := bytes.Cut(labels, []byte(`"`))
		end := quoted(rest)
		if !ok || end < 0 {
			return nil
		}
		if string(bytes.Trim(key, ", \t=")) == name {
			return rest[:end]
		}
		labels = rest[end+1:]
	}
}

// quoted returns where the quote is that ends text, -1 if there is none.
func quoted(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
