package tracker

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// Mark is what one Track found: the levels of that moment, and what changed
// since the mark before.
type Mark struct {
	Seq   int       `json:"seq"` // 1 for the tracker's first
	Time  time.Time `json:"time"`
	Site  Frame     `json:"site"` // who called Track
	Delta Delta     `json:"delta"`
	Levels
}

// Levels are the amounts of memory at an instant, in the words of package alloc.
type Levels struct {
	// Live is the live buffers by what was requested: "Total Tensor Used Memory".
	Live Tally `json:"live"`
	// Allocated is the same after rounding.
	Allocated alloc.Bytes `json:"allocated_bytes"`
	// Reserved is what the tracker's device holds from the driver: the cache's
	// segments, or without a cache the allocated bytes. "Total Allocated Memory".
	Reserved alloc.Bytes `json:"reserved_bytes"`
	// Registered is the part of Allocated that other code allocated.
	Registered alloc.Bytes `json:"registered_bytes"`
	// DriverUsed is what the driver says is in use, by all processes; it and
	// DriverTotal are -1 if the driver did not say.
	DriverUsed  alloc.Bytes `json:"driver_used_bytes"`
	DriverTotal alloc.Bytes `json:"driver_total_bytes"`
}

// Untracked returns the device memory in use that the ledger does not explain:
// the driver's context, libraries, other processes. It is -1 if the driver did not say,
// or counts less than is registered: of managed memory it counts only the pages on the device.
func (l Levels) Untracked() alloc.Bytes {
	rest := l.DriverUsed - l.Reserved - l.Registered
	if l.DriverUsed < 0 || rest < 0 && l.Registered > 0 {
		return -1
	}
	return max(0, rest) // the levels are not all of one instant
}

// Track makes a mark: it compares the live buffers with those at the mark before,
// appends the difference to the report, and returns it. A report that could not be written
// does not stop the program: see Err.
//
// Its cost follows the groups that changed since the last mark, not the live
// buffers.
func (t *MemTracker) Track() *Mark { return t.track(t.stacks.table.Capture(1)) }

func (t *MemTracker) track(caller callstack.ID) *Mark {
	t.marking.Lock()
	defer t.marking.Unlock()

	m := &Mark{Seq: t.marks + 1}
	if stack := t.stacks.resolve(caller); len(stack) > 0 {
		m.Site = stack[0]
	}
	levels := t.deviceLevels()

	now := t.now()
	t.mu.Lock()
	if t.closed.Load() {
		t.mu.Unlock()
		m.Time, m.Levels = t.start.Add(now), levels
		return m
	}
	t.changes = t.ledger.cut(t.changes[:0])
	t.ledgerLevels(&levels)
	t.history.add(event{since: now, action: Marked, stack: caller, allocated: alloc.Bytes(m.Seq)})
	t.mu.Unlock()

	t.marks = m.Seq
	m.Time, m.Levels = t.start.Add(now), levels
	b := newDeltaBuilder(len(t.changes))
	for _, c := range t.changes {
		g, site := c.group, t.stacks.frame(c.line)
		b.add(g.kind, g.dtype, g.shape, site, g.tally(c.count))
		t.growth.note(site, g.tally(c.count))
	}
	t.growth.mark(m.Seq)
	clear(t.changes)
	m.Delta = b.delta()
	t.report.write(m)
	t.recent.add(m)
	return m
}

// levels are those of now.
func (t *MemTracker) levels() Levels {
	levels := t.deviceLevels()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ledgerLevels(&levels)
	return levels
}

// deviceLevels asks the device; it takes no lock of the tracker's.
func (t *MemTracker) deviceLevels() Levels {
	levels := Levels{Reserved: -1, DriverUsed: -1, DriverTotal: -1}
	if t.cache != nil {
		levels.Reserved = t.cache.Stats().Reserved.Bytes.Current
	}
	if info, err := t.device.MemInfo(); err == nil {
		levels.DriverUsed, levels.DriverTotal = info.Used(), info.Total
	}
	return levels
}

// ledgerLevels fills in what the ledger knows; the caller holds t.mu.
func (t *MemTracker) ledgerLevels(levels *Levels) {
	levels.Live = t.ledger.current
	levels.Allocated = t.ledger.allocated
	levels.Registered = t.ledger.registered
	// The device was asked a moment before: it holds at least what is allocated now.
	levels.Reserved = max(levels.Reserved, t.ledger.allocated-t.ledger.registered)
	if levels.DriverUsed >= 0 {
		levels.DriverUsed = max(levels.DriverUsed, levels.Reserved)
	}
}
