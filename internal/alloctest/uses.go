package alloctest

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// Uses runs a program's work on a simulated device, and remembers which memory is used until when.
// It knows nothing of blocks that are free or pending: it is what a cache with streams must get
// right, not how.
type Uses struct {
	dev  *sim.Device
	ends map[alloc.Stream]time.Duration
	uses []use
}

type use struct {
	span
	stream alloc.Stream
	until  time.Duration
}

// NewUses returns one for work on dev that Queue alone queues.
func NewUses(dev *sim.Device) *Uses {
	return &Uses{dev: dev, ends: make(map[alloc.Stream]time.Duration)}
}

// Queue queues work on a stream that uses n bytes at p.
func (u *Uses) Queue(t require.TestingT, on alloc.Stream, p alloc.Ptr, n alloc.Bytes, takes time.Duration) {
	require.NoError(t, u.dev.Queue(sim.Work{Stream: on, Ptr: p, Size: n, Time: takes}))
	u.ends[on] = max(u.ends[on], u.dev.Now()) + takes
	u.uses = append(u.uses, use{span{p, n}, on, u.ends[on]})
}

// HandedOut checks that nothing but earlier work on the same stream still uses memory that an
// allocator has just given.
func (u *Uses) HandedOut(t require.TestingT, on alloc.Stream, p alloc.Ptr, n alloc.Bytes) {
	now := u.dev.Now()
	u.uses = slices.DeleteFunc(u.uses, func(x use) bool { return x.until <= now })
	for _, x := range u.uses {
		apart := x.ptr+alloc.Ptr(x.size) <= p || p+alloc.Ptr(n) <= x.ptr
		require.True(t, apart || x.stream == on,
			"%v at %v for stream %d is used by work on stream %d until %v, and it is %v", n, p, on, x.stream, x.until, now)
	}
}

// Last returns when all work is done.
func (u *Uses) Last() (last time.Duration) {
	for _, end := range u.ends {
		last = max(last, end)
	}
	return last
}
