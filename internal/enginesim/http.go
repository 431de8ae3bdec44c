package enginesim

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// closedContext is a context that ends with a channel.
type closedContext struct{ done <-chan struct{} }

func (closedContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c closedContext) Done() <-chan struct{}     { return c.done }
func (closedContext) Value(any) any               { return nil }

func (c closedContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// endpoint answers one path. Its error is how the exchange ended early.
type endpoint func(*Engine, *call) error

// endpoints by path and method.
var endpoints = map[string]map[string]endpoint{
	"/health":                   {"GET": (*Engine).health},
	"/ping":                     {"GET": (*Engine).health, "POST": (*Engine).health},
	"/load":                     {"GET": (*Engine).load},
	"/version":                  {"GET": (*Engine).version},
	"/metrics":                  {"GET": (*Engine).metrics},
	"/metrics/":                 {"GET": (*Engine).metrics},
	"/v1/models":                {"GET": (*Engine).listModels},
	"/tokenize":                 {"POST": (*Engine).tokenize},
	"/detokenize":               {"POST": (*Engine).detokenize},
	"/v1/completions":           {"POST": generation(parseCompletion)},
	"/v1/chat/completions":      {"POST": generation(parseChat)},
	"/v1/responses":             {"POST": generation(parseResponses)},
	"/v1/messages":              {"POST": generation(parseMessages)},
	"/v1/messages/count_tokens": {"POST": (*Engine).countTokens},
	"/inference/v1/generate":    {"POST": generation(parseGenerate)},
	"/v1/embeddings":            {"POST": (*Engine).embed},
	"/score":                    {"POST": (*Engine).score},
	"/v1/score":                 {"POST": (*Engine).score},
	"/rerank":                   {"POST": (*Engine).rerank},
	"/v1/rerank":                {"POST": (*Engine).rerank},
	"/v2/rerank":                {"POST": (*Engine).rerank},
	"/v1/audio/transcriptions":  {"POST": (*Engine).transcribe},
	"/v1/audio/translations":    {"POST": (*Engine).transcribe},
	"/sleep":                    {"POST": (*Engine).sleep},
	"/wake_up":                  {"POST": (*Engine).wakeUp},
	"/is_sleeping":              {"GET": (*Engine).isSleeping},
	"/pause":                    {"POST": (*Engine).pause},
	"/resume":                   {"POST": (*Engine).resume},
	"/is_paused":                {"GET": (*Engine).isPaused},
	"/reset_prefix_cache":       {"POST": (*Engine).resetCache},
}

// generates lists the paths of generation.
var generates = map[string]bool{
	"/v1/completions": true, "/v1/chat/completions": true, "/v1/responses": true,
	"/v1/messages": true, "/inference/v1/generate": true,
}

const responsePath = "/v1/responses/"

// pathLabel bounds the names by which requests are counted.
func pathLabel(path string) string {
	switch {
	case endpoints[path] != nil:
		return path
	case strings.HasPrefix(path, responsePath):
		return responsePath + "{id}"
	default:
		return "other"
	}
}

func (e *Engine) serve(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/sim/") {
		e.serveSim(w, r)
		return
	}
	life, ok := e.alive()
	if !ok {
		panic(http.ErrAbortHandler)
	}
	c := &call{e: e, w: w, r: r, life: life, generates: generates[r.URL.Path] && r.Method == http.MethodPost}
	e.openRecord(c)
	over := false
	defer func() { e.closeRecord(c, over) }()
	w.Header().Set("Server", "uvicorn")
	err := e.handle(c)
	if life.ended() && err != nil {
		err = errDead // whatever it seems to be
	}
	var inj injection
	switch {
	case err == nil, errors.Is(err, errAnswered):
	case errors.As(err, &inj): // too late to act on
	default:
		c.outcome = OutcomeAbort
		if errors.Is(err, errClosed) || errors.Is(err, errDead) {
			panic(http.ErrAbortHandler)
		}
	}
	over = true
}

func (e *Engine) handle(c *call) error {
	if err := c.alive(); err != nil {
		return err
	}
	e.checkWire(c)
	e.bindFaults(c, true)
	if err := c.point(pointConnect, nil); err != nil {
		return err
	}
	if c.scales() {
		return c.answer(http.StatusServiceUnavailable, "application/json", []byte(scalingBody))
	}
	body, err := io.ReadAll(c.r.Body)
	if err != nil {
		return errGone
	}
	c.body = body
	e.recordBody(c)
	if c.generates {
		e.classify(c)
	}
	e.bindFaults(c, false)
	if err := c.point(pointAccept, nil); err != nil {
		return err
	}
	if c.inject != "" && !c.generates {
		return c.refuse(internalError())
	}
	if !e.authorized(c.r) {
		return c.answer(http.StatusUnauthorized, "application/json", []byte(`{"error":"Unauthorized"}`))
	}
	return e.route(c)
}

func (e *Engine) route(c *call) error {
	methods := endpoints[c.r.URL.Path]
	if methods == nil && strings.HasPrefix(c.r.URL.Path, responsePath) {
		return e.storedResponse(c)
	}
	if methods == nil {
		return c.refuse(statusError(http.StatusNotFound))
	}
	do := methods[c.r.Method]
	if do == nil {
		for _, m := range []string{"GET", "POST"} {
			if methods[m] != nil {
				c.w.Header().Add("Allow", m)
			}
		}
		return c.refuse(statusError(http.StatusMethodNotAllowed))
	}
	return do(e, c)
}

// authorized checks the API key of the guarded paths.
func (e *Engine) authorized(r *http.Request) bool {
	if e.cfg.APIKey == "" || r.Method == http.MethodOptions {
		return true
	}
	guarded := false
	for _, p := range []string{"/v1", "/v2", "/inference"} {
		guarded = guarded || strings.HasPrefix(r.URL.Path, p)
	}
	if !guarded {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "Bearer") &&
		subtle.ConstantTimeCompare([]byte(key), []byte(e.cfg.APIKey)) == 1
}

// closeRecord ends the record of c. over is false if its handler panicked.
func (e *Engine) closeRecord(c *call, over bool) {
	if c.closed {
		return
	}
	c.closed = true
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case c.outcome != "":
	case !over:
		c.outcome = OutcomeFault
	case c.rec.Status >= http.StatusBadRequest:
		c.outcome = OutcomeError
	default:
		c.outcome = OutcomeSuccess
	}
	c.rec.Outcome = c.outcome
	c.rec.End = time.Now()
	e.outcomes[c.outcome]++
}

// decoded reads the body of a JSON endpoint.
func (c *call) decoded() (object, *apiError) {
	if err := c.isJSON(); err != nil {
		return nil, err
	}
	if c.parsed != nil || c.bodyErr != nil {
		return c.parsed, c.bodyErr
	}
	return parseObject(c.body)
}
