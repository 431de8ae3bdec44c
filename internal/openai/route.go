package openai

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// Class says what a route asks of the workers.
type Class uint8

// The classes. The zero Class is invalid.
const (
	_         Class = iota
	Pairable        // generates; prefill and decode can share the work
	Whole           // generates, on one worker that does both
	Auxiliary       // generates nothing: any worker will do
	Stored          // asks for something an earlier generation left on its worker
)

// Route is an API path that clients call.
type Route struct {
	Name  string // short and fixed: a metric label
	Path  string // for prefixes, ends in a slash; "" if its paths are not listed
	Class Class
}

// routes are the exact paths served, as in vLLM's OpenAI server. Paths below
// /v1/ and /v2/ that are not listed are served as Whole: what they
// do is unknown, and a worker that does everything cannot be harmed by it.
var routes = buildRoutes(
	Route{"chat", "/v1/chat/completions", Pairable},
	Route{"completions", "/v1/completions", Pairable},
	Route{"responses", "/v1/responses", Pairable},
	Route{"messages", "/v1/messages", Pairable},
	Route{"generate", "/inference/v1/generate", Pairable},

	Route{"chat_batch", "/v1/chat/completions/batch", Whole},
	Route{"cohere_chat", "/cohere/v2/chat", Whole},
	Route{"generative_scoring", "/generative_scoring", Whole},
	Route{"invocations", "/invocations", Whole},

	Route{"responses_stored", "/v1/responses/", Stored},

	Route{"count_tokens", "/v1/messages/count_tokens", Auxiliary},
	Route{"tokenize", "/tokenize", Auxiliary},
	Route{"detokenize", "/detokenize", Auxiliary},
	Route{"render", "/v1/completions/render", Auxiliary},
	Route{"render", "/v1/chat/completions/render", Auxiliary},
	Route{"derender", "/v1/completions/derender", Auxiliary},
	Route{"derender", "/v1/chat/completions/derender", Auxiliary},
	Route{"version", "/version", Auxiliary},
	Route{"embeddings", "/v1/embeddings", Auxiliary},
	Route{"embed", "/v2/embed", Auxiliary},
	Route{"pooling", "/pooling", Auxiliary},
	Route{"classify", "/classify", Auxiliary},
	Route{"score", "/score", Auxiliary},
	Route{"score", "/v1/score", Auxiliary},
	Route{"rerank", "/rerank", Auxiliary},
	Route{"rerank", "/v1/rerank", Auxiliary},
	Route{"rerank", "/v2/rerank", Auxiliary},
	Route{"transcriptions", "/v1/audio/transcriptions", Auxiliary},
	Route{"translations", "/v1/audio/translations", Auxiliary},
)

// refused are control paths below /v1/ that clients must not reach.
var refused = map[string]bool{
	"/v1/load_lora_adapter":   true,
	"/v1/unload_lora_adapter": true,
}

var (
	otherRoute   = &Route{Name: "other", Class: Whole}
	allowedRoute = &Route{Name: "allowed", Class: Auxiliary}
)

// Generates reports whether the workers generate tokens for the route.
func (r *Route) Generates() bool { return r.Class == Pairable || r.Class == Whole }

type routeTable struct {
	exact    map[string]*Route
	prefixes []*Route
}

func buildRoutes(list ...Route) routeTable {
	t := routeTable{exact: make(map[string]*Route, len(list))}
	for i := range list {
		r := &list[i]
		if strings.HasSuffix(r.Path, "/") {
			t.prefixes = append(t.prefixes, r)
		} else {
			t.exact[r.Path] = r
		}
	}
	return t
}

// FindRoute returns the route that serves an escaped path, or nil if clients
// must not reach it. A trailing slash is ignored. allowed are further paths, or
// prefixes that end in a slash.
func FindRoute(escaped string, allowed []string) *Route {
	if r, ok := routes.exact[escaped]; ok {
		return r
	}
	if strings.Contains(escaped, "%") || len(escaped) > 1 && path.Clean(escaped) != strings.TrimSuffix(escaped, "/") {
		// Escapes and dot segments could mean another path to the worker than
		// they do here.
		return nil
	}
	p := strings.TrimSuffix(escaped, "/")
	for _, a := range allowed {
		if p == a || strings.HasSuffix(a, "/") && strings.HasPrefix(escaped, a) {
			return allowedRoute
		}
	}
	if refused[p] {
		return nil
	}
	if r, ok := routes.exact[p]; ok {
		return r
	}
	for _, r := range routes.prefixes {
		if strings.HasPrefix(p, r.Path) {
			return r
		}
	}
	if strings.HasPrefix(p, "/v1/") || strings.HasPrefix(p, "/v2/") {
		return otherRoute
	}
	return nil
}

// RoutePaths returns the paths that are listed, those of prefixes ending in a
// slash, for tests.
func RoutePaths() []string {
	paths := slices.Sorted(maps.Keys(routes.exact))
	for _, r := range routes.prefixes {
		paths = append(paths, r.Path)
	}
	return paths
}

// RouteNames returns every name a Route can have, for tests that bound labels.
func RouteNames() []string {
	seen := map[string]bool{otherRoute.Name: true, allowedRoute.Name: true}
	names := []string{otherRoute.Name, allowedRoute.Name}
	for _, r := range routes.exact {
		if !seen[r.Name] {
			seen[r.Name] = true
			names = append(names, r.Name)
		}
	}
	for _, r := range routes.prefixes {
		names = append(names, r.Name)
	}
	return names
}
