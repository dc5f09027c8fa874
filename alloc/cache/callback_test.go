package cache_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// hooked is a device that calls a function of the test first.
type hooked struct {
	cachetest.Device
	before   func()
	reserved int // ranges of addresses
}

func (d *hooked) Alloc(n alloc.Bytes) (alloc.Ptr, error) { d.before(); return d.Device.Alloc(n) }
func (d *hooked) Free(p alloc.Ptr) error                 { d.before(); return d.Device.Free(p) }
func (d *hooked) MemInfo() (alloc.MemInfo, error)        { d.before(); return d.Device.MemInfo() }
func (d *hooked) Map(p alloc.Ptr, n alloc.Bytes) error   { d.before(); return d.Device.Map(p, n) }
func (d *hooked) Unmap(p alloc.Ptr, n alloc.Bytes) error { d.before(); return d.Device.Unmap(p, n) }

func (d *hooked) Reserve(n, chunk alloc.Bytes) (alloc.Ptr, error) {
	d.before()
	p, err := d.Device.Reserve(n, chunk)
	if err == nil {
		d.reserved++
	}
	return p, err
}

func (d *hooked) Release(p alloc.Ptr) error {
	d.before()
	err := d.Device.Release(p)
	if err == nil {
		d.reserved--
	}
	return err
}

func (d *hooked) RecordEvent(s alloc.Stream) (capability.Event, error) {
	d.before()
	e, err := d.Device.RecordEvent(s)
	return hookedEvent{e, d}, err
}

type hookedEvent struct {
	capability.Event
	of *hooked
}

func (e hookedEvent) Done() (bool, error) { e.of.before(); return e.Event.Done() }
func (e hookedEvent) Wait() error         { e.of.before(); return e.Event.Wait() }

// settingsOfCaches are settings with code of their own for what the driver is asked.
var settingsOfCaches = []string{"", "expandable_segments:True", "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5", "max_split_size_mb:21"}

// TestADeviceThatPanics loses nothing: whoever recovers from the panic finds a cache whose sums add up, and all memory goes
// back to the driver in the end.
func TestADeviceThatPanics(t *testing.T) {
	for _, settings := range settingsOfCaches {
		for seed := range uint64(10) {
			random := rand.New(rand.NewPCG(seed, 1))
			dev := &hooked{Device: open(t, sim.Config{Memory: 512 * alloc.MiB})}
			cfg, err := cache.ParseConfig(settings)
			require.NoError(t, err)
			dev.before = func() {}
			c := cachetest.NewCache(t, dev, cfg)
			panics, chance := 0, 3
			dev.before = func() {
				if chance > 0 && random.IntN(chance) == 0 {
					panics++
					panic("on purpose")
				}
			}
			quietly := func(call func()) (panicked bool) {
				defer func() {
					if with := recover(); with != nil {
						require.Equal(t, "on purpose", with)
						panicked = true
					}
				}()
				call()
				return false
			}
			checked := func() {
				was := chance
				chance = 0
				cachetest.Invariants(t, c)
				chance = was
			}
			var live []alloc.Ptr
			for range 150 {
				switch n := random.IntN(8); {
				case n < 4 || len(live) == 0:
					size := alloc.Bytes(random.IntN(1 << (10 + random.IntN(17))))
					quietly(func() {
						if p, _, err := c.AllocOn(size, alloc.Stream(random.IntN(4))); err == nil {
							live = append(live, p)
						}
					})
				case n < 7:
					i := random.IntN(len(live))
					p := live[i]
					if random.IntN(3) == 0 {
						require.NoError(t, c.RecordStream(p, alloc.Stream(3+random.IntN(2))))
					}
					live = append(live[:i], live[i+1:]...)
					quietly(func() { require.NoError(t, c.Free(p)) })
				default:
					if random.IntN(2) == 0 {
						require.NoError(t, dev.Inject(sim.Fault{Call: "Reserve", Times: 4}))
					}
					quietly(func() { _, _ = c.Trim() })
				}
				checked()
			}
			require.Positive(t, panics)
			for _, p := range live {
				quietly(func() { require.NoError(t, c.Free(p)) })
			}
			for quietly(func() { _, _ = c.Trim() }) {
				checked()
			}
			chance = 0
			require.NoError(t, dev.Inject())
			_, err = c.Trim()
			require.NoError(t, err)
			require.NoError(t, c.Close())
			allocations, bytes := dev.Live()
			assert.Zero(t, allocations, "%q %d", settings, seed)
			assert.Zero(t, bytes)
			assert.Zero(t, dev.reserved)
		}
	}
}

// TestADeviceThatCallsTheCache gets an error from it and does not wait for itself, whichever of its methods calls.
func TestADeviceThatCallsTheCache(t *testing.T) {
	for _, settings := range settingsOfCaches {
		dev := &hooked{Device: open(t, sim.Config{Memory: 512 * alloc.MiB}), before: func() {}}
		cfg, err := cache.ParseConfig(settings)
		require.NoError(t, err)
		c := cachetest.NewCache(t, dev, cfg)
		calls, inside := 0, false
		dev.before = func() {
			if inside {
				return
			}
			inside = true
			defer func() { inside = false }()
			_, err := c.Alloc(200 * alloc.MiB)
			require.ErrorIs(t, err, alloc.ErrReentrant)
			_, err = c.Trim()
			require.ErrorIs(t, err, alloc.ErrReentrant)
			require.ErrorIs(t, c.Close(), alloc.ErrReentrant)
			require.NotEmpty(t, c.String())
			calls++
		}
		for range 4 {
			p, err := c.Alloc(30 * alloc.MiB)
			require.NoError(t, err)
			require.NoError(t, c.Free(p))
			freed, err := c.Trim()
			require.NoError(t, err)
			require.Positive(t, freed)
		}
		assert.GreaterOrEqual(t, calls, 8, settings)
		inside = true
		require.NoError(t, c.Close(), "it is not closed by the calls that failed")
	}
}
