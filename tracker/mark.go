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
	// segments, or without a cache the allocated bytes.
	Reserved alloc.Bytes `json:"reserved_bytes"`
	// Registered is the part of Allocated that other code allocated. With Reserved it
	// is "Total Allocated Memory".
	Registered alloc.Bytes `json:"registered_bytes"`
	// DriverUsed is what the driver says is in use, by all processes; it and
	// DriverTotal are -1 if the driver did not say.
	DriverUsed  alloc.Bytes `json:"driver_used_bytes"`
	DriverTotal alloc.Bytes `json:"driver_total_bytes"`
}

// Untracked returns the device memory in use that the ledger does not explain:
// the driver's context, libraries, other processes. It is -1, unknown, if the driver did
// not say, or says less than the ledger has: of managed memory a driver counts only the pages on
// the device, and some drivers count nothing.
func (l Levels) Untracked() alloc.Bytes {
	if l.DriverUsed < 0 {
		return -1
	}
	return max(-1, l.DriverUsed-l.Reserved-l.Registered)
}

// contradict reports whether the driver has less in use than the tracker holds.
func (l Levels) contradict() bool { return 0 <= l.DriverUsed && l.DriverUsed < l.Reserved }

// Track makes a mark: it compares the live buffers with those at the mark before,
// appends the difference to the report, and returns it when that is written. A report that
// could not be written does not stop the program: see Err.
//
// Its cost follows the groups that changed since the last mark, not the live
// buffers.
func (t *MemTracker) Track() *Mark { return t.track(t.stacks.table.Capture(1)) }

func (t *MemTracker) track(caller callstack.ID) *Mark {
	m, queued, open := t.mark(caller)
	if !open {
		t.usedAfterClose("Track")
	}
	t.report.settle(queued)
	return m
}

// mark makes a mark and puts its block in the queue for the report's writer. Of a
// tracker that is closed it has only the levels.
func (t *MemTracker) mark(caller callstack.ID) (m *Mark, queued *block, open bool) {
	now, levels := t.now(), t.levels() // the clock and the device are not ours: no lock is held
	t.marking.Lock()
	defer t.marking.Unlock()

	m = &Mark{Seq: t.marks + 1}
	if stack := t.stacks.resolve(caller); len(stack) > 0 {
		m.Site = stack[0]
	}
	t.mu.Lock()
	now = t.history.moment(now)
	t.ledgerLevels(&levels)
	m.Time, m.Levels = t.start.Add(now), levels
	if t.closed.Load() {
		t.mu.Unlock()
		return m, nil, false
	}
	t.changes = t.ledger.cut(t.changes[:0])
	t.history.add(event{since: now, action: Marked, stack: caller, allocated: alloc.Bytes(m.Seq)})
	t.mu.Unlock()

	t.marks = m.Seq
	b := newDeltaBuilder(len(t.changes))
	for _, c := range t.changes {
		g, site := c.group, t.stacks.frame(c.line)
		b.add(g.kind, g.dtype, g.shape, site, g.tally(c.count))
		t.growth.note(site, g.tally(c.count))
	}
	t.growth.mark(m.Seq, now)
	clear(t.changes)
	m.Delta = b.delta()
	t.recent.add(m)
	return m, t.report.add(m), true
}

// levels are those of now. The device is asked first, with no lock held: if what
// it says contradicts the ledger, it may be out of date, and is asked again.
func (t *MemTracker) levels() Levels {
	for again := true; ; again = false {
		levels := t.deviceLevels()
		t.mu.Lock()
		t.ledgerLevels(&levels)
		t.mu.Unlock()
		if !again || !levels.contradict() {
			return levels
		}
	}
}

// deviceLevels asks the device; it takes no lock of the tracker's.
func (t *MemTracker) deviceLevels() Levels {
	levels := Levels{Reserved: -1, DriverUsed: -1, DriverTotal: -1}
	if info, err := t.device.MemInfo(); err == nil && info.Total > 0 {
		levels.DriverTotal = info.Total
		if 0 <= info.Free && info.Free <= info.Total {
			levels.DriverUsed = info.Used()
		}
	}
	return levels
}

// ledgerLevels fills in what the ledger knows; the caller holds t.mu.
func (t *MemTracker) ledgerLevels(levels *Levels) {
	levels.Live = t.ledger.current
	levels.Allocated = t.ledger.allocated
	levels.Registered = t.ledger.registered
	levels.Reserved = levels.Allocated - levels.Registered
	if t.cache != nil {
		levels.Reserved = t.cache.Locked().Stats().Reserved.Bytes.Current
	}
}
