package memtrack

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Wrap returns a backend that does what b does, and enters each of its buffers in a tracker's ledger. Pass it
// wherever GoMLX takes a backend. The buffers of device n are entered in the tracker at index n; if there is none for
// a device, in the first. Without trackers all are entered in tracker.Default.
func Wrap(b compute.Backend, trackers ...*tracker.MemTracker) compute.Backend {
	if len(trackers) == 0 {
		trackers = []*tracker.MemTracker{tracker.Default()}
	}
	return &backend{Backend: b, trackers: trackers}
}

// backend is the backend that Wrap returns.
type backend struct {
	compute.Backend
	trackers  []*tracker.MemTracker
	variables sync.Map    // of *variable, by path
	fresh     atomic.Bool // an executable ran for the first time, so what its results are is not known
}

// tracker returns the tracker of a device: see Wrap.
func (b *backend) tracker(n compute.DeviceNum) *tracker.MemTracker {
	if n < 0 || int(n) >= len(b.trackers) {
		n = 0
	}
	return b.trackers[n]
}

// BufferFromFlatData implements compute.DataInterface.
func (b *backend) BufferFromFlatData(n compute.DeviceNum, flat any, shape shapes.Shape) (compute.Buffer, error) {
	inner, err := b.Backend.BufferFromFlatData(n, flat, shape)
	if err != nil {
		return nil, b.explain(err, n, shape, tracker.Input)
	}
	return b.register(inner, n, shape, tracker.Input, ""), nil
}

// NewSharedBuffer implements compute.DataInterface.
func (b *backend) NewSharedBuffer(n compute.DeviceNum, shape shapes.Shape) (compute.Buffer, any, error) {
	inner, flat, err := b.Backend.NewSharedBuffer(n, shape)
	if err != nil {
		return nil, nil, b.explain(err, n, shape, tracker.Input)
	}
	return b.register(inner, n, shape, tracker.Input, ""), flat, nil
}

// Builder implements compute.Backend.
func (b *backend) Builder(name string) compute.Builder {
	return &builder{Builder: b.Backend.Builder(name), backend: b}
}

// next is the address of the next buffer. PJRT does not tell where its buffers are, so they have addresses that
// no device has, each once, as large as the buffer.
var next atomic.Uint64

const firstAddress, alignment = 1 << 52, 512

func address(bytes alloc.Bytes) alloc.Ptr {
	size := (uint64(max(bytes, 1)) + alignment - 1) / alignment * alignment
	return alloc.Ptr(firstAddress + next.Add(size) - size)
}

// dataTypes has the ledger's type for each of GoMLX's. A type that is missing here is entered as bytes.
var dataTypes = [...]alloc.DType{
	dtypes.Bool: alloc.Bool,
	dtypes.Int4: alloc.Int4, dtypes.Int8: alloc.Int8, dtypes.Int16: alloc.Int16, dtypes.Int32: alloc.Int32, dtypes.Int64: alloc.Int64,
	dtypes.Uint8: alloc.Uint8, dtypes.Uint16: alloc.Uint16, dtypes.Uint32: alloc.Uint32, dtypes.Uint64: alloc.Uint64,
	dtypes.F4E2M1FN: alloc.Float4, dtypes.F8E4M3FN: alloc.Float8E4M3, dtypes.F8E5M2: alloc.Float8E5M2,
	dtypes.Float16: alloc.Float16, dtypes.BFloat16: alloc.BFloat16, dtypes.Float32: alloc.Float32, dtypes.Float64: alloc.Float64,
	dtypes.Complex64: alloc.Complex64, dtypes.Complex128: alloc.Complex128,
}

// ledgerShape returns a shape and its type as the ledger has them.
func ledgerShape(s shapes.Shape) (alloc.Shape, alloc.DType) {
	t := s.DType
	if t > 0 && int(t) < len(dataTypes) && dataTypes[t] != 0 {
		return alloc.Shape(s.Dimensions), dataTypes[t]
	}
	switch t {
	case dtypes.F8E4M3, dtypes.F8E3M4, dtypes.F8E4M3B11FNUZ, dtypes.F8E4M3FNUZ, dtypes.F8E5M2FNUZ, dtypes.F8E8M0FNU:
		return alloc.Shape{s.Size()}, alloc.Uint8 // GoMLX does not know their size
	case dtypes.Uint4, dtypes.Int2, dtypes.Uint2, dtypes.Int1, dtypes.Uint1:
		return alloc.Shape{int(s.ByteSize())}, alloc.Uint8
	}
	return alloc.Shape{0}, alloc.Uint8 // no data: a token, a tuple
}

// exhausted finds what PJRT writes where memory is missing; its code for that is 8. requested finds how much
// was asked for, in bytes or in a rounded unit.
var (
	exhausted = regexp.MustCompile(`RESOURCE_EXHAUSTED|PJRT error \(code=8\)|(?i:out of memory)`)
	requested = regexp.MustCompile(`allocat\w* (?:\w+ ){0,2}?([0-9.]+) ?([KMGT]?i?B|bytes)`)
)

var units = map[string]alloc.Bytes{"B": 1, "bytes": 1, "KiB": alloc.KiB, "MiB": alloc.MiB, "GiB": alloc.GiB, "TiB": 1024 * alloc.GiB}

// explain turns an error by which the backend says that it is out of memory into a tracker's error. Other errors are
// returned as they are. The shape, if it is known, is of the tensor that the memory was for.
func (b *backend) explain(err error, n compute.DeviceNum, shape shapes.Shape, kind tracker.Kind) error {
	text := err.Error()
	if !exhausted.MatchString(text) {
		return err
	}
	full := &alloc.OutOfMemoryError{
		Device:    b.Backend.Name() + ", " + b.DeviceDescription(n),
		Requested: asked(text), Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1,
		Err: err,
	}
	dims, dtype := alloc.Shape{int(max(0, full.Requested))}, alloc.Uint8
	if shape.Ok() {
		dims, dtype = ledgerShape(shape)
		full.Requested, _ = dims.Bytes(dtype)
	}
	return fmt.Errorf("%w\n\t%s said: %s", b.tracker(n).ExplainOutOfMemory(full, dims, dtype, kind), b.Backend.Name(), text)
}

// asked returns how much an error says was asked for; -1 if it does not say.
func asked(text string) alloc.Bytes {
	m := requested.FindStringSubmatch(text)
	if m == nil {
		return -1
	}
	amount, err := strconv.ParseFloat(m[1], 64)
	if unit := units[m[2]]; err == nil && unit > 0 {
		return alloc.Bytes(amount * float64(unit))
	}
	return -1
}
