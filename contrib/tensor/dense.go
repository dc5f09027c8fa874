package tensor

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/tensor"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// dtypes are the element types that this library and gorgonia.org/tensor both have.
var dtypes = map[alloc.DType]tensor.Dtype{
	alloc.Bool: tensor.Bool, alloc.Int8: tensor.Int8, alloc.Int16: tensor.Int16, alloc.Int32: tensor.Int32, alloc.Int64: tensor.Int64,
	alloc.Uint8: tensor.Uint8, alloc.Uint16: tensor.Uint16, alloc.Uint32: tensor.Uint32, alloc.Uint64: tensor.Uint64,
	alloc.Float32: tensor.Float32, alloc.Float64: tensor.Float64, alloc.Complex64: tensor.Complex64, alloc.Complex128: tensor.Complex128,
}

// New returns a Dense in a new buffer of the tracker. The caller calls Release. The errors are those of MemTracker.Alloc and of
// FromBuffer.
func (e *Engine) New(shape alloc.Shape, dtype alloc.DType, kind tracker.Kind) (*tensor.Dense, error) {
	buf, err := e.tr.Alloc(shape, dtype, kind)
	if err != nil {
		return nil, err
	}
	d, err := e.FromBuffer(buf)
	if err != nil {
		_ = buf.Free() // it has no other user
	}
	return d, err
}

// FromBuffer returns a Dense over a buffer of the engine's tracker: Release frees the buffer. The
// error says that gorgonia.org/tensor has no such type, or no tensor without elements.
func (e *Engine) FromBuffer(buf *tracker.Buffer) (*tensor.Dense, error) {
	dtype, ok := dtypes[buf.DType()]
	if !ok || buf.Bytes() == 0 {
		return nil, fmt.Errorf("a tensor of %v %v: gorgonia.org/tensor has none such", buf.Shape(), buf.DType())
	}
	m := e.track(buf)
	return tensor.New(
		tensor.Of(dtype), tensor.WithShape(buf.Shape()...),
		tensor.WithEngine(e), tensor.FromMemory(m.Uintptr(), m.MemSize()),
	), nil
}

// BufferOf returns the buffer in which a Dense lies. The error is alloc.ErrUnknownPtr if it is not
// one of this engine's.
func (e *Engine) BufferOf(d *tensor.Dense) (*tracker.Buffer, error) { return e.bufferAt(d) }

// Release frees the buffer of a Dense, which must not be used any more. The errors are those of BufferOf and of Buffer.Free.
func (e *Engine) Release(d *tensor.Dense) error { return e.Free(d, int64(d.MemSize())) }

// hostMemory is memory of Go.
type hostMemory []byte

func (h hostMemory) Uintptr() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(h))) }
func (h hostMemory) MemSize() uintptr { return uintptr(len(h)) }

// host returns the bytes of memory that Go owns: of a Dense with the engine of gorgonia.org/tensor,
// or of this package. The caller keeps m alive.
func host(m tensor.Memory) []byte {
	switch m := m.(type) {
	case hostMemory:
		return m
	case *tensor.Dense:
		if m.IsNativelyAccessible() && m.MemSize() > 0 {
			at := m.Uintptr()
			return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), m.MemSize())
		}
	}
	return nil
}

// Memcpy copies from the host to a buffer, from a buffer to the host, or between buffers. The
// sizes must be the same. Host memory is a Dense of Go's own, or what Accessible returned. A
// device that cannot copy is errors.ErrUnsupported.
func (e *Engine) Memcpy(dst, src tensor.Memory) error {
	defer runtime.KeepAlive(dst)
	defer runtime.KeepAlive(src)
	if dst.MemSize() != src.MemSize() {
		return fmt.Errorf("copy %d bytes to %d: want as many", src.MemSize(), dst.MemSize())
	}
	device, ok := alloc.As[alloc.Copier](e.tr.Device())
	if !ok {
		return fmt.Errorf("copy on %s: %w", e.tr.Device().Name(), errors.ErrUnsupported)
	}
	to, toErr := e.bufferAt(dst)
	from, fromErr := e.bufferAt(src)
	switch {
	case to != nil && from != nil:
		through := make([]byte, src.MemSize())
		if err := device.CopyToHost(through, from.Ptr()); err != nil {
			return err
		}
		return device.CopyToDevice(to.Ptr(), through)
	case to != nil && host(src) != nil:
		return device.CopyToDevice(to.Ptr(), host(src))
	case from != nil && host(dst) != nil:
		return device.CopyToHost(host(dst), from.Ptr())
	case to == nil:
		return toErr
	}
	return fromErr
}
