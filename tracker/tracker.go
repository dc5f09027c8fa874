package tracker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/ability"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// New returns a tracker over cfg.Device and starts its report. The error says that the device
// could not be opened, or that the report could not be written.
func New(cfg Config) (*MemTracker, error) {
	device, opened := cfg.Device, (*openedDevice)(nil)
	if device == nil {
		var because, err error
		if device, because, err = openDevice(); err != nil {
			return nil, fmt.Errorf("new tracker: %w", err)
		}
		tellFallback(cmp.Or(cfg.Logger, slog.Default()), because)
		opened = &openedDevice{device: device}
	}
	t := &MemTracker{
		device:   device,
		opened:   opened,
		name:     text.Line(fmt.Sprintf("%s %d", device.Name(), device.Ordinal())),
		findLost: cfg.FindLost,
		freeLost: cfg.FreeLost,
		origin:   host.Origin(cfg.Origin),
		clock:    cfg.Clock,
		start:    time.Now(),
		stacks:   ledger.NewStacks(cfg.StackDepth, cfg.MaxStacks, cfg.Libraries),
		history:  ledger.NewHistory(max(0, cmp.Or(cfg.MaxEvents, defaultMaxEvents))),
		report:   report.Report{Log: cmp.Or(cfg.Logger, slog.Default())},
		recent:   recentMarks{max: max(0, cmp.Or(cfg.MaxMarks, defaultMaxMarks))},
		failing:  failing{dir: cfg.OOMDir, others: cfg.OtherProcesses},
		dumps: dumping{
			max:      cmp.Or(max(0, cfg.MaxDumps), defaultMaxDumps),
			maxBytes: cmp.Or(max(0, cfg.MaxDumpBytes), defaultMaxDumpBytes),
		},
	}
	t.ledger = ledger.NewLedger(t)
	t.startClock()
	if err := t.addCache(cfg.NoCache); err != nil {
		return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
	}
	if err := t.sections.init(cfg.Sections, t.device); err != nil {
		return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
	}
	if cfg.FindLateWrites {
		var err error
		if t.freed, err = newFreedMemory(t); err != nil {
			return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
		}
	}
	if err := t.openReport(cfg); err != nil {
		return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
	}
	t.enlist()
	return t, nil
}

// addCache puts a cache before a device that is not one.
func (t *MemTracker) addCache(none bool) (err error) {
	if own, ok := t.device.(*cache.Cache); ok {
		t.cache = own
	} else if !none {
		if t.cache, err = cache.New(t.device, cache.Config{}); err != nil {
			return err
		}
		t.device, t.owned = t.cache, true
	}
	t.sized, _ = t.device.(sizedAllocator)
	memory := ability.MemoryOf(t.device)
	t.memory.Store(uint32(memory))
	t.onHost = memory.OnHost()
	t.streamed, _ = t.device.(alloc.StreamAllocator)
	t.mu = new(spinlock.Mutex)
	if t.cache != nil {
		t.locked = t.cache.Locked()
		t.mu = t.locked.Mutex()
	}
	if t.owned {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.locked.Notify(t.segment, t.reusable)
	}
	return nil
}

// segment adds to the history what the tracker's own cache and the driver did. The caller holds the lock.
func (t *MemTracker) segment(e cachelock.Event) {
	action := mem.SegmentAllocated
	switch e.Action {
	case cachelock.SegmentAlloc, cachelock.SegmentMap:
	case cachelock.SegmentFree, cachelock.SegmentUnmap:
		action = mem.SegmentFreed
	case cachelock.Retry:
		action = mem.Retried
	default: // a request that failed: see outOfMemory
		return
	}
	if t.freed != nil && action == mem.SegmentFreed {
		t.freed.gone = append(t.freed.gone, piece{ptr: e.Ptr, size: e.Size})
	}
	t.happened(action, e.Ptr, e.Size, e.Stream)
}

// reusable adds to the history that nothing uses a freed block any more. The caller holds the lock.
func (t *MemTracker) reusable(p alloc.Ptr, n alloc.Bytes, s alloc.Stream) {
	t.happened(mem.FreeCompleted, p, n, s)
}

// happened adds to the history what the cache did. If that is a cache of host memory it adds nothing, because
// reserved memory is the device's. The caller holds the lock.
func (t *MemTracker) happened(action mem.Action, p alloc.Ptr, n alloc.Bytes, s alloc.Stream) {
	if t.ledger.Closed || t.onHost {
		return
	}
	now := t.history.Latest
	if t.clock == nil {
		now = t.now()
	}
	t.history.Add(tables.EventEntry{Since: now, Action: action, Ptr: p, Allocated: n, Stream: t.ledger.Streams.At(s)})
}

// openReport makes the report's file, if there is to be one, and writes the
// first lines.
func (t *MemTracker) openReport(cfg Config) error {
	levels := t.levels()
	t.failing.untrackedAtStart = levels.Untracked()
	device := t.describe(levels.DriverTotal)
	if t.device.Ordinal() != 0 {
		t.report.Device = t.describe(-1)
	}
	if cfg.Dir != "" || cfg.Report == nil {
		t.report.File = &report.ReportFile{
			Dir: cmp.Or(cfg.Dir, "."), Start: t.start, Device: device,
			Max: max(report.MinReportBytes, cmp.Or(max(0, cfg.MaxReportBytes), report.DefaultMaxReportBytes)),
		}
		if err := t.report.File.Create(); err != nil {
			return fmt.Errorf("begin the memory report: %w: set Config.Dir to a directory that can be written, or Config.Report to a writer (io.Discard for no report)", err)
		}
		if cfg.Report == nil {
			t.reportPath = t.report.File.Path
		}
	}
	if cfg.Report != io.Discard {
		t.report.Writer = cfg.Report
	}
	if err := t.report.Begin(t.start, device, levels); err != nil {
		return fmt.Errorf("begin the memory report: %w", err)
	}
	return nil
}

// describe names the device: "Simulated GPU [0], 24.0 GiB".
func (t *MemTracker) describe(total alloc.Bytes) string {
	name := fmt.Sprintf("%s [%d]", t.device.Name(), t.device.Ordinal())
	if total < 0 {
		return name
	}
	return name + ", " + total.String()
}

// String names the device and says what is live: "Simulated GPU [0]: 41 buffers, 145.0 MiB live, peak 146.8 MiB".
func (t *MemTracker) String() string {
	if t.mu == nil {
		return "no tracker: New makes one"
	}
	t.mu.Lock()
	live, peak, closed := t.ledger.Current, t.ledger.Peak, t.ledger.Closed
	t.mu.Unlock()
	name := text.Line(t.describe(-1))
	if closed {
		return name + ": closed"
	}
	return fmt.Sprintf("%s: %v live, peak %v", name, live, peak.Bytes)
}

// Device returns the device that the tracker allocates from: its cache, if it has one.
func (t *MemTracker) Device() alloc.Device { return t.device }

// ClearCache gives the memory that the cache keeps for reuse back to the driver, and returns
// how much that was. It keeps live buffers, and inactive blocks that share a segment with them.
// With or without a cache, the driver is asked again for what it refused to take back after a call that
// failed. The error is alloc.ErrClosed after Close, or the driver's; the amount is valid with an error too.
func (t *MemTracker) ClearCache() (alloc.Bytes, error) {
	if t.closed.Load() {
		return 0, fmt.Errorf("clear cache: tracker: %w", alloc.ErrClosed)
	}
	if t.cache == nil {
		if device, ok := alloc.As[ability.Settler](t.device); ok {
			return 0, device.Settle()
		}
		return 0, nil
	}
	t.tick(t.now())
	return t.cache.Trim()
}

// events returns a copy of the latest events, up to one instant. It leaves out old events
// that new ones overwrite during the copy.
func (t *MemTracker) events() tables.HistoryTables {
	h := tables.HistoryTables{Start: t.start, Stacks: t.stacks}
	h.Events, h.First = t.history.Read(t.mu)
	t.mu.Lock()
	defer t.mu.Unlock()
	h.Sections, h.Streams = t.sections.paths.names, t.ledger.Streams.Handles
	return h
}

// ResetPeak makes the current level the peak.
func (t *MemTracker) ResetPeak() {
	t.mu.Lock()
	t.ledger.ResetPeak()
	t.mu.Unlock()
	if t.cache != nil {
		t.cache.ResetPeak()
	}
}

// Err returns the first error of writing the report, or nil.
func (t *MemTracker) Err() error { return t.report.Failure() }

// Close ends the report, drops the ledger and the history, and gives inactive memory back to the
// driver. Signals no longer make dumps. Live buffers remain valid and can still be freed. A
// device that New opened is closed when no buffer is live. Close returns when the report's
// writer has all of the report, unless the writer itself called Close. The error is that of
// Err, or the device's. A second Close returns alloc.ErrClosed.
func (t *MemTracker) Close() error {
	timing, last, err := t.shut(t.now())
	if err != nil {
		return err
	}
	for _, d := range timing {
		d.read()
	}
	t.sections.host.Close()
	t.dumps.stopAll()
	t.recent.close()
	t.delist()
	var late error
	if t.freed != nil {
		late = t.freed.rest()
	}
	err = t.giveBack()
	t.report.Settle(last)
	return errors.Join(t.Err(), late, err)
}

// shut is the part of Close under the locks. It returns what is left to do without
// them: device times to read, and a writer to wait for.
func (t *MemTracker) shut(now time.Duration) (timing []*deviceTime, last *report.Block, err error) {
	t.marking.Lock()
	defer t.marking.Unlock()
	t.mu.Lock()
	if t.closed.Load() {
		t.mu.Unlock()
		return nil, nil, fmt.Errorf("close tracker: %w", alloc.ErrClosed)
	}
	t.closed.Store(true)
	t.sections.gpuPeaks.raise(t.ledger.High)
	for t.sections.oldest != nil {
		t.forceSection(t.sections.oldest, now, endedClosed)
	}
	timing = t.sections.close()
	t.ledger.Close()
	t.history.Close()
	t.mu.Unlock()
	return timing, t.report.End(), nil
}
