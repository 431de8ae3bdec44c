package health

import (
	"io"
	"strconv"
	"time"
)

// Exposition is what the text of an engine's metrics says.
type Exposition struct {
	Start    float64
	VLLM     bool
	Ranks    map[string]Rank
	Counters int // those compared to find a restart
}

// Rank are the figures of one rank.
type Rank struct {
	Running, Waiting, Usage, CacheTokens float64
	Prompt, Generation, Success          float64
	Asleep                               bool
}

// ReadExposition reads the text as a scrape does.
func ReadExposition(r io.Reader) (*Exposition, error) {
	f, err := readExposition(r)
	if err != nil {
		return nil, err
	}
	e := &Exposition{Start: f.start, VLLM: f.vllm, Ranks: make(map[string]Rank), Counters: len(f.counters)}
	for name, r := range f.ranks {
		e.Ranks[name] = Rank{
			Running: r.running, Waiting: r.waiting, Usage: r.usage, CacheTokens: r.cacheTokens,
			Prompt:     f.counters[counter{name, promptTokens}],
			Generation: f.counters[counter{name, generationTokens}],
			Success:    f.counters[counter{name, requestSuccess}],
			Asleep:     r.asleep,
		}
	}
	return e, nil
}

// FillSigns has the checker remember a restart for as many URLs as it can.
func FillSigns(c *Checker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range maxSigns {
		c.signs[strconv.Itoa(i)] = signs{last: time.Now()}
	}
}
