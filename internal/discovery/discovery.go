// Package discovery turns what sources announce into registrations. Each source
// is a package below it; all of them only tell the registry.
package discovery

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/baton-llm/baton/internal/worker"
)

// ParseURL reads a worker's URL as users write it: http or https, a host, an
// optional port and base path, and an optional @rank behind it all. It returns
// the base URL in the one form that IDs use: lower-case scheme and host, IPv6
// addresses in their short form, no port that the scheme implies, no trailing
// slash, no @.
func ParseURL(s string) (base string, rank worker.Rank, err error) {
	raw, rank, err := cutRank(strings.TrimSpace(s))
	if err != nil {
		return "", 0, err
	}
	u, err := parse(raw)
	if err == nil {
		err = normalizeHost(u)
	}
	if err != nil {
		return "", 0, fmt.Errorf("worker URL %q: %w", raw, err)
	}
	origin := url.URL{Scheme: u.Scheme, Host: u.Host}
	path := strings.ReplaceAll(u.EscapedPath(), "@", "%40")
	return origin.String() + strings.TrimRight(path, "/"), rank, nil
}

// Ranks returns the ranks that a URL stands for when each engine has n of them:
// all of them, unless the URL names one or there is but one.
func Ranks(named worker.Rank, n int) []worker.Rank {
	if named != 0 || n <= 1 {
		return []worker.Rank{named}
	}
	all := make([]worker.Rank, 0, n)
	for i := range n {
		all = append(all, worker.AtRank(i))
	}
	return all
}

// cutRank takes @rank off the end. Its errors do not show what comes before,
// which may be a password.
func cutRank(s string) (rest string, rank worker.Rank, err error) {
	i := strings.LastIndexByte(s, '@')
	if i < 0 {
		return s, 0, nil
	}
	n, err := strconv.ParseUint(s[i+1:], 10, 16)
	switch {
	case err != nil || n > worker.MaxRank:
		return "", 0, fmt.Errorf("worker URL that ends in %q: what follows @ must be a data-parallel rank such as @0", s[i:])
	case strings.Contains(s[:i], "@"):
		return "", 0, fmt.Errorf("worker URL that ends in %q: there is more than one @; user names are not supported", s[i:])
	}
	return s[:i], worker.AtRank(int(n)), nil
}

// bareZone matches the zone of an IPv6 address up to its %, escaped as RFC 6874
// asks for or bare as people write it.
var bareZone = regexp.MustCompile(`^(\w+://\[[^]%/]*)%(25)?`)

func parse(raw string) (*url.URL, error) {
	scheme, _, ok := strings.Cut(raw, "://")
	switch scheme = strings.ToLower(scheme); {
	case ok && (scheme == "grpc" || scheme == "grpcs"):
		return nil, errors.New("gRPC workers are not supported; give the engine's HTTP address")
	case !ok || scheme != "http" && scheme != "https":
		return nil, errors.New("it must start with http:// or https://")
	}
	u, err := url.Parse(bareZone.ReplaceAllString(raw, "${1}%25"))
	switch {
	case err != nil:
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the URL, which is named already
		}
		return nil, err
	case u.Hostname() == "":
		return nil, errors.New("it has no host")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("it must not have a query or fragment")
	}
	return u, nil
}

// zone matches the zones that survive in any URL.
var zone = regexp.MustCompile(`^[\w.~-]*$`)

// normalizeHost gives the host and port of u their one form.
func normalizeHost(u *url.URL) error {
	host := strings.ToLower(u.Hostname())
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		if !zone.MatchString(addr.Zone()) {
			return errors.New("the zone of its address may only have letters, digits and -._~")
		}
		host = addr.String() // the case of the zone counts
	}
	implied := map[string]uint64{"http": 80, "https": 443}[u.Scheme]
	port := implied
	if s := u.Port(); s != "" {
		var err error
		if port, err = strconv.ParseUint(s, 10, 16); err != nil || port == 0 {
			return errors.New("its port must be between 1 and 65535")
		}
	}
	u.Host = net.JoinHostPort(host, strconv.FormatUint(port, 10))
	if port == implied {
		u.Host = u.Host[:strings.LastIndexByte(u.Host, ':')]
	}
	return nil
}
