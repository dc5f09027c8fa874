package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Profile returns the sections that have ended, added up by path, in the order of a tree. It
// waits until the device has done their work.
func (t *MemTracker) Profile() *Profile {
	if t.closed.Load() {
		t.usedAfterClose("Profile")
	}
	t.readDeviceTimes(0)
	return t.profile()
}

// profile is Profile without waiting.
func (t *MemTracker) profile() *Profile {
	t.mu.Lock()
	names, stats := t.sections.paths.names, t.sections.stats.View()
	t.mu.Unlock()

	var rows []snapshot.ProfileRow
	stats.Read(t.mu, func(first slab.ID, paths []pathStats) {
		for i, s := range paths {
			if s.calls > 0 || !s.live.IsZero() {
				rows = append(rows, s.row(names[int(first)+i], t.stacks.Site(s.stack), t.stacks.Stack(s.stack)))
			}
		}
	})
	return snapshot.NewProfile(rows)
}

func (s *pathStats) row(path string, site snapshot.Frame, stack snapshot.Stack) snapshot.ProfileRow {
	r := snapshot.ProfileRow{
		Path: path, Site: site, Stack: stack, Calls: s.calls, Time: s.time, DeviceTime: -1, CPUTime: s.cpuTime, RSS: s.rss, Heap: s.heap,
		Allocated: s.allocated, Freed: s.freed, Peak: s.peak, OwnPeak: s.ownPeak, Live: s.live,
	}
	if s.timed > 0 {
		r.DeviceTime = s.deviceTime
	}
	if s.layer != nil {
		r.Layer = *s.layer
	}
	return r
}
