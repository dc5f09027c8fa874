package sim

import (
	"cmp"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// What a device is unless its Config says otherwise.
const (
	defaultName   = "Simulated GPU"
	defaultMemory = 24 * alloc.GiB
	// defaultOverhead is near what a CUDA context takes of a data centre GPU.
	defaultOverhead = 450 * alloc.MiB
)

// pageSize is the unit in which the device takes memory.
const pageSize = 2 * alloc.MiB

// maxMemory is the largest memory that a device can be given.
const maxMemory = alloc.TiB

// Config describes a device. The zero Config is a device of 24 GiB.
type Config struct {
	Name    string      // "" means "Simulated GPU"
	Ordinal int         // the device's index; devices of different ordinals share no address
	Memory  alloc.Bytes // total, up to 1 TiB, rounded down to whole pages of 2 MiB; 0 means 24 GiB
	// Overhead is what the context takes when the device is opened, rounded up to whole
	// pages; 0 means 450 MiB, a negative value none.
	Overhead alloc.Bytes
	// Backed makes copies work: host memory backs each allocation from the first copy
	// on.
	Backed bool
	// CheckReuse has Device.Err report memory that a Cache hands out while work of Device.Queue
	// still uses it. Each Alloc of the Cache then looks at all the work.
	CheckReuse bool
}

// withDefaults fills in the zero fields and checks the rest.
func (c Config) withDefaults() (Config, error) {
	c.Name = cmp.Or(c.Name, defaultName)
	c.Memory = cmp.Or(c.Memory, defaultMemory)
	c.Overhead = wholePages(cmp.Or(c.Overhead, defaultOverhead))
	switch {
	case c.Ordinal < 0 || c.Ordinal > maxOrdinal:
		return c, fmt.Errorf("open simulated device: ordinal %d: want 0 to %d", c.Ordinal, maxOrdinal)
	case c.Memory < pageSize || c.Memory > maxMemory:
		return c, fmt.Errorf("open simulated device %d: memory of %v: want %v to %v", c.Ordinal, c.Memory, pageSize, maxMemory)
	}
	c.Memory -= c.Memory % pageSize
	if c.Overhead > c.Memory {
		return c, fmt.Errorf("open simulated device %d: context overhead of %v is more than the memory of %v: set Overhead, -1 for none", c.Ordinal, c.Overhead, c.Memory)
	}
	return c, nil
}
