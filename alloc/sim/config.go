package sim

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// What a device is unless its Config says otherwise.
const (
	DefaultName   = "Simulated GPU"
	DefaultMemory = 24 * alloc.GiB
	// DefaultOverhead is near what a CUDA context takes of a data centre GPU.
	DefaultOverhead = 450 * alloc.MiB
)

// PageSize is the unit in which the device takes memory.
const PageSize = 2 * alloc.MiB

// MaxMemory is the largest memory that a device can be given.
const MaxMemory = alloc.TiB

// Config describes a device. The zero Config is a device of 24 GiB.
type Config struct {
	Name    string      // "" means DefaultName
	Ordinal int         // the device's index; devices of different ordinals share no address
	Memory  alloc.Bytes // total, rounded down to whole pages; 0 means DefaultMemory
	// Overhead is what the context takes when the device is opened, rounded up to whole
	// pages; 0 means DefaultOverhead, a negative value none.
	Overhead alloc.Bytes
	Other    alloc.Bytes // see Device.SetOther
	// Backed makes copies work: host memory backs each allocation from the first copy
	// on.
	Backed bool
	// CheckReuse has Device.Err report memory that a Cache hands out while work of Device.Queue
	// still uses it. Each Alloc of the Cache then looks at all the work.
	CheckReuse bool
	Faults     []Fault       // see Device.Inject
	Latency    time.Duration // see Device.SetLatency
}

// withDefaults fills in the zero fields and checks the rest.
func (c Config) withDefaults() (Config, error) {
	c.Name = cmp.Or(c.Name, DefaultName)
	c.Memory = cmp.Or(c.Memory, DefaultMemory)
	c.Overhead = wholePages(cmp.Or(c.Overhead, DefaultOverhead))
	switch {
	case c.Ordinal < 0 || c.Ordinal > maxOrdinal:
		return c, fmt.Errorf("open simulated device: ordinal %d: want 0 to %d", c.Ordinal, maxOrdinal)
	case c.Memory < PageSize || c.Memory > MaxMemory:
		return c, fmt.Errorf("open simulated device %d: memory of %v: want %v to %v", c.Ordinal, c.Memory, PageSize, MaxMemory)
	}
	c.Memory -= c.Memory % PageSize
	if c.Overhead > c.Memory {
		return c, fmt.Errorf("open simulated device %d: context overhead of %v is more than the memory of %v: set Overhead, -1 for none", c.Ordinal, c.Overhead, c.Memory)
	}
	return c, nil
}
