// Package server is the client side of the router: it admits requests, reads
// their bodies, hands them to dispatch and writes the access log. It knows
// nothing of how workers are chosen.
//
// A client that closes its connection, or only its sending half, counts as gone,
// as for net/http and vLLM.
package server

import (
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/baton-llm/baton/internal/dispatch"
	"github.com/baton-llm/baton/internal/exchange"
	"github.com/baton-llm/baton/internal/exchange/nethttp"
	"github.com/baton-llm/baton/internal/openai"
)

// Config holds the limits of the client side.
type Config struct {
	MaxPayload       int64         // bytes of a request body
	BodyTimeout      time.Duration // between two reads of a request body; 0: none
	WriteTimeout     time.Duration // for a client to take one write; 0: none
	AllowPaths       []string      // served besides the built-in list; a prefix ends in a slash
	RequestIDHeaders []string      // looked up in this order, in canonical form
}

// Default returns the configuration used unless flags say otherwise.
func Default() Config {
	return Config{
		MaxPayload:       512 << 20,
		BodyTimeout:      60 * time.Second,
		WriteTimeout:     300 * time.Second,
		RequestIDHeaders: []string{"X-Request-Id", "X-Correlation-Id", "X-Trace-Id", "Request-Id"},
	}
}

// Deps are the collaborators of a server.
type Deps struct {
	Dispatcher *dispatch.Dispatcher
	Status     *Status
	Logger     *slog.Logger // nil: discard
	Registerer prometheus.Registerer
}

// Server answers clients.
type Server struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	mux     *http.ServeMux
	active  atomic.Int64
}

// New returns a server.
func New(cfg Config, deps Deps) *Server {
	log := deps.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, deps: deps, log: log.With("component", "server"), mux: http.NewServeMux()}
	s.metrics = newMetrics(deps.Registerer, &s.active)
	deps.Status.mount(s.mux)
	return s
}

// Mux is where further routes of the public listener are added, before it
// serves.
func (s *Server) Mux() *http.ServeMux { return s.mux }

// Active returns the number of requests being carried out.
func (s *Server) Active() int64 { return s.active.Load() }

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		// Who answers without the body has net/http read what is left of it.
		s.awaitBody(http.NewResponseController(w))
	}
	route := openai.FindRoute(r.URL.EscapedPath(), s.cfg.AllowPaths)
	if _, pattern := s.mux.Handler(r); pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	s.active.Add(1)
	defer s.active.Add(-1)
	e := &exchangeLog{start: time.Now(), method: r.Method, route: route, id: s.requestID(r.Header)}
	sink := nethttp.NewSink(w, s.cfg.WriteTimeout)
	defer s.finish(e, sink)
	s.serve(e, sink, w, r)
}

// serve carries one request out. What it does not answer itself is in e.
func (s *Server) serve(e *exchangeLog, sink *nethttp.Sink, w http.ResponseWriter, r *http.Request) {
	if err := s.refuse(w, e.route, r); err != nil {
		e.refuse(sink, err)
		return
	}
	body, err := s.readBody(w, r)
	if err != nil {
		e.refuse(sink, err)
		return
	}
	e.bytesIn = int64(len(body))
	req := new(openai.Request)
	if err := parse(req, e.route, r, body); err != nil {
		e.refuse(sink, err)
		return
	}
	e.model, e.stream = req.Model, req.Stream
	call := &dispatch.Call{Request: req, Head: s.head(e.route, r), ID: e.id}
	e.outcome = s.deps.Dispatcher.Do(r.Context(), call, sink)
	if err := e.outcome.Err; err != nil && !e.outcome.Started && !e.outcome.ClientGone {
		e.answer(sink, err.Object(), err.RetryAfter)
	}
}

// refuse returns why a request is not even read.
func (s *Server) refuse(w http.ResponseWriter, route *openai.Route, r *http.Request) error {
	switch {
	case route == nil:
		return &openai.Error{
			Status: http.StatusNotFound, Code: "path_not_served",
			Message: "this path is not served; --allow-path adds paths",
		}
	case upgrades(r.Header):
		return &openai.Error{
			Status: http.StatusNotImplemented, Code: "upgrade_not_served",
			Message: "protocol upgrades such as WebSocket are not served",
		}
	case route.Class != openai.Stored && route.Class != openai.Auxiliary && route.Name != "other" && r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return &openai.Error{
			Status: http.StatusMethodNotAllowed, Code: "method_not_allowed",
			Message: "this path takes POST only",
		}
	}
	return nil
}

// upgrades reports whether a client asks for another protocol. The offer to go
// on in HTTP/2, which some clients make with each request, can be ignored.
func upgrades(h http.Header) bool {
	for _, value := range h["Upgrade"] {
		for protocol := range strings.SplitSeq(value, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.EqualFold(protocol, "h2c") {
				return true
			}
		}
	}
	return false
}

// head returns the head of the client's request, with what a proxy says about
// the client added. A trailing slash of a path that is listed means nothing and
// is taken away: a worker would answer it with a redirect to itself.
func (s *Server) head(route *openai.Route, r *http.Request) exchange.Head {
	h := nethttp.Head(r)
	if path, query, asked := strings.Cut(h.Target, "?"); route.Path != "" && strings.HasSuffix(path, "/") {
		h.Target = strings.TrimSuffix(path, "/")
		if asked {
			h.Target += "?" + query
		}
	}
	h.Fields = h.Fields.EndToEnd() // before anything is added that it could take away
	host, _, ok := strings.Cut(r.RemoteAddr, "]")
	if ok {
		host = strings.TrimPrefix(host, "[")
	} else {
		host, _, _ = strings.Cut(r.RemoteAddr, ":")
	}
	var chain []string
	for _, f := range h.Fields {
		if f.Name == "X-Forwarded-For" {
			chain = append(chain, f.Value)
		}
	}
	h.Fields = h.Fields.Set("X-Forwarded-For", strings.Join(append(chain, host), ", "))
	if h.Fields.Get("X-Forwarded-Host") == "" {
		h.Fields = h.Fields.Set("X-Forwarded-Host", r.Host)
	}
	if h.Fields.Get("X-Forwarded-Proto") == "" {
		proto := "http"
		if r.TLS != nil {
			proto = "https"
		}
		h.Fields = h.Fields.Set("X-Forwarded-Proto", proto)
	}
	for _, name := range s.cfg.RequestIDHeaders {
		h.Fields = h.Fields.Del(name)
	}
	return h
}
