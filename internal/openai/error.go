package openai

import (
	"encoding/json"
	"strconv"
)

// Error is the error object of the OpenAI API, as clients' SDKs read it.
// https://platform.openai.com/docs/guides/error-codes
type Error struct {
	Status  int    `json:"-"`       // HTTP status
	Message string `json:"message"` // for a person; names the field or flag and what would be right
	Type    string `json:"type"`    // class of the error, from the status
	Param   string `json:"param"`   // request field at fault, null if none
	Code    string `json:"code"`    // stable word of our own for each cause
}

func (e *Error) Error() string { return strconv.Itoa(e.Status) + " " + e.Code + ": " + e.Message }

// errorType is the type that goes with a status.
func errorType(status int) string {
	switch {
	case status == 404:
		return "not_found_error"
	case status == 401:
		return "authentication_error"
	case status == 429:
		return "rate_limit_error"
	case status < 500:
		return "invalid_request_error"
	case status == 501:
		return "not_implemented_error"
	case status == 503:
		return "service_unavailable_error"
	case status == 504:
		return "timeout_error"
	default:
		return "upstream_error"
	}
}

// Body returns the JSON body {"error":{...}}, or the form that clients of the
// route know. An empty Type is filled in from the status.
func (e *Error) Body(r *Route) []byte {
	if r != nil && r.Name == "messages" {
		return append(e.anthropic(), '\n')
	}
	return append(e.object(), '\n')
}

// anthropic is the error object of the Anthropic API.
// https://docs.anthropic.com/en/api/errors
func (e *Error) anthropic() []byte {
	typ := "api_error"
	switch e.Status {
	case 400, 405, 408, 415:
		typ = "invalid_request_error"
	case 401:
		typ = "authentication_error"
	case 404:
		typ = "not_found_error"
	case 413:
		typ = "request_too_large"
	case 429:
		typ = "rate_limit_error"
	case 503:
		typ = "overloaded_error"
	case 504:
		typ = "timeout_error"
	}
	return marshal(map[string]any{"type": "error", "error": map[string]string{
		"type": typ, "message": e.Message, "code": e.Code,
	}})
}

func (e *Error) object() []byte {
	typ := e.Type
	if typ == "" {
		typ = errorType(e.Status)
	}
	var param *string
	if e.Param != "" {
		param = &e.Param
	}
	return marshal(map[string]any{"error": struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}{e.Message, typ, param, e.Code}})
}

// Event returns the error as one complete event of a stream on the route, in
// the form its clients know.
func (e *Error) Event(r *Route) []byte {
	var event, data []byte
	switch r.Name {
	case "messages":
		// https://docs.anthropic.com/en/api/messages-streaming
		event = []byte("event: error\n")
		data = e.anthropic()
	case "responses":
		// https://platform.openai.com/docs/api-reference/responses-streaming/error
		event = []byte("event: error\n")
		data = marshal(map[string]any{"type": "error", "code": e.Code, "message": e.Message, "param": nil})
	default:
		data = e.object()
	}
	out := append(event, "data: "...)
	out = append(out, data...)
	return append(out, "\n\n"...)
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: error object: " + err.Error())
	}
	return b
}
