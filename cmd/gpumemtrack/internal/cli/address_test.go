package cli

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
)

// listenerAt is a listener that has only an address.
type listenerAt struct {
	net.Listener
	addr net.Addr
}

func (l listenerAt) Addr() net.Addr { return l.addr }

func TestLocalAddress(t *testing.T) {
	for at, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:80", "::1": "[::1]:80", "192.0.2.7": "192.0.2.7:80", "0.0.0.0": "localhost:80", "::": "localhost:80",
	} {
		assert.Equal(t, want, LocalAddress(listenerAt{addr: &net.TCPAddr{IP: net.ParseIP(at), Port: 80}}), at)
	}
	assert.Equal(t, "localhost:80", LocalAddress(listenerAt{addr: &net.TCPAddr{Port: 80}}))
}
