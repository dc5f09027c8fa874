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
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
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

// maxTiming is how many ended sections may have device times that were not
// read: a device keeps two events for each.
const maxTiming = 256

// deviceTime is the time of a device's work in one section. The device is asked as
// late as possible, since it answers only when the work is done.
type deviceTime struct {
	interval ability.Interval // nil: there is no time
	asked    atomic.Bool      // by the goroutine that asks the device
	answered sync.WaitGroup
	elapsed  time.Duration // -1 if it is not known

	// Guarded by the tracker's mutex.
	path      uint32
	abandoned bool // whoever reads it must stop it first
	counted   bool // its path's sum has it
}

// start marks the beginning of the work, if the device can.
func (d *deviceTime) start(timer ability.Timer) {
	if timer == nil {
		return
	}
	if interval, err := timer.StartInterval(); err == nil {
		d.interval, d.elapsed = interval, -1
		d.answered.Add(1)
	}
}

// stop marks the end of the work.
func (d *deviceTime) stop() {
	if d.interval != nil && d.interval.Stop() != nil {
		d.interval = nil
	}
}

// read waits for the work's end and returns its time, or -1. It comes after stop,
// or when the section was abandoned.
func (d *deviceTime) read() time.Duration {
	if d.interval == nil {
		return -1
	}
	if d.asked.CompareAndSwap(false, true) {
		d.ask()
	}
	d.answered.Wait()
	return d.elapsed
}

func (d *deviceTime) ask() {
	defer d.answered.Done()
	if d.abandoned && d.interval.Stop() != nil {
		return
	}
	if elapsed, err := d.interval.Elapsed(); err == nil && !d.abandoned {
		d.elapsed = elapsed
	}
}
