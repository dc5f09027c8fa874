package export

import (
	"errors"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrNoSnapshot is the error of writing a record without a snapshot.
var ErrNoSnapshot = errors.New("the record has no snapshot")

// Device names the snapshot's device: "Simulated GPU [0]".
func Device(s *snapshot.Snapshot) string { return s.Device + " [" + strconv.Itoa(s.Ordinal) + "]" }
