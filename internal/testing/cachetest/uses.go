package cachetest

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// StreamDevice is a device whose streams have work for as long as a test says.
type StreamDevice interface {
	alloc.Device
	// Work queues work on a stream that uses n bytes at p.
	Work(on alloc.Stream, p alloc.Ptr, n alloc.Bytes, takes time.Duration) error
	Advance(by time.Duration) (now time.Duration)
}

// Device is a simulated device and all that it can do. A test embeds it in a device that does a part of that otherwise.
type Device interface {
	sim.Device
	capability.All
}

// NewDevice opens a simulated device.
func NewDevice(cfg sim.Config) (Device, error) {
	dev, err := sim.New(cfg)
	if err != nil {
		return nil, err
	}
	return dev.(Device), nil
}

// Simulated is the simulated device as a StreamDevice.
type Simulated struct{ sim.Device }

// Work calls Queue.
func (d Simulated) Work(on alloc.Stream, p alloc.Ptr, n alloc.Bytes, takes time.Duration) error {
	return d.Queue(on, p, n, takes)
}

// Unwrap returns the simulated device.
func (d Simulated) Unwrap() alloc.Device { return d.Device }

// Uses runs a program's work on a device, and remembers which memory is used until when.
// It knows nothing of blocks that are free or pending: it is what a cache with streams must get
// right, not how.
type Uses struct {
	dev  StreamDevice
	ends map[alloc.Stream]time.Duration
	uses []use
}

type use struct {
	ptr    alloc.Ptr
	size   alloc.Bytes
	stream alloc.Stream
	until  time.Duration
}

// NewUses returns the Uses of dev. All work on dev must be queued by its Queue.
func NewUses(dev StreamDevice) *Uses {
	return &Uses{dev: dev, ends: make(map[alloc.Stream]time.Duration)}
}

// Queue queues work on a stream that uses n bytes at p.
func (u *Uses) Queue(t require.TestingT, on alloc.Stream, p alloc.Ptr, n alloc.Bytes, takes time.Duration) {
	require.NoError(t, u.dev.Work(on, p, n, takes))
	u.ends[on] = max(u.ends[on], u.dev.Advance(0)) + takes
	u.uses = append(u.uses, use{p, n, on, u.ends[on]})
}

// HandedOut checks that nothing but earlier work on the same stream still uses memory that an
// allocator has just given.
func (u *Uses) HandedOut(t require.TestingT, on alloc.Stream, p alloc.Ptr, n alloc.Bytes) {
	now := u.dev.Advance(0)
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
