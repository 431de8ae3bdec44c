// Package discovery turns what sources announce into registrations. Each source
// is a package below it; all of them only tell the registry.
package discovery

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/baton-llm/baton/internal/worker"
)

// ParseURL reads a worker's URL as users write it: http or https, a host, an
// optional port and base path, and an optional @rank behind it all. It returns
// the base URL in the one form that IDs use: lower-case scheme and host, no
// trailing slash.
func ParseURL(s string) (base string, rank worker.Rank, err error) {
	raw := strings.TrimSpace(s)
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		n, err := strconv.Atoi(raw[i+1:])
		if err != nil || n < 0 || n > worker.MaxRank {
			return "", 0, fmt.Errorf("worker URL %q: what follows @ must be a data-parallel rank such as @0", s)
		}
		rank, raw = worker.AtRank(n), raw[:i]
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("worker URL %q: %w", s, err)
	case u.Scheme == "grpc" || u.Scheme == "grpcs":
		return "", 0, fmt.Errorf("worker URL %q: gRPC workers are not supported; give the engine's HTTP address", s)
	case u.Scheme != "http" && u.Scheme != "https":
		return "", 0, fmt.Errorf("worker URL %q must start with http:// or https://", s)
	case u.Hostname() == "":
		return "", 0, fmt.Errorf("worker URL %q has no host", s)
	case u.User != nil:
		return "", 0, fmt.Errorf("worker URL %q must not hold a user name", s)
	case u.RawQuery != "" || u.Fragment != "":
		return "", 0, fmt.Errorf("worker URL %q must not have a query or fragment", s)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "", 0, fmt.Errorf("worker URL %q: port must be between 1 and 65535", s)
		}
	}
	return u.Scheme + "://" + strings.ToLower(u.Host) + strings.TrimRight(u.EscapedPath(), "/"), rank, nil
}
