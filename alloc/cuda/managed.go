package cuda

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Managed gives managed memory of a Device, as an alloc.Device: pages that the driver moves
// between the host and the device as either touches them.
//
//	tr, err := tracker.New(tracker.Config{Device: dev.Managed(), NoCache: true})
//
// A tracker over it has alloc.ManagedMemory, and counts all of it: the driver does not say how
// much of it is on the device, so that what is untracked is unknown. The methods may be called
// from any goroutine.
type Managed struct{ dev *Device }

var _ alloc.Device = Managed{}

// Managed returns the device's managed memory.
func (d *Device) Managed() Managed { return Managed{d} }

// Memory returns alloc.ManagedMemory.
func (m Managed) Memory() alloc.Memory { return alloc.ManagedMemory }

// Unwrap returns the device; alloc.As finds its abilities.
func (m Managed) Unwrap() alloc.Device { return m.dev }

// Name returns the device's product name.
func (m Managed) Name() string { return m.dev.Name() }

// Ordinal returns the device's index.
func (m Managed) Ordinal() int { return m.dev.Ordinal() }

func (m Managed) String() string { return fmt.Sprintf("managed memory of %v", m.dev) }

// MemInfo is the device's. Its errors are the same.
func (m Managed) MemInfo() (alloc.MemInfo, error) { return m.dev.MemInfo() }

// Free is Device.Free. The errors are the same.
func (m Managed) Free(p alloc.Ptr) error { return m.dev.Free(p) }

// Alloc gives n bytes by cuMemAllocManaged, for every stream. Zero bytes take one. It is
// errors.ErrUnsupported on a driver without managed memory; the other errors are Device.Alloc's.
// Memory may be larger than the device's.
func (m Managed) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	switch {
	case n < 0:
		return 0, &alloc.SizeError{Requested: n, Reason: "negative"}
	case m.dev.driver.allocManaged == 0:
		return 0, fmt.Errorf("alloc %v of %v: the driver has none: %w", n, m, errors.ErrUnsupported)
	}
	var p uint64
	err := m.dev.do(func() (err error) {
		p, err = m.dev.driver.managed(int64(max(n, 1)))
		return err
	})
	switch {
	case errors.Is(err, codeOutOfMemory):
		return 0, m.dev.outOfMemory(n, err)
	case err != nil:
		return 0, fmt.Errorf("alloc %v of %v: %w", n, m, mapped(err))
	}
	return alloc.Ptr(p), nil
}
