package tracker

import (
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// maxTiming is how many ended sections may have device times that were not
// read: a device keeps two events for each.
const maxTiming = 256

// deviceTime is the time of a device's work in one section. A nil deviceTime is
// not known. The device is asked as late as possible, since it answers only when
// the work is done.
type deviceTime struct {
	path uint32

	mu       sync.Mutex
	interval alloc.Interval // nil once it was read
	elapsed  time.Duration  // -1 if it is not known
}

func startDeviceTime(timer alloc.Timer, path uint32) *deviceTime {
	if timer == nil || path == noPath {
		return nil
	}
	interval, err := timer.StartInterval()
	if err != nil {
		return nil
	}
	return &deviceTime{path: path, interval: interval, elapsed: -1}
}

// stop marks the end of the work.
func (d *deviceTime) stop() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.interval.Stop() != nil {
		d.interval = nil
	}
}

// read waits for the work's end and returns its time, or -1.
func (d *deviceTime) read() time.Duration {
	if d == nil {
		return -1
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.interval != nil {
		if elapsed, err := d.interval.Elapsed(); err == nil {
			d.elapsed = elapsed
		}
		d.interval = nil
	}
	return d.elapsed
}

// readDeviceTimes adds the times of ended sections to their paths' sums, if more
// than limit are waiting: all of them if limit is 0, and otherwise the older half.
func (t *MemTracker) readDeviceTimes(limit int) {
	t.mu.Lock()
	waiting := t.sections.timing
	if len(waiting) <= limit {
		t.mu.Unlock()
		return
	}
	n := len(waiting) - limit/2
	t.sections.timing = append([]*deviceTime(nil), waiting[n:]...)
	t.mu.Unlock()

	for _, d := range waiting[:n] {
		d.read()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return
	}
	for _, d := range waiting[:n] {
		t.sections.stats[d.path].addDeviceTime(d.read())
	}
}
