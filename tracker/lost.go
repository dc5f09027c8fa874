package tracker

import "runtime"

// LostPolicy says what becomes of a Buffer that the program can no longer reach
// though its memory was never freed, as the Go collector finds: a leak for certain,
// since nobody can free it any more.
type LostPolicy uint8

// The policies. To look for lost buffers costs a second Go allocation and a
// cleanup for each Buffer: an Alloc and its Free take two to three times as long
// (BenchmarkAllocFreeFindLost).
const (
	// IgnoreLost does not look for lost buffers.
	IgnoreLost LostPolicy = iota
	// ReportLost marks them in Snapshots and Leaks, tells the history, and has the
	// Logger tell of the first.
	ReportLost
	// FreeLost does what ReportLost does, and then frees the memory. A
	// program must keep a Buffer reachable (runtime.KeepAlive) for as long as
	// the device works on the address that Ptr gave.
	FreeLost
)

// watch has the collector tell when b is gone.
func (t *MemTracker) watch(b *Buffer) {
	if t.lost != IgnoreLost {
		runtime.AddCleanup(b, (*Buffer).lose, &Buffer{t, b.group, b.ptr, b.allocated, b.seq, b.record, b.stack})
	}
}

// lose is called with a copy of a Buffer that nobody can reach any more. Most
// were freed.
func (b *Buffer) lose() {
	t := b.tracker
	now := t.now()
	t.mu.Lock()
	r := b.live()
	if r == nil || t.ledger.closed && t.lost != FreeLost {
		t.mu.Unlock()
		return
	}
	t.ledger.records.Touch(b.record)
	r.lost = true
	t.everLost++
	first := t.everLost == 1
	if !t.ledger.closed {
		t.note(r, t.history.moment(now), Lost)
	}
	t.mu.Unlock()
	if first {
		t.report.log.Warn("gpumemtrack: a buffer was never freed and nothing refers to it any more; see Leaks",
			"buffer", b.String(), "site", t.stacks.site(b.stack).String())
	}
	if t.lost != FreeLost {
		return
	}
	if err := b.free(); err != nil {
		t.report.log.Warn("gpumemtrack: a lost buffer could not be freed", "err", err)
	}
}
