package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// TestPriorBytes: what the driver does not tell is unknown, and never 0.
func TestPriorBytes(t *testing.T) {
	var fromStart *Prior
	assert.Zero(t, fromStart.On(0))
	assert.Zero(t, fromStart.On(UnknownDevice))
	told := &Prior{Known: true, UnseenCalls: true, usage: map[Device]alloc.Bytes{0: 10, 1: 20}}
	assert.Equal(t, alloc.Bytes(20), told.On(1))
	assert.Equal(t, alloc.Bytes(0), told.On(2), "the driver lists the process on the others alone")
	assert.Equal(t, alloc.Bytes(30), told.On(UnknownDevice))
	assert.Equal(t, alloc.Bytes(-1), told.On(HostMemory))
	assert.Equal(t, alloc.Bytes(-1), (&Prior{}).On(0))
	// As in a container, where the driver lists no process.
	assert.Equal(t, alloc.Bytes(-1), (&Prior{Known: true, UnseenCalls: true}).On(UnknownDevice), "its context is from before")
}
