package memtrack

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

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
		dims, dtype = inLedger(shape)
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
