package enginesim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// apiError is an error object as vLLM answers it.
type apiError struct {
	status  int
	kind    string // the "type"
	message string
	param   string // "" is null
}

func (a *apiError) Error() string { return a.message }

// badValue is an error found by vLLM's own code.
func badValue(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// badSchema is an error found by the web framework while it read the body.
func badSchema(param, format string, args ...any) *apiError {
	return &apiError{
		http.StatusBadRequest, "Bad Request",
		"1 validation error:\n  " + fmt.Sprintf(format, args...), param,
	}
}

// badField is a badSchema about the type or the absence of one field.
func badField(kind, name, msg string) *apiError {
	return badSchema("", "{'type': '%s', 'loc': ('body', '%s'), 'msg': '%s'}", kind, name, msg)
}

// badBody is a badSchema raised by a check over the whole body.
func badBody(param, msg string) *apiError {
	return badSchema(param, "{'type': 'value_error', 'loc': ('body',), 'msg': \"Value error, %s\"}", msg)
}

func notFound(param, format string, args ...any) *apiError {
	return &apiError{http.StatusNotFound, "NotFoundError", fmt.Sprintf(format, args...), param}
}

// statusError is what the web framework itself answers.
func statusError(code int) *apiError {
	return &apiError{code, http.StatusText(code), http.StatusText(code), ""}
}

func internalError() *apiError {
	return &apiError{http.StatusInternalServerError, "InternalServerError", "Internal server error", ""}
}

// format renders the object with the given separators.
func (a *apiError) format(colon, comma string) []byte {
	param := []byte("null")
	if a.param != "" {
		param = encode(a.param)
	}
	var b bytes.Buffer
	b.WriteString(`{"error":` + colon + `{"message":` + colon)
	b.Write(encode(a.message))
	b.WriteString(comma + `"type":` + colon)
	b.Write(encode(a.kind))
	b.WriteString(comma + `"param":` + colon)
	b.Write(param)
	b.WriteString(comma + `"code":` + colon + strconv.Itoa(a.status) + `}}`)
	return b.Bytes()
}

// body is the object as a JSON answer: compact.
func (a *apiError) body() []byte { return a.format("", ",") }

// spaced is the object as Python's json.dumps writes it into a stream.
func (a *apiError) spaced() []byte { return a.format(" ", ", ") }

// anthropic is the object of /v1/messages.
func (a *apiError) anthropic() []byte {
	kind := a.kind
	switch a.status {
	case http.StatusBadRequest:
		kind = "invalid_request_error"
	case http.StatusNotFound:
		kind = "not_found_error"
	case http.StatusInternalServerError:
		kind = "internal_error"
	}
	return append(append([]byte(`{"type":"error","error":{"type":`), encode(kind)...),
		append(append([]byte(`,"message":`), encode(a.message)...), "}}"...)...)
}

// encode is compact JSON as vLLM writes it: no escaping for HTML, no line end.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("BUG: encode %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
