package nvml

import (
	"fmt"
	"time"
)

// Config says what a Recorder records. The zero Config records the memory used
// on every visible device five times a second, and writes no file.
type Config struct {
	// Source answers; nil means Open. A Source given here is not closed.
	Source Source
	// Interval is the time between samples: 200 ms if zero, 10 ms at least. It
	// is longer where the source takes more than half of it to answer.
	Interval time.Duration
	// Devices are numbers as nvidia-smi prints them, or UUIDs. Empty means all
	// that CUDA_VISIBLE_DEVICES leaves: see VisibleDevices.
	Devices []string
	// Target is a process: its memory is recorded too. A zero
	// PID is none. The driver is asked for it once a second at most, however
	// short the interval: the call is costly and holds up the program watched.
	Target Target
	// Fresh says that Target was started a moment ago. It is then asked for when
	// the device's memory first changes, or after a second, instead of at once
	// and for nothing: so a program that runs for less than a second is seen.
	Fresh bool
	// Quantities are recorded besides MemoryUsed, which always is.
	Quantities Quantities
	// Files are written to as samples come, one line each, so that a recorder
	// that is killed loses one interval at most: JSON lines, or CSV if the name
	// ends so. With Dir, one more file is made there, named after the date, the
	// process and the GPUs. A file that exists is an error without Overwrite.
	Files     []string
	Dir       string
	Overwrite bool
	// MaxPoints bounds the memory of a series: 4096 points of 56 bytes if zero.
	// A longer recording is thinned out, keeping each interval's minimum and
	// maximum; files get every sample.
	MaxPoints int
}

// Limits of Config.
const (
	DefaultInterval = 200 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	processInterval = time.Second
)

func (c *Config) complete() error {
	switch {
	case c.Interval == 0:
		c.Interval = DefaultInterval
	case c.Interval < MinInterval:
		return fmt.Errorf("nvml: an interval of %v: the shortest is %v, since each query holds up the driver", c.Interval, MinInterval)
	}
	if c.Target.PID < 0 {
		return fmt.Errorf("nvml: pid %d: a process number is positive", c.Target.PID)
	}
	if c.Target.PID > 0 && !(systemProcesses{}).exists(c.Target.PID) {
		return fmt.Errorf("nvml: there is no process %d", c.Target.PID)
	}
	if c.MaxPoints <= 0 {
		c.MaxPoints = defaultPoints
	}
	c.Quantities = (c.Quantities | SetOf(MemoryUsed)) &^ SetOf(ProcessMemory)
	return nil
}
