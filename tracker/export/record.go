package export

import (
	"errors"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Record is what a tracker knows at an instant, as the exporters take it.
type Record struct {
	Snapshot *tracker.Snapshot
	History  *tracker.History // nil if there is none
	Marks    []*tracker.Mark  // the latest, oldest first
}

// ErrNoSnapshot is the error of writing a Record without a snapshot, such as a
// zero one.
var ErrNoSnapshot = errors.New("the record has no snapshot: Take makes one that has")

// Take records the tracker's state.
func Take(tr *tracker.MemTracker) Record {
	return Record{Snapshot: tr.Snapshot(), History: tr.History(), Marks: tr.Marks()}
}

// Device names the snapshot's device: "Simulated GPU [0]".
func Device(s *tracker.Snapshot) string { return s.Device + " [" + strconv.Itoa(s.Ordinal) + "]" }
