package tracker

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// SnapshotAll returns a light snapshot of each tracker, of several devices in one process; of all open trackers
// of the process, in the order of their devices, if none are given. It prints as one report:
//
//	fmt.Print(tracker.SnapshotAll())
func SnapshotAll(trackers ...*MemTracker) snapshot.Devices {
	var all snapshot.Devices
	for _, t := range orOpen(trackers) {
		all = append(all, t.LightSnapshot())
	}
	return all
}

// RecordAll returns the Record of the first tracker, with those of the others as its Others; of all open
// trackers of the process if none are given, and nil if there are none. Its dump, and the formats that know
// several devices, tell of all of them.
func RecordAll(trackers ...*MemTracker) *snapshot.Record {
	var all []*snapshot.Record
	for _, t := range orOpen(trackers) {
		all = append(all, t.Record())
	}
	if len(all) == 0 {
		return nil
	}
	all[0].Others = append(all[0].Others, all[1:]...)
	return all[0]
}

// orOpen returns the open trackers if there are no others.
func orOpen(given []*MemTracker) []*MemTracker {
	if len(given) > 0 {
		return given
	}
	open := (*MemTracker)(nil).others()
	slices.SortStableFunc(open, func(x, y *MemTracker) int { return cmp.Compare(x.device.Ordinal(), y.device.Ordinal()) })
	return open
}
