package enginesim

import (
	"slices"
	"strings"
)

func (c *call) id(prefix string) string {
	if id := c.r.Header.Get("X-Request-Id"); id != "" {
		return prefix + id
	}
	return prefix + hex16()
}

func (e *Engine) name(r *reader) string {
	m, _ := e.lookup(r.text("model"))
	return m.name
}

// likeness scores two texts: the part of the words of a that b has.
func likeness(a, b string) float64 {
	wordsOf := strings.Fields(strings.ToLower(a))
	other := strings.Fields(strings.ToLower(b))
	n := 0
	for _, w := range wordsOf {
		if slices.Contains(other, w) {
			n++
		}
	}
	return float64(n) / float64(max(1, len(wordsOf)))
}

// texts reads a text or a list of texts.
func texts(r *reader, names ...string) []string {
	for _, name := range names {
		if s, ok := asText(r.object[name]); ok {
			return []string{s}
		}
		if list, ok := asList(r.object[name]); ok {
			var out []string
			for _, item := range list {
				out = append(out, content(item))
			}
			return out
		}
	}
	r.fail(badField("missing", names[0], "Field required"))
	return nil
}

// score answers POST /score.
func (e *Engine) score(c *call) error {
	r, err := c.reader()
	if err != nil {
		return c.refuse(err)
	}
	first, second := texts(r, "text_1", "queries"), texts(r, "text_2", "documents", "items")
	if err := e.served(r); err != nil {
		return c.refuse(err)
	}
	type item struct {
		Index  int     `json:"index"`
		Object string  `json:"object"`
		Score  float64 `json:"score"`
	}
	out, n := []item{}, 0
	for i, s := range second {
		q := first[min(i, len(first)-1)]
		out = append(out, item{i, "score", likeness(q, s)})
		n += len(q) + len(s)
	}
	return c.json(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Model   string `json:"model"`
		Data    []item `json:"data"`
		Usage   usage  `json:"usage"`
	}{c.id("score-"), "list", c.rec.Arrival.Unix(), e.name(r), out, usage{Prompt: n, Total: n}})
}

// rerank answers POST /rerank, the best document first.
func (e *Engine) rerank(c *call) error {
	r, err := c.reader()
	if err != nil {
		return c.refuse(err)
	}
	query, docs := c.required(r, "query"), texts(r, "documents")
	if err := e.served(r); err != nil {
		return c.refuse(err)
	}
	type document struct {
		Text string `json:"text"`
	}
	type item struct {
		Index    int      `json:"index"`
		Document document `json:"document"`
		Score    float64  `json:"relevance_score"`
	}
	out, n := []item{}, len(query)
	for i, s := range docs {
		out = append(out, item{i, document{s}, likeness(query, s)})
		n += len(s)
	}
	slices.SortStableFunc(out, func(a, b item) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		default:
			return 0
		}
	})
	type total struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	}
	return c.json(struct {
		ID      string `json:"id"`
		Model   string `json:"model"`
		Usage   total  `json:"usage"`
		Results []item `json:"results"`
	}{c.id("rerank-"), e.name(r), total{n, n}, out})
}
