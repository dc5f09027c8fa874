// Package clock tells the time by the processor's counter, which takes half as long as asking the system. It does so only on
// Linux, if the system's own clock is that counter; elsewhere it asks package time.
package clock

import (
	"math/bits"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Now returns the time since some moment before the first call. It is the monotonic clock of package time, off by at most
// some microseconds. It may be called from any goroutine.
func Now() time.Duration {
	if s := current.Load(); s != nil {
		if n := counter() - s.count; n < s.holds {
			return s.since + s.span(n)
		}
	}
	return compare()
}

var (
	current atomic.Pointer[scale] // nil if package time is asked
	begin   = time.Now()

	comparing sync.Mutex // its holder may write the fields below, and current
	anchor    reading    // the latest comparison
	state     trust
)

// trust says whether the counter can be used.
type trust uint8

const (
	unknown trust = iota
	trusted       // it is the system's own clock
	refused       // it is not, or it has disagreed with the system
)

// scale turns counts into time: a straight line from one comparison with the system's clock to the next.
type scale struct {
	count    uint64        // where the line begins
	since    time.Duration // what Now returns there
	perCount uint64        // nanoseconds, times 1<<32
	holds    uint64        // counts, until the next comparison
}

// span returns how long a number of counts takes.
func (s *scale) span(n uint64) time.Duration {
	hi, lo := bits.Mul64(n, s.perCount)
	return time.Duration(hi<<32 | lo>>32)
}

// reading is one moment on both clocks.
type reading struct {
	count uint64
	time  time.Duration
}

const (
	period    = time.Second           // how long a scale holds
	first     = 50 * time.Millisecond // how long the first scale is awaited
	slowest   = 1 << 42               // largest scale.perCount: a counter with one count a microsecond
	tolerance = 1000                  // scales that differ by more than one part in this belong to different counters
)

// compare asks the system, and makes a new scale if it is time for one.
func compare() time.Duration {
	if !comparing.TryLock() {
		return time.Since(begin)
	}
	defer comparing.Unlock()
	if state == unknown {
		state = examine()
	}
	if state == refused || inBubble() {
		return time.Since(begin)
	}
	now, old := read(), current.Load()
	switch {
	case anchor == reading{}:
		anchor = now
	case old == nil && now.time-anchor.time >= first, old != nil && now.count-old.count >= old.holds:
		next := old.next(anchor, now)
		if next == nil {
			state = refused
		}
		current.Store(next)
		anchor = now
	}
	return now.time
}

// next returns the scale from now on, or nil if the counter cannot be trusted: it stood still, or ran at another speed. What
// was returned already is never undone: if the old scale was ahead of the system, the next one is slower until both agree.
func (s *scale) next(before, now reading) *scale {
	counts, took := now.count-before.count, now.time-before.time
	if took <= 0 || counts <= uint64(took)>>32 {
		return nil
	}
	perCount, _ := bits.Div64(uint64(took)>>32, uint64(took)<<32, counts)
	if perCount == 0 || perCount > slowest {
		return nil
	}
	n := &scale{count: now.count, since: now.time, perCount: perCount, holds: uint64(period) << 32 / perCount}
	if s == nil {
		return n
	}
	if diff := int64(perCount - s.perCount); max(diff, -diff) > int64(s.perCount/tolerance) {
		return nil
	}
	if ahead := s.since + s.span(s.holds) - n.since; ahead > 0 {
		n.since += ahead
		n.perCount -= n.perCount * uint64(min(ahead, period/tolerance)) / uint64(period)
	}
	return n
}

// read reads both clocks at nearly one moment: the closest of several tries, as the system may run something else meanwhile.
func read() (closest reading) {
	least := ^uint64(0)
	for range 5 {
		before := counter()
		now := time.Since(begin)
		if took := counter() - before; took < least {
			least, closest = took, reading{before + took/2, now}
		}
	}
	return closest
}

// inBubble reports whether package time tells the goroutine a time of testing/synctest's: it has no monotonic reading.
func inBubble() bool {
	now := time.Now()
	return now == now.Round(0)
}

// examine asks Linux whether its own clock is the counter: then the counter runs at one speed, and alike on all processors.
func examine() trust {
	name, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err != nil || source == "" || strings.TrimSpace(string(name)) != source {
		return refused
	}
	return trusted
}
