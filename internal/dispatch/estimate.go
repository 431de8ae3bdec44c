package dispatch

import (
	"sync"

	"github.com/baton-llm/baton/internal/openai"
	"github.com/baton-llm/baton/internal/worker"
)

// Bounds of the estimate. Tokens come from bytes at a ratio learned per model.
const (
	startRatio    = 4.0 // bytes per token
	minRatio      = 1.0
	maxRatio      = 16.0
	learnRate     = 0.1
	defaultOutput = 256  // tokens expected of a request without a limit
	maxModels     = 1024 // learned; further ones use the start ratio
)

// estimator turns request sizes into tokens.
type estimator struct {
	mu     sync.RWMutex
	ratios map[string]float64 // bytes per token by model
}

func (e *estimator) ratio(model string) float64 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if r, ok := e.ratios[model]; ok {
		return r
	}
	return startRatio
}

// prompt estimates the tokens of a request's prompt.
func (e *estimator) prompt(r *openai.Request) int64 {
	return r.PromptTokens + int64(float64(r.PromptBytes)/e.ratio(r.Model))
}

// learn corrects the ratio by what a worker counted.
func (e *estimator) learn(r *openai.Request, tokens int64) {
	tokens -= r.PromptTokens
	if tokens <= 0 || r.PromptBytes == 0 {
		return
	}
	seen := min(max(float64(r.PromptBytes)/float64(tokens), minRatio), maxRatio)
	e.mu.Lock()
	defer e.mu.Unlock()
	old, ok := e.ratios[r.Model]
	switch {
	case ok:
	case len(e.ratios) >= maxModels:
		return
	case e.ratios == nil:
		e.ratios = make(map[string]float64)
		fallthrough
	default:
		old = startRatio
	}
	e.ratios[r.Model] = old + learnRate*(seen-old)
}

// work is what a leg of the role adds to a worker's load.
func (r *run) work(role worker.Role) worker.Work {
	prompt := r.d.tokens.prompt(r.call.Request)
	output := int64(defaultOutput)
	if limit := r.call.Request.Limit; limit > 0 {
		output = min(output, limit)
	}
	switch role {
	case worker.Prefill:
		return worker.Work{Waiting: prompt, Held: prompt}
	case worker.Decode:
		return worker.Work{Held: prompt + output}
	default:
		return worker.Work{Waiting: prompt, Held: prompt + output}
	}
}

var usageMembers = openai.NewPaths("usage.prompt_tokens", "usage.input_tokens")

// learn corrects the estimate by the usage in a prefill answer.
func (r *run) learn(answer []byte) {
	var doc openai.Doc
	if usageMembers.Scan(&doc, answer) != nil {
		return
	}
	for id := range 2 {
		if tokens, ok := doc.Value(id).Int(); ok {
			r.d.tokens.learn(r.call.Request, tokens)
			return
		}
	}
}
