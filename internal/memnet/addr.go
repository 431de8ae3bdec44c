package memnet

import (
	"net"
	"net/netip"
	"strconv"
)

// loopback is the address of clients that name none, and of listeners that
// listen everywhere.
const loopback = "127.0.0.1"

// nameAddr is the address of a listener whose host is a name.
type nameAddr string

func (nameAddr) Network() string  { return "tcp" }
func (a nameAddr) String() string { return string(a) }

// splitAddr returns the host of addr as the network spells it, and the port.
func splitAddr(addr string) (host string, port int, err error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return "", 0, &net.AddrError{Err: "invalid port", Addr: addr}
	}
	return plainHost(host), int(number), nil
}

// plainHost spells a host in one way: there is one interface, so "", 0.0.0.0
// and localhost are all the loopback address.
func plainHost(host string) string {
	if host == "" || host == "localhost" {
		return loopback
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return host
	case ip.IsUnspecified():
		return loopback
	default:
		return ip.Unmap().String()
	}
}

func joinAddr(host string, port int) string {
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// netAddr returns a *net.TCPAddr if the host of addr is an IP address.
func netAddr(addr string) net.Addr {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return net.TCPAddrFromAddrPort(ap)
	}
	return nameAddr(addr)
}
