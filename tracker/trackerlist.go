package tracker

import (
	"slices"
	"sync"
	"weak"
)

// openTrackers are the open trackers of the process. A full device may be full because of another tracker's cache.
var openTrackers trackerList

// trackerList has trackers in the order of their creation. It does not keep a tracker from being collected.
type trackerList struct {
	mu   sync.Mutex
	open []weak.Pointer[MemTracker]
}

func (l *trackerList) add(t *MemTracker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	collected := func(p weak.Pointer[MemTracker]) bool { return p.Value() == nil }
	l.open = append(slices.DeleteFunc(l.open, collected), weak.Make(t))
}

func (l *trackerList) remove(t *MemTracker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(p weak.Pointer[MemTracker]) bool { return p.Value() == t })
}

// except returns all trackers but t, which may be nil.
func (l *trackerList) except(t *MemTracker) (others []*MemTracker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.open {
		if open := p.Value(); open != nil && open != t {
			others = append(others, open)
		}
	}
	return others
}
