package tracker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/ability"
)

// maxTiming is how many ended sections may have device times that were not
// read: a device keeps two events for each.
const maxTiming = 256

// deviceTime is the time of a device's work in one section. The device is asked as
// late as possible, since it answers only when the work is done.
type deviceTime struct {
	interval ability.Interval // nil: there is no time
	asked    atomic.Bool      // set by the goroutine that asks the device
	answered sync.WaitGroup
	elapsed  time.Duration // -1 if it is not known

	// Guarded by the tracker's mutex.
	path      uint32
	abandoned bool // whoever reads it must stop it first
	counted   bool // its path's sum has it
}

// start marks the beginning of the work, if the device can measure time.
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
