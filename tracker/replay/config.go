package replay

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
)

// Allocator is a kind of allocator.
type Allocator string

// The allocators.
const (
	Cache      Allocator = "cache"      // cache.Cache, with PyTorch's rules
	Expandable Allocator = "expandable" // the same with expandable segments
	Driver     Allocator = "driver"     // each request is the driver's, rounded up to 512 bytes
)

// Allocators returns all kinds.
func Allocators() []Allocator { return []Allocator{Cache, Expandable, Driver} }

// Config says on what a history is replayed.
type Config struct {
	// Memory is what the allocator and registered buffers can have: a device's memory, without
	// contexts and other processes. 0 means without limit.
	Memory alloc.Bytes
	// Allocator is Cache if it is empty.
	Allocator Allocator
	// Conf are the settings of Cache and Expandable. ExpandableSegments means Expandable.
	Conf cache.Config

	// packed allocates the buffers that were live before the first event one after the other, even
	// where their recorded segments could be made. Allocators then start alike, and can be compared.
	packed bool
}

// Where a snapshot has the settings of PyTorch's allocator.
const (
	settingsKey      = "PYTORCH_CUDA_ALLOC_CONF"
	laterSettingsKey = "PYTORCH_ALLOC_CONF"
)

// check completes a Config.
func (c Config) check() (Config, error) {
	switch {
	case c.Allocator == "":
		c.Allocator = Cache
	case !slices.Contains(Allocators(), c.Allocator):
		return c, fmt.Errorf("replay: allocator %q: want one of %v", c.Allocator, Allocators())
	}
	if c.Allocator == Cache && c.Conf.ExpandableSegments {
		c.Allocator = Expandable
	}
	if c.Memory < 0 {
		return c, fmt.Errorf("replay: memory of %d bytes: want more than 0, or 0 for no limit", int64(c.Memory))
	}
	return c, nil
}

// The layouts: where the buffers that were live before the first event are placed.
const (
	layoutEmpty    = "empty"       // there were none, nor any segment
	layoutRecorded = "as recorded" // in the recorded segments, gaps included
	layoutPacked   = "packed"      // allocated one after the other, in recorded order
)
