package zmq

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Allowed are the networks that registrations are accepted from, and whose
// addresses they may announce.
type Allowed struct{ prefixes []netip.Prefix }

// never are addresses at which clouds serve instance metadata: link-local ones.
var never = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::/32"),
}

// private are the networks allowed unless others are named.
var private = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("fc00::/7"),
}

// ParseAllowed reads networks such as 10.0.0.0/8, or single addresses. An empty
// list means private and loopback networks and those of this machine's own
// interfaces.
func ParseAllowed(list []string) (*Allowed, error) {
	if len(list) == 0 {
		return &Allowed{prefixes: append(ownNetworks(), private...)}, nil
	}
	a := &Allowed{}
	for _, s := range list {
		if addr, err := netip.ParseAddr(s); err == nil {
			a.prefixes = append(a.prefixes, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("network %q must be like 10.0.0.0/8", s)
		}
		a.prefixes = append(a.prefixes, p.Masked())
	}
	return a, nil
}

// ownNetworks are those of the machine's interfaces, as far as it tells.
func ownNetworks() []netip.Prefix {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var own []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Masked())
		}
	}
	return own
}

// Has reports whether an address is allowed. Link-local addresses never are.
func (a *Allowed) Has(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, p := range never {
		if p.Contains(addr) {
			return false
		}
	}
	for _, p := range a.prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
