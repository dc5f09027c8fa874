package recordings

import (
	"errors"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Config says what a file does not tell. The zero Config is usual.
type Config struct {
	// Interval is the time between two samples of a file without times. 0 means unknown: then the
	// recording is Numbered.
	Interval time.Duration
	// Location is where the clock of times without a zone stood; nil means time.Local.
	Location *time.Location
	// Columns are the names of the columns of a CSV without a header, with commas between them, as
	// given to nvidia-smi --query-gpu: "timestamp,index,memory.used".
	Columns string
}

// File is a recording that was read.
type File struct {
	Recording nvml.Recording `json:"recording"`
	Format    string         `json:"format"` // what wrote it: "nvidia-smi --query-gpu", "gpustat --json"
	Notes     []string       `json:"notes"`  // what was assumed or left out, in a sentence each
}

// ErrFormat says that a file is no recording that this package reads.
var ErrFormat = errors.New("not a recording of GPU memory")
