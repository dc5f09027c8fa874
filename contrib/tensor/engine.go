// Package tensor shows gorgonia.org/tensor over tracked memory: a Dense whose data lies in a
// tracker's Buffer, so that reports name its shape, dtype, kind and label.
//
//	e := tensor.NewEngine(tr)
//	w, err := e.New(alloc.Shape{64, 3, 7, 7}, alloc.Float32, tracker.Parameter)
//	buf, err := e.BufferOf(w)     // and back
//	buf.SetLabel("conv1.weight")
//	...
//	err = e.Release(w)
//
// It is a module of its own: copy it, or import it. Programs that do not use gorgonia.org/tensor
// depend on nothing of it.
package tensor

import (
	"errors"
	"fmt"
	"sync"

	"gorgonia.org/tensor"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Engine is a tensor.Engine that allocates from a tracker. It moves data, but computes nothing: for
// that, a program embeds it in an engine of its own. Any goroutine may call its methods.
type Engine struct {
	tr *tracker.MemTracker

	mu      sync.Mutex
	buffers map[uintptr]*tracker.Buffer // by address
}

var (
	_ tensor.Engine       = (*Engine)(nil)
	_ tensor.NonStdEngine = (*Engine)(nil)
)

// NewEngine returns an engine over a tracker.
func NewEngine(tr *tracker.MemTracker) *Engine {
	return &Engine{tr: tr, buffers: make(map[uintptr]*tracker.Buffer)}
}

// String names the tracker, and says what is live.
func (e *Engine) String() string { return "tensors in " + e.tr.String() }

// memory is a Buffer as gorgonia.org/tensor has memory: an address and a size.
type memory struct{ *tracker.Buffer }

func (m memory) Uintptr() uintptr { return uintptr(m.Ptr()) }
func (m memory) MemSize() uintptr { return uintptr(m.Bytes()) }

// NonStdAlloc says that Go's allocator does not own the memory.
func (e *Engine) NonStdAlloc() {}

// AllocAccessible reports that Go cannot read the memory at its address.
func (e *Engine) AllocAccessible() bool { return false }

// WorksWith reports that any order of the data will do.
func (e *Engine) WorksWith(tensor.DataOrder) bool { return true }

// Alloc gives memory of which only the size is known, as a buffer of bytes. New says more. The
// errors are the tracker's.
func (e *Engine) Alloc(size int64) (tensor.Memory, error) {
	buf, err := e.tr.AllocBytes(alloc.Bytes(size), tracker.Unspecified)
	if err != nil {
		return nil, err
	}
	return e.track(buf), nil
}

func (e *Engine) track(buf *tracker.Buffer) memory {
	m := memory{buf}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buffers[m.Uintptr()] = buf
	return m
}

// bufferAt returns the buffer of memory, or alloc.ErrUnknownPtr.
func (e *Engine) bufferAt(m tensor.Memory) (*tracker.Buffer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if buf := e.buffers[m.Uintptr()]; buf != nil {
		return buf, nil
	}
	return nil, fmt.Errorf("memory at %#x: %w: not a buffer of this engine", m.Uintptr(), alloc.ErrUnknownPtr)
}

// Free frees the buffer. A second Free is alloc.ErrUnknownPtr. If the device refuses, the buffer
// stays.
func (e *Engine) Free(m tensor.Memory, _ int64) error {
	buf, err := e.bufferAt(m)
	if err != nil {
		return err
	}
	e.mu.Lock() // before the address can be another's
	delete(e.buffers, m.Uintptr())
	e.mu.Unlock()
	if err := buf.Free(); err != nil {
		if !errors.Is(err, alloc.ErrDoubleFree) {
			e.track(buf)
		}
		return err
	}
	return nil
}

// Accessible returns a copy that Go can read. The errors are those of Memcpy.
func (e *Engine) Accessible(m tensor.Memory) (tensor.Memory, error) {
	host := make(hostMemory, m.MemSize())
	return host, e.Memcpy(host, m)
}

// Memset returns errors.ErrUnsupported, because it needs a kernel. Memclr and Memcpy do not.
func (e *Engine) Memset(m tensor.Memory, val any) error {
	return fmt.Errorf("set memory at %#x to %v: %w", m.Uintptr(), val, errors.ErrUnsupported)
}

// Memclr writes zeros. It has no result: memory that cannot be cleared stays as it is.
func (e *Engine) Memclr(m tensor.Memory) { _ = e.Memcpy(m, make(hostMemory, m.MemSize())) }
