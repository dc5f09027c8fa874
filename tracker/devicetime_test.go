package tracker_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// slow is a device whose intervals take a second each by its clock, and whose first
// answer is long in coming.
type slow struct {
	cachetest.Device
	asked  chan struct{} // closed when it is asked first
	answer chan struct{} // closed to let it answer
	first  atomic.Bool
}

func (d *slow) StartInterval() (capability.Interval, error) { return slowInterval{d}, nil }

type slowInterval struct{ device *slow }

func (slowInterval) Stop() error { return nil }

func (i slowInterval) Elapsed() (time.Duration, error) {
	if i.device.first.CompareAndSwap(false, true) {
		close(i.device.asked)
		<-i.device.answer
	}
	return time.Second, nil
}

// TestProfileBesideTheReadingOfTimes has an End wait for the device's times of the
// sections before it, while a Profile is made: it has those times, too.
func TestProfileBesideTheReadingOfTimes(t *testing.T) {
	dev := &slow{Device: device(t, sim.Config{}), asked: make(chan struct{}), answer: make(chan struct{})}
	tr, _ := open(t, tracker.Config{Device: dev, Sections: tracker.SectionConfig{Host: "none"}})
	const calls = 257 // one more than may wait to be read
	var group sync.WaitGroup
	group.Go(func() {
		for range calls {
			tr.Do("s", func() {})
		}
	})
	<-dev.asked // by the last End
	made := make(chan sections.Profile, 1)
	go func() { made <- tr.Profile() }()
	time.Sleep(50 * time.Millisecond) // the Profile should wait: only if it does not, this matters
	close(dev.answer)
	rows := (<-made)
	group.Wait()
	require.Len(t, rows, 1)
	assert.Equal(t, int64(calls), rows[0].Calls)
	assert.Equal(t, calls*time.Second, rows[0].DeviceTime)
}
