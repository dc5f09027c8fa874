package replay_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

// TestMemoryThatJustFits: a random program fits in the most that it ever had reserved, to the byte, with each allocator, from
// its beginning and from its middle. In all that is less something differs: the driver's own allocator fails, and
// caches ask the driver again or fail.
func TestMemoryThatJustFits(t *testing.T) {
	for seed := range uint64(20) {
		p := newProgram(t, seed, 0, cache.Config{}, 1+int(seed%2))
		p.run(200)
		for _, first := range []int{0, 60} {
			d := p.dump(first)
			for _, a := range replay.Allocators() {
				most := ran(t, d, replay.Config{Allocator: a})
				require.True(t, most.Fits)
				exact := ran(t, d, replay.Config{Allocator: a, Memory: most.PeakReserved})
				require.True(t, exact.Fits, "seed %d, from %d: %v", seed, first, a)
				require.Equal(t, most.PeakReserved, exact.PeakReserved)
				require.Equal(t, most.PeakAllocated, exact.PeakAllocated)
				less := ran(t, d, replay.Config{Allocator: a, Memory: most.PeakReserved - 1})
				if less.Fits {
					require.NotEqual(t, "driver", a, "seed %d, from %d", seed, first)
					require.Less(t, less.PeakReserved, most.PeakReserved)
				}
			}
		}
	}
}
