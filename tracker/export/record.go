package export

import (
	"os"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Record is what a tracker knows at an instant, as the exporters take it.
type Record struct {
	Snapshot *tracker.Snapshot
	History  *tracker.History // nil if there is none
	Marks    []*tracker.Mark  // the latest, oldest first
	Origin   Origin
}

// Take records the tracker's state, with Here as its origin.
func Take(tr *tracker.MemTracker) Record {
	return Record{Snapshot: tr.Snapshot(), History: tr.History(), Marks: tr.Marks(), Origin: Here()}
}

// Origin tells the processes of a distributed run apart. Its zero value says
// nothing.
type Origin struct {
	Rank      string // of this process, "" if unknown
	WorldSize string // the number of processes, "" if unknown
	Host      string
}

// Here returns the origin of this process: RANK and WORLD_SIZE of the
// environment, as torchrun sets them, where they are numbers, and the host's name.
func Here() Origin {
	host, _ := os.Hostname()
	return Origin{Rank: number("RANK"), WorldSize: number("WORLD_SIZE"), Host: host}
}

func number(variable string) string {
	value := os.Getenv(variable)
	if _, err := strconv.ParseUint(value, 10, 31); err != nil {
		return ""
	}
	return value
}

// String names the origin: "rank 3 of 8 on node-1".
func (o Origin) String() string {
	var s string
	if o.Rank != "" {
		s = "rank " + o.Rank
		if o.WorldSize != "" {
			s += " of " + o.WorldSize
		}
	}
	switch {
	case o.Host == "":
		return s
	case s == "":
		return o.Host
	}
	return s + " on " + o.Host
}

// Device names the snapshot's device: "Simulated GPU [0]".
func Device(s *tracker.Snapshot) string { return s.Device + " [" + strconv.Itoa(s.Ordinal) + "]" }
