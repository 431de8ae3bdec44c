package enginesim

import "net/http"

// health answers GET /health and /ping.
func (e *Engine) health(c *call) error { return c.answer(http.StatusOK, "", nil) }

// load answers GET /load, as a server without --enable-server-load-tracking.
func (e *Engine) load(c *call) error {
	return c.json(struct {
		Load int `json:"server_load"`
	}{0})
}

func (e *Engine) version(c *call) error {
	return c.json(struct {
		Version string `json:"version"`
	}{Version})
}

// tokenize answers POST /tokenize: a prompt or a conversation.
func (e *Engine) tokenize(c *call) error {
	r, err := c.reader()
	if err != nil {
		return c.refuse(err)
	}
	var p prompt
	if r.given("messages") {
		p = chatPrompt(r)
	} else {
		p = newPrompt(c.required(r, "prompt"))
	}
	texts := []string(nil)
	if r.flag("return_token_strs", false) {
		texts = []string{}
		for i := range len(p.text) {
			texts = append(texts, p.text[i:i+1])
		}
	}
	if err := e.served(r); err != nil {
		return c.refuse(err)
	}
	return c.json(struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []int    `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}{len(p.tokens), e.cfg.MaxModelLen, p.tokens, texts})
}

func (e *Engine) detokenize(c *call) error {
	r, err := c.reader()
	if err != nil {
		return c.refuse(err)
	}
	ids, ok := asIDs(r.object["tokens"])
	if !ok {
		r.fail(badField("list_type", "tokens", "Input should be a valid list"))
	}
	if err := e.served(r); err != nil {
		return c.refuse(err)
	}
	return c.json(struct {
		Prompt string `json:"prompt"`
	}{detokenize(ids)})
}

// reader reads the body of a JSON endpoint.
func (c *call) reader() (*reader, *apiError) {
	o, err := c.decoded()
	return &reader{object: o}, err
}

// required reads a text that must be there.
func (*call) required(r *reader, name string) string {
	if !r.given(name) {
		r.fail(badField("missing", name, "Field required"))
	}
	return r.text(name)
}

// served checks the model of a request, and returns the reader's error if any.
func (e *Engine) served(r *reader) *apiError {
	name := r.text("model")
	if r.err != nil {
		return r.err
	}
	if _, ok := e.lookup(name); !ok {
		return notFound("model", "The model `%s` does not exist.", name)
	}
	return nil
}

// resetCache answers POST /reset_prefix_cache.
func (e *Engine) resetCache(c *call) error {
	e.mu.Lock()
	ok := e.cache.clear()
	e.mu.Unlock()
	return c.json(struct {
		Success bool `json:"success"`
	}{ok})
}
