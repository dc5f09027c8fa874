package cuda

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// managed gives managed memory of a Device.
type managed struct{ dev *gpu }

var _ alloc.Device = managed{}

// Memory returns alloc.ManagedMemory.
func (m managed) Memory() alloc.Memory { return alloc.ManagedMemory }

// Unwrap returns the device; alloc.As finds its abilities.
func (m managed) Unwrap() alloc.Device { return m.dev }

// Name returns the device's product name.
func (m managed) Name() string { return m.dev.Name() }

// Ordinal returns the device's index.
func (m managed) Ordinal() int { return m.dev.Ordinal() }

func (m managed) String() string { return fmt.Sprintf("managed memory of %v", m.dev) }

// MemInfo is the device's. Its errors are the same.
func (m managed) MemInfo() (alloc.MemInfo, error) { return m.dev.MemInfo() }

// Free is Device.Free. The errors are the same.
func (m managed) Free(p alloc.Ptr) error { return m.dev.Free(p) }

// Alloc gives n bytes by cuMemAllocManaged, for every stream. For zero bytes it gives one. The error is
// errors.ErrUnsupported on a driver without managed memory; the other errors are Device.Alloc's.
// Memory may be larger than the device's.
func (m managed) Alloc(n alloc.Bytes) (alloc.Ptr, error) {
	switch {
	case n < 0:
		return 0, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
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
