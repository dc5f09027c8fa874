package tracker

import (
	"slices"
	"sync"
	"weak"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// trackers are the open trackers of the process, in the order of their making:
// a device that is full may be so because of another's cache. It keeps none alive.
var trackers struct {
	mu   sync.Mutex
	open []weak.Pointer[MemTracker]
}

func (t *MemTracker) enlist() {
	trackers.mu.Lock()
	defer trackers.mu.Unlock()
	trackers.open = append(slices.DeleteFunc(trackers.open, isGone), weak.Make(t))
}

func (t *MemTracker) delist() {
	trackers.mu.Lock()
	defer trackers.mu.Unlock()
	trackers.open = slices.DeleteFunc(trackers.open, func(p weak.Pointer[MemTracker]) bool { return p.Value() == t })
}

func isGone(p weak.Pointer[MemTracker]) bool { return p.Value() == nil }

// others returns the other open trackers.
func (t *MemTracker) others() (others []*MemTracker) {
	trackers.mu.Lock()
	defer trackers.mu.Unlock()
	for _, p := range trackers.open {
		if open := p.Value(); open != nil && open != t {
			others = append(others, open)
		}
	}
	return others
}

// cachedElsewhere returns what other trackers' caches could give back to this
// tracker's device.
func (t *MemTracker) cachedElsewhere() (bytes alloc.Bytes) {
	for _, other := range t.others() {
		if other.cache == nil || other.cache == t.cache || other.onHost != t.onHost || !sameDevice(other.device, t.device) {
			continue
		}
		bytes += other.cache.Stats().Releasable
	}
	return bytes
}

// sameDevice reports whether two devices share their memory. A GPU may be open
// twice; a simulated one is a GPU of its own each time.
func sameDevice(a, b alloc.Device) bool {
	a, b = root(a), root(b)
	if a == b {
		return true
	}
	_, simA := a.(*sim.Device)
	_, simB := b.(*sim.Device)
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
