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
)

// deviceVariable, where it is set, names the device of a Config that names none: "sim",
// or the number of a CUDA device.
const deviceVariable = "GPUMEMTRACK_DEVICE"

// openDevice opens the device of a Config that names none: the one that the environment
// names or, if it names none, the first CUDA device. Where there is no GPU to use it opens the
// simulated one, and because says why. A GPU that is there and cannot be opened is an error.
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
	if asked == "" && noGPU(err) {
		return simulated(), err, nil
	}
	return nil, nil, err
}

// noGPU reports whether an error of cuda.Open says that there is no GPU to use.
func noGPU(err error) bool {
	return errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.ErrDriverTooOld) ||
		errors.Is(err, cuda.ErrDriverRefuses) || errors.Is(err, cuda.ErrNoDevice)
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

func simulated() alloc.Device {
	device, err := sim.New(sim.Config{Backed: true})
	if err != nil {
		panic(err) // the zero Config is valid
	}
	return device
}

var toldFallback atomic.Bool

// tellFallback logs, once in a program, why trackers work on a simulated GPU. The
// caller holds no lock: the handler may be anybody's code.
func tellFallback(log *slog.Logger, because error) {
	if because != nil && toldFallback.CompareAndSwap(false, true) {
		log.Warn("gpumemtrack: trackers use a simulated GPU: set "+deviceVariable+"=sim to choose it", "because", because)
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
