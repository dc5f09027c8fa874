package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Data returns what the section measured, or what it has measured so far if it is open. For an
// ended section it waits until the device has done the work that was queued in it.
func (s *Section) Data() snapshot.SectionData {
	m, done := s.completed()
	if !done {
		m = s.soFar()
	}
	data := snapshot.SectionData{
		Path: s.path, Site: s.tracker.stacks.Site(s.stack), Stack: s.tracker.stacks.Stack(s.stack), Incomplete: m.incomplete,
		Start: s.tracker.start.Add(s.from.at), Time: m.to.at - s.from.at, CPUTime: -1, DeviceTime: -1,
		GPU:       snapshot.MemoryUse{Before: s.from.gpu, Used: m.to.gpu, Peak: m.peak.gpu},
		RSS:       residentUse(s.from.host, m.to.host, m.peak.host),
		Heap:      snapshot.MemoryUse{Before: s.from.host.heap, Used: m.to.host.heap, Peak: -1},
		Allocated: m.own.allocated, Freed: m.own.freed, OwnPeak: m.own.peak,
	}
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		data.CPUTime = max(0, m.to.cpu-s.from.cpu)
	}
	if m.timed {
		data.DeviceTime = s.device.read()
	}
	return data
}

// soFar measures an open section.
func (s *Section) soFar() measures {
	t := s.tracker
	now := moment{cpu: t.sections.host.cpu(), host: t.sections.host.read()}
	now.at = t.now()
	t.lockSections()
	defer t.unlockSections()
	if s.done { // by now
		return s.final
	}
	now.gpu = t.ledger.Current.Bytes
	return measures{to: now, peak: s.peak(), own: s.own}
}

// residentUse is the use between two readings. mark is the section's own high-water mark. Without it the
// process's mark is the section's peak if it rose meanwhile, and otherwise an upper bound of it.
func residentUse(from, to hostMemory, mark alloc.Bytes) snapshot.MemoryUse {
	use := snapshot.MemoryUse{Before: from.resident, Used: to.resident, Peak: -1}
	switch {
	case mark > 0 && to.resident >= 0:
		use.Peak = max(mark, from.resident, to.resident)
	case from.peak < 0 || to.peak < 0:
	case to.peak > from.peak:
		use.Peak = to.peak
	default:
		use.Peak, use.PeakAtMost = from.peak, true // the kernel's figure may fall a little
	}
	return use
}
