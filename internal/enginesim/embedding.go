package enginesim

import (
	"encoding/base64"
	"encoding/binary"
	"math"
)

// embeddingWidth is the number of dimensions of the model's embeddings.
const embeddingWidth = 16

type embedding struct {
	Index     int    `json:"index"`
	Object    string `json:"object"`
	Embedding any    `json:"embedding"`
}

// embed answers POST /v1/embeddings.
func (e *Engine) embed(c *call) error {
	r, err := c.reader()
	if err != nil {
		return c.refuse(err)
	}
	list := prompts(r, "input")
	render := encodingFormat(r)
	width := r.integer("dimensions")
	if err := e.served(r); err != nil {
		return c.refuse(err)
	}
	size := embeddingWidth
	if width != nil {
		size = min(*width, embeddingWidth)
	}
	if size < 1 {
		return c.refuse(badValue("", "Dimensions must be greater than 0"))
	}
	out := []embedding{}
	for i, p := range list {
		if err := e.embeddable(&p); err != nil {
			return c.refuse(err)
		}
		out = append(out, embedding{i, "embedding", render(vector(p.tokens, size))})
	}
	n := sumTokens(list)
	return c.json(struct {
		ID      string      `json:"id"`
		Object  string      `json:"object"`
		Created int64       `json:"created"`
		Model   string      `json:"model"`
		Data    []embedding `json:"data"`
		Usage   usage       `json:"usage"`
	}{c.id("embd-"), "list", c.rec.Arrival.Unix(), e.name(r), out, usage{Prompt: n, Total: n}})
}

func (e *Engine) embeddable(p *prompt) *apiError {
	if n, most := len(p.tokens), e.cfg.MaxModelLen; n > most {
		return badValue("input_tokens", "This model's maximum context length is %d tokens. However, you requested "+
			"%d tokens in the input for embedding generation. Please reduce the length of the input.", most, n)
	}
	return p.check()
}

// encodingFormat reads encoding_format and returns how it writes a vector.
func encodingFormat(r *reader) func([]float32) any {
	switch format := r.text("encoding_format"); format {
	case "", "float":
		return func(v []float32) any {
			wide := make([]float64, len(v)) // as Python prints a float32
			for i, f := range v {
				wide[i] = float64(f)
			}
			return wide
		}
	case "base64":
		return func(v []float32) any {
			var b []byte
			for _, f := range v {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			return base64.StdEncoding.EncodeToString(b)
		}
	default:
		r.fail(badField("literal_error", "encoding_format", "Input should be \\'float\\', \\'base64\\', \\'bytes\\' or \\'bytes_only\\'"))
		return nil
	}
}

// vector is the embedding of a text: of length 1, made of the text's hash. A
// shorter one is the head of the whole one, scaled.
func vector(tokens []int, size int) []float32 {
	from := newStory(checksum(tokens), 0)
	values := make([]float64, size)
	sum := 0.0
	for i := range values {
		values[i] = float64(from.random()>>11)/(1<<52) - 1
		sum += values[i] * values[i]
	}
	out := make([]float32, size)
	for i, f := range values {
		out[i] = float32(f / math.Sqrt(sum))
	}
	return out
}
