package zmtp

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const scheme = "tcp://"

// listenAddr turns a ZeroMQ address ("tcp://*:30001", "*:30001", "[::]:0") into one for net.Listen.
// A star means every address, IPv4 and IPv6, or any free port.
func listenAddr(addr string) (string, error) {
	host, port, err := splitAddr(addr)
	if err != nil {
		return "", err
	}
	if host == "*" {
		host = ""
	}
	if port == "*" {
		port = "0"
	}
	return joinAddr(addr, host, port, 0)
}

// dialAddr turns a ZeroMQ address ("tcp://10.0.0.1:30001", "engine-0:5557") into one for net.Dial.
func dialAddr(addr string) (string, error) {
	host, port, err := splitAddr(addr)
	if err != nil {
		return "", err
	}
	if host == "" || host == "*" {
		return "", fmt.Errorf("zmtp: address %q has no host to connect to", addr)
	}
	return joinAddr(addr, host, port, 1)
}

func splitAddr(addr string) (host, port string, err error) {
	rest, ok := strings.CutPrefix(addr, scheme)
	if !ok && strings.Contains(addr, "://") {
		return "", "", fmt.Errorf("zmtp: address %q is not %s", addr, scheme)
	}
	host, port, err = net.SplitHostPort(rest)
	if err != nil {
		return "", "", fmt.Errorf("zmtp: address %q: %w", addr, err)
	}
	return host, port, nil
}

func joinAddr(addr, host, port string, minPort uint64) (string, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n < minPort {
		return "", fmt.Errorf("zmtp: address %q: port %q is not a number from %d to 65535", addr, port, minPort)
	}
	return net.JoinHostPort(host, port), nil
}

// addrPort reads an address of the net package; an IPv4 address in IPv6 clothes is undressed.
func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
