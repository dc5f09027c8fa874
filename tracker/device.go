package tracker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// deviceVariable, where it is set, names the device of a Config that names none: "sim",
// or the number of a CUDA device.
const deviceVariable = "GPUMEMTRACK_DEVICE"

// openDevice opens the device of a Config that names none: the one in the environment variable, or
// else the first CUDA device. If there is no GPU, it opens the simulated one, and because says why.
// A GPU that is there but cannot be opened is an error.
func openDevice() (device alloc.Device, because, err error) {
	asked := os.Getenv(deviceVariable)
	if asked == "sim" {
		return simulated(), nil, nil
	}
	ordinal := 0
	if asked != "" {
		if ordinal, err = strconv.Atoi(asked); err != nil {
			return nil, nil, fmt.Errorf(`%s is %q: want "sim", or the number of a CUDA device, counted from 0`, deviceVariable, asked)
		}
	}
	gpu, err := cuda.Open(ordinal)
	if err == nil {
		return gpu, nil, nil
	}
	if asked == "" && errors.Is(err, cuda.ErrNoGPU) {
		return simulated(), err, nil
	}
	return nil, nil, err
}

// defaultDevice is openDevice for callers that take no error: the simulated device replaces one
// that cannot be opened.
func defaultDevice() (device alloc.Device, because error) {
	device, because, err := openDevice()
	if err != nil {
		return simulated(), err
	}
	return device, because
}

// uuid returns the device's own name among all devices, "" if it has none.
func uuid(device alloc.Device) string {
	if named, ok := alloc.As[capability.Identified](device); ok {
		return named.UUID()
	}
	return ""
}

func simulated() alloc.Device {
	device, err := sim.New(sim.Config{Backed: true})
	if err != nil {
		panic(err) // the zero Config is valid
	}
	return device
}

var loggedFallback atomic.Bool

// logFallback logs, once in a program, why trackers work on a simulated GPU. The
// caller holds no lock: the handler is not our code.
func logFallback(log *slog.Logger, because error) {
	if because != nil && loggedFallback.CompareAndSwap(false, true) {
		log.Warn("gpumemtrack: no GPU found, using a simulated one ("+deviceVariable+"=sim silences this)", "because", because)
	}
}

// openedDevice is a device that the tracker opened, and so closes. A nil
// openedDevice is the caller's to close.
type openedDevice struct {
	device alloc.Device
	once   sync.Once
	err    error
}

func (o *openedDevice) close() error {
	if o == nil {
		return nil
	}
	o.once.Do(func() {
		if closer, ok := o.device.(io.Closer); ok {
			o.err = closer.Close()
		}
	})
	return o.err
}

// sameDevice reports whether two devices share their memory. A GPU may be open
// twice; a simulated one is a GPU of its own each time.
func sameDevice(a, b alloc.Device) bool {
	a, b = root(a), root(b)
	if a == b {
		return true
	}
	_, simA := a.(sim.Device)
	_, simB := b.(sim.Device)
	return !simA && !simB && a.Name() == b.Name() && a.Ordinal() == b.Ordinal()
}

// root returns the innermost device.
func root(d alloc.Device) alloc.Device {
	for {
		wrapper, ok := d.(interface{ Unwrap() alloc.Device })
		if !ok {
			return d
		}
		d = wrapper.Unwrap()
	}
}

// sizedAllocator is a device that takes more for a request than was asked, and says how much.
type sizedAllocator interface {
	AllocSized(n alloc.Bytes) (p alloc.Ptr, allocated alloc.Bytes, err error)
}
