package openai_test

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/openai"
)

// formPart is one part of a form. A file has a name.
type formPart struct{ name, file, value string }

func form(t testing.TB, parts ...formPart) (contentType, body string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		var part io.Writer
		var err error
		if p.file != "" {
			part, err = w.CreateFormFile(p.name, p.file)
		} else {
			part, err = w.CreateFormField(p.name)
		}
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(part, p.value)
	}
	w.Close()
	return w.FormDataContentType(), b.String()
}

// Case 5.9: the model is found wherever it stands, and the form stays as it is.
func TestParseForm(t *testing.T) {
	t.Parallel()
	audio := formPart{"file", "Jübel 音.wav", strings.Repeat("\r\n--x\x00\xff", 100_000)}
	for _, tt := range []struct {
		name   string
		parts  []formPart
		model  string
		stream bool
	}{
		{"before the file", []formPart{{"model", "", "m"}, audio}, "m", false},
		{"after the file", []formPart{audio, {"model", "", "m"}, {"stream", "", "true"}}, "m", true},
		{"no model", []formPart{audio}, "", false},
		{"nothing but the model", []formPart{{"model", "", "é"}}, "é", false},
		{"the last one counts", []formPart{{"model", "", "a"}, {"model", "", "b"}}, "b", false},
		{"streams as Python writes them", []formPart{{"stream", "", "True"}}, "", true},
		{"1", []formPart{{"stream", "", "1"}}, "", true},
		{"not streamed", []formPart{{"stream", "", "false"}}, "", false},
		{"as long as may be", []formPart{{"model", "", strings.Repeat("m", 1024)}}, strings.Repeat("m", 1024), false},
		{"many parts", append(make([]formPart, 998), formPart{"model", "", "m"}), "m", false},
	} {
		contentType, body := form(t, tt.parts...)
		r := new(openai.Request)
		route := openai.FindRoute("/v1/audio/transcriptions", nil)
		if err := r.ParseForm(route, contentType, []byte(body)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if r.Model != tt.model || r.Stream != tt.stream || r.Route != route || string(r.Body) != body {
			t.Errorf("%s: model %q, stream %t", tt.name, r.Model, r.Stream)
		}
	}
}

func TestParseFormErrors(t *testing.T) {
	t.Parallel()
	contentType, whole := form(t, formPart{"model", "", "m"}, formPart{"file", "f", "abc"})
	_, long := form(t, formPart{"model", "", strings.Repeat("m", 1025)})
	longType := "multipart/form-data; boundary=" + strings.TrimSpace(strings.TrimPrefix(strings.SplitN(long, "\r\n", 2)[0], "--"))
	manyType, many := form(t, make([]formPart, 1001)...)
	for name, tt := range map[string]struct{ contentType, body string }{
		"no boundary":         {"multipart/form-data", whole},
		"empty boundary":      {`multipart/form-data; boundary=""`, whole},
		"another boundary":    {"multipart/form-data; boundary=x", whole},
		"bad media type":      {"multipart/form-data; boundary", whole},
		"nothing":             {contentType, ""},
		"no form":             {contentType, "hello"},
		"cut off":             {contentType, whole[:len(whole)-20]},
		"cut off in a header": {contentType, whole[:80]},
		"model too long":      {longType, long},
		"too many parts":      {manyType, many},
	} {
		err := new(openai.Request).ParseForm(openai.FindRoute("/v1/audio/transcriptions", nil), tt.contentType, []byte(tt.body))
		if e, ok := errors.AsType[*openai.Error](err); !ok || e.Status != 400 || e.Code != "invalid_form" || e.Message == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzParseForm looks for panics, and for a model that is not in the form.
func FuzzParseForm(f *testing.F) {
	contentType, body := form(f, formPart{"model", "", "m"}, formPart{"file", "f", "a\r\n--b"}, formPart{"stream", "", "1"})
	f.Add(contentType, []byte(body))
	f.Add(contentType, []byte(body[:len(body)-30]))
	f.Add("multipart/form-data; boundary=x", []byte("--x\r\n\r\n\r\n--x--"))
	f.Add("multipart/form-data; boundary=x", []byte("--x\nContent-Disposition: form-data; name=model\n\nm\n--x--\n"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		r := new(openai.Request)
		err := r.ParseForm(openai.FindRoute("/v1/audio/transcriptions", nil), contentType, body)
		if _, ok := errors.AsType[*openai.Error](err); err != nil && !ok {
			t.Errorf("an error of no form: %v", err)
		}
		if len(r.Model) > 1024 || !bytes.Contains(body, []byte(r.Model)) {
			t.Errorf("model %q", r.Model)
		}
	})
}
