package tracker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/dumps"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/host"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/report"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// New returns a tracker over cfg.Device and starts its report. The error says that a setting is not valid, that the
// device could not be opened, or that the report could not be written. Unfinished dumps that killed programs left in
// Config.OOMDir and beside the report's file are deleted.
func New(cfg Config) (*MemTracker, error) {
	if cfg.StackDepth < 0 || cfg.StackDepth > callstack.MaxDepth {
		return nil, fmt.Errorf("new tracker: Config.StackDepth is %d: want 1 to %d frames, or 0 for %d", cfg.StackDepth, callstack.MaxDepth, callstack.DefaultDepth)
	}
	device, opened := cfg.Device, (*openedDevice)(nil)
	if device == nil {
		var because, err error
		if device, because, err = openDevice(); err != nil {
			return nil, fmt.Errorf("new tracker: %w", err)
		}
		logFallback(cmp.Or(cfg.Logger, slog.Default()), because)
		opened = &openedDevice{device: device}
	}
	t := &MemTracker{
		device:          device,
		opened:          opened,
		name:            text.Line(fmt.Sprintf("%s %d", device.Name(), device.Ordinal())),
		findUnreachable: cfg.FindUnreachable,
		freeUnreachable: cfg.FreeUnreachable,
		origin:          host.Origin(cfg.Origin),
		clock:           newClock(cfg.Clock),
		stacks:          ledger.NewStacks(cfg.StackDepth, cfg.MaxStacks, cfg.Libraries),
		history:         ledger.NewHistory(max(0, cmp.Or(cfg.MaxEvents, defaultMaxEvents))),
		report:          report.Report{Log: cmp.Or(cfg.Logger, slog.Default())},
		marks:           marks{recent: recentMarks{max: max(0, cmp.Or(cfg.MaxMarks, defaultMaxMarks))}},
		oom:             failures{dir: cfg.OOMDir, others: cfg.OtherProcesses},
		dumps: dumpFiles{
			max:      cmp.Or(max(0, cfg.MaxDumps), defaultMaxDumps),
			maxBytes: cmp.Or(max(0, cfg.MaxDumpBytes), defaultMaxDumpBytes),
		},
	}
	t.start, t.sections.t = t.clock.start, t
	t.ledger = ledger.NewLedger(t)
	if err := t.addCache(cfg.NoCache); err != nil {
		return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
	}
	if err := t.sections.init(cfg.Sections, t.device); err != nil {
		return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
	}
	if cfg.FindLateWrites {
		var err error
		if t.lateWrites, err = newLateWriteDetector(t); err != nil {
			return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
		}
	}
	if err := t.openReport(cfg); err != nil {
		return nil, fmt.Errorf("new tracker: %w", errors.Join(err, opened.close()))
	}
	if t.oom.dir != "" {
		dumps.DeleteAbandoned(t.oom.dir)
	}
	openTrackers.add(t)
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
	memory := capability.MemoryOf(t.device)
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
		t.locked.Notify(t.onCacheEvent, t.onReusable)
	}
	return nil
}

// openReport makes the report's file, if there is to be one, and writes the
// first lines.
func (t *MemTracker) openReport(cfg Config) error {
	levels := currentLevels(t)
	t.oom.untrackedAtStart = levels.Untracked()
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
		dumps.DeleteAbandoned(t.report.File.Dir)
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

// Track makes a mark: it compares the live buffers with those at the previous mark, appends
// the difference to the report, and returns it when the report is written. An error of writing
// the report does not stop the program: see Err.
//
// Its cost depends on the groups that changed since the previous mark, not on the live
// buffers.
func (t *MemTracker) Track() *snapshot.Mark {
	return track(t, tables.StackID(t.stacks.Table.Capture(1)))
}

// WaitMark returns the oldest kept mark whose Seq is above after, and waits for one if there
// is none. It never delays a Track: a caller that is too slow misses marks, which it can see
// from Seq. The error is the context's, or alloc.ErrClosed when the tracker is closed.
func (t *MemTracker) WaitMark(ctx context.Context, after int) (*snapshot.Mark, error) {
	for {
		m, added, err := t.marks.recent.after(after)
		if m != nil || err != nil {
			return m, err
		}
		select {
		case <-added:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a mark: %w", ctx.Err())
		}
	}
}

// Snapshot copies the ledger and the cache's segments as of one instant. It copies some
// hundred buffers at a time, and allocations continue in between: the wait of an Alloc or Free
// does not depend on the number of live buffers.
func (t *MemTracker) Snapshot() *snapshot.Snapshot { return takeSnapshot(t, true) }

// LightSnapshot returns a Snapshot without single allocations and without the cache's segments:
// groups, call sites and levels only. Its cost depends on the number of call sites, not of buffers.
func (t *MemTracker) LightSnapshot() *snapshot.Snapshot { return takeSnapshot(t, false) }

// Dump returns everything that the tracker knows: a Snapshot, the history up to it, the
// latest marks, at most Config.MaxMarks, and the Profile of ended sections. It does not wait for the device. The marks are shared: do not write to them. Its WriteJSON
// writes it as snapshot.ReadDump reads it, and the packages below tracker/export write other formats.
func (t *MemTracker) Dump() *snapshot.Dump {
	return dumpWithin(t, math.MaxInt64)
}

// DumpFile writes a Dump to a new file in the directory, which is created if it is missing,
// and returns the file's path. The file appears only when it is complete.
//
// The directory keeps at most Config.MaxDumps files of this process; the oldest are deleted.
// Files of other processes are kept, except unfinished files of programs that were killed. A
// file's name has the time, the host, the process number and a counter.
//
// A file takes at most Config.MaxDumpBytes. A dump that would be larger loses detail until it
// fits: first the older events and marks, then the cache's segments, the single allocations,
// most of the other events, and the call sites that hold least. Dump.LeftOut lists what is
// missing.
//
// The error says that the tracker is closed (alloc.ErrClosed) or that the file cannot be
// written; no file is left then.
func (t *MemTracker) DumpFile(dir, reason string) (path string, err error) {
	d, err := newDump(t, reason)
	if err != nil {
		return "", err
	}
	return t.dumps.write(dir, d)
}

// Section begins a section. It is part of the calling goroutine's innermost open section, if
// there is one. The name may contain slashes: "features/conv1". At most about 16,000 different
// paths are kept; later ones are counted as "other".
//
// After Close a section measures nothing, its data says so, and Config.Logger gets one line.
func (t *MemTracker) Section(name string) *Section {
	return t.sections.start(tables.StackID(t.stacks.Table.Capture(1)), nil, name)
}

// Do runs f in a section of that name, and returns the section, which has ended.
func (t *MemTracker) Do(name string, f func()) *Section {
	return t.sections.start(tables.StackID(t.stacks.Table.Capture(1)), nil, name).run(f)
}

// SectionContext begins a section and returns a copy of ctx that carries it. The section is
// part of the section of this tracker that ctx carries, in any goroutine. If ctx carries none,
// it is part of the calling goroutine's innermost open section, as with Section. Like any
// section it must be ended:
//
//	ctx, step := tr.SectionContext(ctx, "step")
//	defer step.End()
//	go func() {
//		_, load := tr.SectionContext(ctx, "load") // "step/load"
//		defer load.End()
//		...
//	}()
//
// Only SectionContext reads a context. Allocations that a goroutine makes before it begins a
// section, and sections that it begins without the context, are not part of the section that
// the context carries. Cancelling ctx does not end the section.
func (t *MemTracker) SectionContext(ctx context.Context, name string) (context.Context, *Section) {
	return t.sections.startInContext(ctx, tables.StackID(t.stacks.Table.Capture(1)), name)
}

// Profile returns the sections that have ended, added up by path and sorted as a tree. It waits
// until the device has done their work.
func (t *MemTracker) Profile() sections.Profile {
	if t.closed.Load() {
		warnClosed(t, "Profile")
	}
	t.sections.readDeviceTimes(0)
	return t.sections.profile()
}

// Leaks returns the live buffers by call stack, kind, shape, dtype and section: unreachable buffers
// first, then by size. It costs as much as a Snapshot.
func (t *MemTracker) Leaks(opts ...leaks.Option) []leaks.Leak {
	return leaks.Live(t.Snapshot(), opts...)
}

// Suspects returns the lines of code with live buffers that look forgotten, largest first: see
// leaks.Suspects. It needs no marks, and costs as much as a Snapshot.
func (t *MemTracker) Suspects(opts ...leaks.Option) []leaks.Suspect {
	return leaks.Suspects(t.Snapshot(), opts...)
}

// LateWrites returns the first late writes found, up to sixteen: see Config.FindLateWrites. Each error says how
// many bytes were written to, where, and which lines allocated the memory, freed it and were given it next.
func (t *MemTracker) LateWrites() []error {
	if t.lateWrites == nil {
		return nil
	}
	return t.lateWrites.all()
}

// ClearCache gives the memory that the cache keeps for reuse back to the driver, and returns
// how much that was. It keeps live buffers, and inactive blocks that share a segment with them.
// With or without a cache, the driver is asked again for what it refused to take back after a call that
// failed. The error is alloc.ErrClosed after Close, or the driver's; the amount is valid with an error too.
func (t *MemTracker) ClearCache() (alloc.Bytes, error) {
	if t.closed.Load() {
		return 0, fmt.Errorf("clear cache: tracker: %w", alloc.ErrClosed)
	}
	if t.cache == nil {
		if device, ok := alloc.As[capability.Reconciler](t.device); ok {
			return 0, device.Reconcile()
		}
		return 0, nil
	}
	now := t.clock.now()
	t.mu.Lock()
	t.history.Advance(now) // events of the cache have this time: see addCacheEvent
	t.mu.Unlock()
	return t.cache.Trim()
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

// Device returns the device that the tracker allocates from: its cache, if it has one.
func (t *MemTracker) Device() alloc.Device { return t.device }

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

// Err returns the first error of writing the report, or nil.
func (t *MemTracker) Err() error { return t.report.Failure() }

// Close ends the report, drops the ledger and the history, and gives inactive memory back to the
// driver. Signals no longer make dumps. Live buffers remain valid and can still be freed. A
// device that New opened is closed when no buffer is live. Close returns when the report's
// writer has all of the report, unless the writer itself called Close. The error is that of
// Err, or the device's. A second Close returns alloc.ErrClosed.
func (t *MemTracker) Close() error {
	timing, last, err := t.shut(t.clock.now())
	if err != nil {
		return err
	}
	for _, d := range timing {
		d.read()
	}
	t.sections.host.Close()
	t.dumps.stopAll()
	t.marks.recent.close()
	openTrackers.remove(t)
	var late error
	if t.lateWrites != nil {
		late = t.lateWrites.checkRest()
	}
	err = releaseMemory(t)
	t.report.Deliver(last)
	return errors.Join(t.Err(), late, err)
}

// shut is the part of Close under the locks. It returns what is left to do without
// them: device times to read, and a writer to wait for.
func (t *MemTracker) shut(now time.Duration) (timing []*deviceTime, last *report.Block, err error) {
	t.marks.mu.Lock()
	defer t.marks.mu.Unlock()
	t.mu.Lock()
	if t.closed.Load() {
		t.mu.Unlock()
		return nil, nil, fmt.Errorf("close tracker: %w", alloc.ErrClosed)
	}
	t.closed.Store(true)
	t.sections.gpuPeaks.raise(t.ledger.High)
	for t.sections.oldest != nil {
		t.sections.force(t.sections.oldest, now, endedClosed)
	}
	timing = t.sections.close()
	t.ledger.Close()
	t.history.Close()
	t.mu.Unlock()
	return timing, t.report.End(), nil
}

// onCacheEvent adds to the history what the tracker's own cache and the driver did. The caller holds the lock.
func (t *MemTracker) onCacheEvent(e cachelock.Event) {
	action := mem.SegmentAllocated
	switch e.Action {
	case cachelock.SegmentAlloc, cachelock.SegmentMap:
	case cachelock.SegmentFree, cachelock.SegmentUnmap:
		action = mem.SegmentFreed
	case cachelock.Retry:
		action = mem.Retried
	default: // a request that failed: see newOutOfMemory
		return
	}
	if t.lateWrites != nil && action == mem.SegmentFreed {
		t.lateWrites.released = append(t.lateWrites.released, piece{ptr: e.Ptr, size: e.Size})
	}
	t.addCacheEvent(action, e.Ptr, e.Size, e.Stream)
}

// onReusable adds to the history that no stream uses a freed block any more. The caller holds the lock.
func (t *MemTracker) onReusable(p alloc.Ptr, n alloc.Bytes, s alloc.Stream) {
	t.addCacheEvent(mem.FreeCompleted, p, n, s)
}

// addCacheEvent adds an event of the cache to the history. If that is a cache of host memory it adds nothing, because
// reserved memory is the device's. The caller holds the lock.
func (t *MemTracker) addCacheEvent(action mem.Action, p alloc.Ptr, n alloc.Bytes, s alloc.Stream) {
	if t.ledger.Closed || t.onHost {
		return
	}
	now := t.history.Latest
	if t.clock.ask == nil {
		now = t.clock.now()
	}
	t.history.Add(tables.EventEntry{Since: now, Action: action, Ptr: p, Allocated: n, Stream: t.ledger.Streams.At(s)})
}
