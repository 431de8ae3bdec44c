package enginesim

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
)

// transcribe answers POST /v1/audio/transcriptions: the text is made of the
// file's bytes.
func (e *Engine) transcribe(c *call) error {
	kind, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return c.refuse(badField("missing", "file", "Field required"))
	}
	form := multipart.NewReader(strings.NewReader(string(c.body)), params["boundary"])
	values := object{}
	var file []byte
	found := false
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		var value []byte
		if err == nil {
			value, err = io.ReadAll(part)
		}
		if err != nil {
			bad := statusError(http.StatusBadRequest)
			bad.message = "There was an error parsing the body"
			return c.refuse(bad)
		}
		if part.FormName() == "file" {
			file, found = value, true
			continue
		}
		values[part.FormName()] = encode(string(value))
	}
	r := &reader{object: values}
	if !found {
		r.fail(badField("missing", "file", "Field required"))
	}
	if err := e.served(r); err != nil {
		return c.refuse(err)
	}
	p := newPrompt(string(file))
	text := string(newStory(checksum(p.tokens), 0).head(e.cfg.DefaultTokens))
	if !r.flag("stream", false) {
		return c.json(struct {
			Text  string `json:"text"`
			Usage null   `json:"usage"`
		}{Text: text})
	}
	return e.transcribeStream(c, text)
}

func (e *Engine) transcribeStream(c *call, text string) error {
	if err := c.startStream(); err != nil {
		return err
	}
	type choice struct {
		Delta        contentDelta `json:"delta"`
		FinishReason *string      `json:"finish_reason"`
		StopReason   null         `json:"stop_reason"`
	}
	for i := range len(text) {
		chunk := struct {
			ID      string   `json:"id"`
			Object  string   `json:"object"`
			Created int64    `json:"created"`
			Model   string   `json:"model"`
			Choices []choice `json:"choices"`
		}{c.id("trsc-"), "transcription.chunk", c.rec.Arrival.Unix(), e.models[0].name, []choice{{
			Delta: contentDelta{text[i : i+1]},
		}}}
		if i+1 == len(text) {
			chunk.Choices[0].FinishReason = orNull(finishStop)
		}
		if err := c.event(data(encode(chunk))); err != nil {
			return err
		}
	}
	if err := c.event(doneEvent); err != nil {
		return err
	}
	c.endStream()
	return nil
}
