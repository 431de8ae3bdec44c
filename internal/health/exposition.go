package health

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
)

// figures are what an engine's /metrics says, as far as routing needs it.
type figures struct {
	start float64          // process_start_time_seconds, 0 if it is not there
	ranks map[string]*rank // by the label engine
	other bool             // there were vllm: lines at all
}

// rank are the figures of one data-parallel rank.
type rank struct {
	running, waiting float64
	usage            float64
	cacheTokens      float64
	asleep           bool
	counters         float64 // sum of the counters that only rise
	hits, lookups    float64
}

// Bounds of what is read. A line that is longer is none of those wanted.
const (
	maxExposition = 16 << 20
	maxLine       = 64 << 10
	maxRanks      = 1024
)

var errExposition = errors.New("metrics are longer than 16 MiB")

// readExposition reads the text format of Prometheus and keeps the few lines
// wanted. What is not understood is passed over.
func readExposition(r io.Reader) (*figures, error) {
	f := &figures{ranks: make(map[string]*rank)}
	limited := &io.LimitedReader{R: r, N: maxExposition}
	lines := bufio.NewReaderSize(limited, maxLine)
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
		}
		f.line(bytes.TrimSpace(line))
		if err == io.EOF {
			if limited.N == 0 {
				return nil, errExposition
			}
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

var (
	vllmPrefix  = []byte("vllm:")
	startPrefix = []byte("process_start_time_seconds ")
)

func (f *figures) line(line []byte) {
	if rest, ok := bytes.CutPrefix(line, startPrefix); ok {
		f.start, _ = strconv.ParseFloat(string(bytes.TrimSpace(rest)), 64)
		return
	}
	rest, ok := bytes.CutPrefix(line, vllmPrefix)
	if !ok {
		return
	}
	f.other = true
	name, rest, ok := bytes.Cut(rest, []byte("{"))
	if !ok || !wanted[string(name)] {
		return
	}
	end := bytes.LastIndexByte(rest, '}')
	if end < 0 {
		return
	}
	labels := rest[:end]
	number, _, _ := bytes.Cut(bytes.TrimSpace(rest[end+1:]), []byte(" "))
	value, err := strconv.ParseFloat(string(number), 64)
	if err != nil {
		return
	}
	engine := label(labels, "engine")
	r := f.ranks[engine]
	if r == nil {
		if len(f.ranks) >= maxRanks {
			return
		}
		r = &rank{}
		f.ranks[engine] = r
	}
	r.set(string(name), labels, value)
}

// wanted are the metrics read, without their prefix.
var wanted = map[string]bool{
	"num_requests_running":       true,
	"num_requests_waiting":       true,
	"kv_cache_usage_perc":        true,
	"gpu_cache_usage_perc":       true, // before November 2025
	"cache_config_info":          true,
	"engine_sleep_state":         true,
	"prompt_tokens_total":        true,
	"generation_tokens_total":    true,
	"request_success_total":      true,
	"prefix_cache_queries_total": true,
	"prefix_cache_hits_total":    true,
}

func (r *rank) set(name string, labels []byte, value float64) {
	switch name {
	case "num_requests_running":
		r.running += value
	case "num_requests_waiting":
		r.waiting += value
	case "kv_cache_usage_perc", "gpu_cache_usage_perc":
		r.usage = max(r.usage, value)
	case "cache_config_info":
		r.cacheTokens = cacheTokens(labels)
	case "engine_sleep_state":
		if label(labels, "sleep_state") == "awake" {
			r.asleep = value == 0
		}
	case "prompt_tokens_total", "generation_tokens_total", "request_success_total":
		r.counters += value
	case "prefix_cache_queries_total":
		r.lookups += value
	case "prefix_cache_hits_total":
		r.hits += value
	}
}

// cacheTokens is the size of the KV cache: as the engine says, or its blocks.
func cacheTokens(labels []byte) float64 {
	number := func(name string) float64 {
		v, _ := strconv.ParseFloat(label(labels, name), 64) // 0 for None
		return v
	}
	if tokens := number("kv_cache_size_tokens"); tokens > 0 {
		return tokens
	}
	return number("num_gpu_blocks") * number("block_size")
}

// label returns the value of a label, "" if it is not there. Values wanted hold
// no escapes.
func label(labels []byte, name string) string {
	for rest := labels; ; {
		i := bytes.Index(rest, []byte(name+`="`))
		if i < 0 {
			return ""
		}
		if i > 0 && rest[i-1] != ',' && rest[i-1] != ' ' {
			rest = rest[i+1:]
			continue
		}
		value, _, _ := bytes.Cut(rest[i+len(name)+2:], []byte(`"`))
		return string(value)
	}
}
