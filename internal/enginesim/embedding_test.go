package enginesim_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/baton-llm/baton/internal/enginesim"
)

// vectors asks for embeddings and returns them, however they are encoded.
func (w *world) vectors(body string) [][]float64 {
	w.t.Helper()
	a := w.do(request{path: "/v1/embeddings", body: body})
	var v struct {
		Data []struct {
			Index     int
			Embedding json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.status != 200 {
		w.t.Fatalf("%s: %d %s %v", body, a.status, a.body, err)
	}
	var out [][]float64
	for i, d := range v.Data {
		if d.Index != i {
			w.t.Errorf("%s: index %d at place %d", body, d.Index, i)
		}
		out = append(out, floats(w.t, d.Embedding))
	}
	return out
}

func floats(t testing.TB, raw json.RawMessage) []float64 {
	t.Helper()
	var list []float64
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var b []byte
	if err := json.Unmarshal(raw, &b); err != nil { // base64
		t.Fatal(err)
	}
	for len(b) > 0 {
		list = append(list, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		b = b[4:]
	}
	return list
}

func length(v []float64) float64 {
	sum := 0.0
	for _, f := range v {
		sum += f * f
	}
	return math.Sqrt(sum)
}

func TestEmbeddings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		e := w.start(enginesim.Config{})
		want := w.vectors(`{"input":["a","bc"]}`)
		for _, v := range want {
			if len(v) != 16 || math.Abs(length(v)-1) > 1e-6 {
				t.Errorf("length %v of %v", length(v), v)
			}
		}
		if slices.Equal(want[0], want[1]) {
			t.Error("two texts have the same embedding")
		}
		for _, body := range []string{
			`{"input":["a","bc"],"encoding_format":"float"}`,
			`{"input":["a","bc"],"encoding_format":"base64"}`,
			`{"input":[[100],[101,102]]}`,
			`{"input":["a","bc"],"dimensions":16}`,
			`{"input":["a","bc"],"dimensions":99}`,
		} {
			if got := w.vectors(body); !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%s: got %v, want %v", body, got, want)
			}
		}
		if got := w.vectors(`{"input":[101,102]}`); len(got) != 1 || !slices.Equal(got[0], want[1]) {
			t.Errorf("ids: got %v, want %v", got, want[1:])
		}
		clean(t, e)
	})
}

// TestShortEmbeddings checks that fewer dimensions are the head of all of them.
func TestShortEmbeddings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{})
		whole := w.vectors(`{"input":"a"}`)[0]
		short := w.vectors(`{"input":"a","dimensions":5,"encoding_format":"base64"}`)[0]
		if len(short) != 5 || math.Abs(length(short)-1) > 1e-6 {
			t.Fatalf("%v", short)
		}
		for i, f := range short {
			if want := whole[i] / length(whole[:5]); math.Abs(f-want) > 1e-6 {
				t.Errorf("place %d: got %v, want %v", i, f, want)
			}
		}
	})
}

func TestEmbeddingsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start(enginesim.Config{MaxModelLen: 64})
		for _, tt := range []struct{ body, want string }{
			{`{"input":"` + strings.Repeat("x", 65) + `"}`, "maximum context length is 64 tokens. However, you requested 65"},
			{`{"input":["a",""]}`, "cannot be empty"},
			{`{"input":[7,9999]}`, "out of vocabulary"},
			{`{"input":{"a":1}}`, "'input'"},
			{`{"input":"a","encoding_format":"hex"}`, "'encoding_format'"},
			{`{"input":"a","encoding_format":7}`, "'encoding_format'"},
			{`{"input":"a","dimensions":0}`, "greater than 0"},
			{`{"input":"a","dimensions":"many"}`, "'dimensions'"},
		} {
			a := w.do(request{path: "/v1/embeddings", body: tt.body})
			if message, _ := a.get(t, "error", "message").(string); a.status != 400 || !strings.Contains(message, tt.want) {
				t.Errorf("%s: %d %s, want 400 and %q", tt.body, a.status, a.body, tt.want)
			}
		}
	})
}
