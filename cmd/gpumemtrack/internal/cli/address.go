package cli

import (
	"net"
	"strconv"
)

// LocalAddress returns the host and port by which a program on this machine reaches a listener. One that listens at all
// addresses (0.0.0.0 or ::, as ":8080" does) is at localhost: not every system connects to those.
func LocalAddress(listener net.Listener) string {
	if at, ok := listener.Addr().(*net.TCPAddr); ok && (at.IP == nil || at.IP.IsUnspecified()) {
		return net.JoinHostPort("localhost", strconv.Itoa(at.Port))
	}
	return listener.Addr().String()
}
