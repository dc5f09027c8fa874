package live

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// allows reports whether the Host header may be what it is. No browser leaves it out. The check stops DNS
// rebinding: a web page that points a name of its own at this program's address. The browser then sends that
// name in the Host header.
func (h *handler) allows(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return true
	}
	name = canonical(name)
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || h.hosts[name] || h.hosts["*"]
}

func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func refuseHost(w http.ResponseWriter, host string) {
	http.Error(w, fmt.Sprintf("the host %q is not allowed: ask by localhost or by an address, or let the program pass %q to live.Handler, or gpumemtrack attach --allow-host %[2]q",
		host, canonical(strings.Split(host, ":")[0])), http.StatusForbidden)
}
