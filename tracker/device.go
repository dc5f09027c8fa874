package tracker

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// deviceVariable, where it is set, names the device of a Config that names none: "sim",
// or the number of a CUDA device.
const deviceVariable = "GPUMEMTRACK_DEVICE"

// openDevice opens the device of a Config that names none: the one that the environment
// names or, if it names none, the first CUDA device. Where there is no GPU to use it is the
// simulated one; a GPU that is there and cannot be opened is an error.
func openDevice(log *slog.Logger) (alloc.Device, error) {
	asked := os.Getenv(deviceVariable)
	if asked == "sim" {
		return sim.New(sim.Config{})
	}
	ordinal := 0
	if asked != "" {
		var err error
		if ordinal, err = strconv.Atoi(asked); err != nil {
			return nil, fmt.Errorf(`%s is %q: want "sim", or the number of a CUDA device, counted from 0`, deviceVariable, asked)
		}
	}
	device, err := cuda.Open(ordinal)
	if err == nil {
		return device, nil
	}
	if asked == "" && noGPU(err) {
		return simulated(log, err)
	}
	return nil, err
}

// noGPU reports whether an error of cuda.Open says that there is no GPU to use.
func noGPU(err error) bool {
	return errors.Is(err, cuda.ErrNoDriver) || errors.Is(err, cuda.ErrDriverTooOld) ||
		errors.Is(err, cuda.ErrDriverRefuses) || errors.Is(err, cuda.ErrNoDevice)
}

// defaultDevice is openDevice for who cannot be given an error: it falls back in any case.
func defaultDevice() alloc.Device {
	device, err := openDevice(nil)
	if err != nil {
		device, err = simulated(nil, err)
	}
	if err != nil {
		panic(err) // the zero sim.Config is valid
	}
	return device
}

var logFallback sync.Once

// simulated falls back to the simulated GPU, which the log hears of once.
func simulated(log *slog.Logger, because error) (alloc.Device, error) {
	logFallback.Do(func() {
		cmp.Or(log, slog.Default()).Warn("gpumemtrack: trackers work on a simulated GPU; "+deviceVariable+"=sim asks for it", "because", because)
	})
	return sim.New(sim.Config{})
}
