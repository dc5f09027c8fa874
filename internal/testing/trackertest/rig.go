package trackertest

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Rig is a device under test.
type Rig struct {
	Device alloc.Device
	// FailAlloc and FailFree make the next call of the device's Alloc or Free
	// fail. They are nil where the device cannot be made to fail.
	FailAlloc, FailFree func()
	// Heal takes back failures that did not come to pass; nil if there are none.
	Heal func()
}

// Run runs every test body. open is called for each program and each case; it has the
// test close the device.
func Run(t *testing.T, open func(t *testing.T) Rig) {
	t.Run("oracle", func(t *testing.T) { Oracle(t, open) })
	t.Run("out of memory", func(t *testing.T) { OutOfMemory(t, open) })
}
