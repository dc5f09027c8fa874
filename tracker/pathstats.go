package tracker

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/saturate"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// pathStats is what the ended sections of one path came to together.
type pathStats struct {
	calls         int64
	stack         snapshot.StackID // who opened the last
	time          time.Duration
	deviceTime    time.Duration
	cpuTime       time.Duration
	timed         int64 // calls with a device time
	allocated     snapshot.Tally
	freed         snapshot.Tally
	peak, ownPeak alloc.Bytes    // the highest of all
	rss, heap     alloc.Bytes    // consumed
	live          snapshot.Tally // buffers allocated in the path itself, alive now
	layer         *Layer         // as the last call described it
}

// add counts a section that has ended. The sums stop at the bounds of 64 bits.
func (p *pathStats) add(s *section) {
	m := &s.final
	p.calls++
	p.stack = s.stack
	p.time = saturate.Add(p.time, m.to.at-s.from.at)
	if s.from.cpu >= 0 && m.to.cpu >= 0 {
		p.cpuTime = saturate.Add(p.cpuTime, max(0, m.to.cpu-s.from.cpu))
	}
	p.allocated = p.allocated.Add(m.own.allocated)
	p.freed = p.freed.Add(m.own.freed)
	p.peak = max(p.peak, m.peak.gpu)
	p.ownPeak = max(p.ownPeak, m.own.peak)
	p.rss = saturate.Add(p.rss, consumed(s.from.host.resident, m.to.host.resident))
	p.heap = saturate.Add(p.heap, consumed(s.from.host.heap, m.to.host.heap))
	if s.layer != nil {
		p.layer = s.layer
	}
}

func consumed(before, used alloc.Bytes) alloc.Bytes {
	return snapshot.MemoryUse{Before: before, Used: used}.Consumed()
}

func (p *pathStats) addDeviceTime(d time.Duration) {
	if d >= 0 {
		p.deviceTime = saturate.Add(p.deviceTime, d)
		p.timed++
	}
}
