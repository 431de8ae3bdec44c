package openai

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
)

// Form limits: what is read of a form is its small text fields.
const (
	maxFormParts = 1000
	maxFormValue = 1024
)

// ParseForm reads the fields of a multipart form that routing is concerned
// with. The error is an [*Error] for the client.
func (r *Request) ParseForm(route *Route, contentType string, body []byte) error {
	r.Route, r.Body = route, body
	bad := func(message string) error {
		return &Error{Status: 400, Code: "invalid_form", Message: message}
	}
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil || params["boundary"] == "" {
		return bad("Content-Type of a form must be multipart/form-data with a boundary")
	}
	form := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for range maxFormParts {
		part, err := form.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return bad("body is not a valid multipart form")
		}
		switch part.FormName() {
		case "model", "stream":
			value, err := io.ReadAll(io.LimitReader(part, maxFormValue+1))
			if err != nil || len(value) > maxFormValue {
				return bad("form field " + part.FormName() + " is incomplete or longer than 1024 bytes")
			}
			if part.FormName() == "model" {
				r.Model = string(value)
			} else {
				r.Stream = string(value) == "true" || string(value) == "True" || string(value) == "1"
			}
		}
	}
	return bad("form has more than 1000 parts")
}
