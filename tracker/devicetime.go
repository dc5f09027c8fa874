package tracker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// maxTiming is how many ended sections may have device times that were not
// read: a device keeps two events for each.
const maxTiming = 256

// deviceTime is the time of a device's work in one section. The device is asked as
// late as possible, since it answers only when the work is done.
type deviceTime struct {
	interval alloc.Interval // nil: there is no time
	asked    atomic.Bool    // by the one who may
	answered sync.WaitGroup
	elapsed  time.Duration // -1 if it is not known

	// Guarded by the tracker's mutex.
	path      uint32
	abandoned bool // whoever reads it must stop it first
	counted   bool // its path's sum has it
}

// start marks the beginning of the work, if the device can.
func (d *deviceTime) start(timer alloc.Timer) {
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

// queueTime keeps the device's time of a section that is done for readDeviceTimes.
// The caller holds the tracker's mutex.
func (s *Section) queueTime() {
	if s.device.interval != nil {
		s.device.path, s.final.timed = s.id, true
		s.tracker.sections.timing = append(s.tracker.sections.timing, &s.device)
	}
}

// readDeviceTimes adds the times of ended sections to their paths' sums, if more
// than limit are waiting: all of them if limit is 0, and otherwise the older half.
// When it returns, those are counted, whoever read them.
func (t *MemTracker) readDeviceTimes(limit int) {
	t.mu.Lock()
	waiting := t.sections.timing
	if len(waiting) <= limit {
		t.mu.Unlock()
		return
	}
	batch := slices.Clone(waiting[:len(waiting)-limit/2])
	t.mu.Unlock()

	for _, d := range batch {
		d.read()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return
	}
	for _, d := range batch {
		if !d.counted {
			d.counted = true
			t.sections.stats[d.path].addDeviceTime(d.elapsed)
		}
	}
	t.sections.timing = slices.DeleteFunc(t.sections.timing, func(d *deviceTime) bool { return d.counted })
}
