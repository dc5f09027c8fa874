package replay

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
)

const (
	caching    = "cache"
	expandable = "expandable"
	driver     = "driver"
)

// Allocators returns the kinds of allocators: "cache" is cache.Cache, with PyTorch's rules; "expandable" is
// the same with expandable segments; with "driver", each request is the driver's, rounded up to 512 bytes.
func Allocators() []string { return []string{caching, expandable, driver} }

// Config says on what a history is replayed.
type Config struct {
	// Memory is what the allocator and registered buffers can have: a device's memory, without
	// contexts and other processes. 0 means without limit.
	Memory alloc.Bytes
	// Allocator is one of Allocators, "cache" if it is empty.
	Allocator string
	// Conf are the settings of "cache" and "expandable". ExpandableSegments means "expandable".
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
		c.Allocator = caching
	case !slices.Contains(Allocators(), c.Allocator):
		return c, fmt.Errorf("replay: allocator %q: want one of %v", c.Allocator, Allocators())
	}
	if c.Allocator == caching && c.Conf.ExpandableSegments {
		c.Allocator = expandable
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
