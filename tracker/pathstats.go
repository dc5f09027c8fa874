package tracker

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// pathStats is what the ended sections of one path came to together.
type pathStats struct {
	calls         int64
	stack         callstack.ID // who opened the last
	time          time.Duration
	deviceTime    time.Duration
	timed         int64 // calls with a device time
	allocated     Tally
	freed         Tally
	peak, ownPeak alloc.Bytes // the highest of all
	rss, heap     alloc.Bytes // consumed
	live          Tally       // buffers allocated in the path itself, alive now
	layer         *Layer      // as the last call described it
}

func (p *pathStats) add(s *Section) {
	d := s.data
	p.calls++
	p.stack = s.stack
	p.time += d.Time
	p.allocated = p.allocated.Add(d.Allocated)
	p.freed = p.freed.Add(d.Freed)
	p.peak = max(p.peak, d.GPU.Peak)
	p.ownPeak = max(p.ownPeak, d.OwnPeak)
	p.rss += d.RSS.Consumed()
	p.heap += d.Heap.Consumed()
	if s.layer != nil {
		p.layer = s.layer
	}
}

func (p *pathStats) addDeviceTime(d time.Duration) {
	if d >= 0 {
		p.deviceTime += d
		p.timed++
	}
}
