package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/baton-llm/baton/internal/openai"
)

// firstRead is how much is set aside for a body before any of it has come,
// whatever length is announced.
const firstRead = 256 << 10

// errClientGone says that the client left while it sent its body.
var errClientGone = errors.New("client gone")

// readBody reads the whole body into one buffer that only it owns. A client's
// departure can be seen once the body has been read, so it comes before
// anything that waits.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	tooLarge := &openai.Error{
		Status: http.StatusRequestEntityTooLarge, Code: "payload_too_large",
		Message: fmt.Sprintf("the body is over %d bytes (--max-payload-size)", s.cfg.MaxPayload),
	}
	if r.ContentLength > s.cfg.MaxPayload {
		// Said before the body is read; what the client is sending is not waited for.
		w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	size := int64(firstRead)
	if r.ContentLength >= 0 {
		// One byte more, so that the end is seen without growing.
		size = min(size, r.ContentLength+1)
	}
	rc := http.NewResponseController(w)
	var extended time.Time
	buf := make([]byte, 0, size)
	for {
		if time.Since(extended) > s.cfg.BodyTimeout/4 {
			extended = time.Now()
			s.awaitBody(rc)
		}
		if len(buf) == cap(buf) {
			buf = grow(buf, r.ContentLength)
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > s.cfg.MaxPayload:
			w.Header().Set("Connection", "close")
			return nil, tooLarge
		case err == io.EOF:
			_ = rc.SetReadDeadline(time.Time{}) // as above
			return buf, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.Header().Set("Connection", "close")
			return nil, &openai.Error{
				Status: http.StatusRequestTimeout, Code: "body_timeout",
				Message: fmt.Sprintf("nothing more of the body came for %s", s.cfg.BodyTimeout),
			}
		case err != nil:
			if r.Context().Err() == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, &openai.Error{Status: http.StatusBadRequest, Code: "invalid_body", Message: "the body could not be read"}
			}
			return nil, errClientGone
		}
	}
}

// awaitBody gives the client time for the next part of its body. It is more
// than the timeout, so that the deadline need not move for each part.
func (s *Server) awaitBody(rc *http.ResponseController) {
	if d := s.cfg.BodyTimeout; d > 0 {
		_ = rc.SetReadDeadline(time.Now().Add(d + d/4)) // without deadlines there is none to keep
	}
}

// grow doubles the buffer, or makes it just large enough for the length
// announced once a good part of that has come.
func grow(buf []byte, announced int64) []byte {
	size := 2 * int64(cap(buf))
	if announced >= 0 && announced < 4*int64(cap(buf)) {
		size = announced + 1
	}
	bigger := make([]byte, len(buf), size)
	copy(bigger, buf)
	return bigger
}

// parse reads what routing needs from the body.
func parse(req *openai.Request, route *openai.Route, r *http.Request, body []byte) error {
	contentType := r.Header.Get("Content-Type")
	switch {
	case len(body) == 0 && (route.Class == openai.Auxiliary || route.Class == openai.Stored || r.Method != http.MethodPost):
		req.Route = route
		return nil
	case r.Header.Get("Content-Encoding") != "":
		return &openai.Error{
			Status: http.StatusUnsupportedMediaType, Code: "encoded_body",
			Message: "the body must be sent without Content-Encoding",
		}
	case isForm(contentType):
		if route.Class == openai.Pairable {
			return &openai.Error{
				Status: http.StatusUnsupportedMediaType, Code: "not_json",
				Message: "this path takes a JSON body (Content-Type: application/json)",
			}
		}
		return req.ParseForm(route, contentType, body)
	default:
		return req.ParseJSON(route, body)
	}
}

func isForm(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "multipart/form-data")
}
