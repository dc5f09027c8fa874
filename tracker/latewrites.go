package tracker

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// lateWriteDetector finds writes to memory after its Free. It fills the memory of a buffer that is being freed with a pattern.
// When the memory is handed out again, and all streams have done what they had queued, the
// pattern must still be there.
type lateWriteDetector struct {
	t      *MemTracker
	filler capability.Filler
	copier alloc.Copier
	waiter capability.Synchronizer
	events capability.EventDevice // nil if the device has none
	logged sync.Once              // that the device refuses

	mu      sync.Mutex // no device is asked while this lock is held
	pieces  []piece    // by address; they do not overlap
	freeing map[uint64]bool
	streams map[uint64][]alloc.Stream // named by RecordStream, by the live buffer's number
	found   []error

	released []piece // segments that the driver has back; the tracker's lock guards it
}

// piece is memory that holds the pattern.
type piece struct {
	ptr              alloc.Ptr
	size             alloc.Bytes
	allocated, freed tables.StackID
}

func (p piece) end() alloc.Ptr { return p.ptr + alloc.Ptr(p.size) }

const (
	latePattern = 0xFD
	lateChunk   = 1 << 20 // bytes that are compared at once
)

// newLateWriteDetector returns an error if the tracker's device cannot do what the check needs.
func newLateWriteDetector(t *MemTracker) (*lateWriteDetector, error) {
	f := &lateWriteDetector{t: t, freeing: make(map[uint64]bool), streams: make(map[uint64][]alloc.Stream)}
	var fills, copies, waits bool
	f.filler, fills = alloc.As[capability.Filler](t.device)
	f.copier, copies = alloc.As[alloc.Copier](t.device)
	f.waiter, waits = alloc.As[capability.Synchronizer](t.device)
	f.events, _ = alloc.As[capability.EventDevice](t.device)
	if !t.owned || !fills || !copies || !waits {
		return nil, fmt.Errorf("find late writes on %s: it needs a cache of the tracker's own over a device that can fill and copy its memory and wait: %w", t.name, errors.ErrUnsupported)
	}
	return f, nil
}

// recordStream notes that a stream uses the live buffer of that number.
func (f *lateWriteDetector) recordStream(seq uint64, s alloc.Stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if named := f.streams[seq]; !slices.Contains(named, s) {
		f.streams[seq] = append(named, s)
	}
}

// begin reports whether no other call is freeing the buffer, and returns the streams that use it.
func (f *lateWriteDetector) begin(seq uint64, on *alloc.Stream) (streams []alloc.Stream, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.freeing[seq] {
		return nil, false
	}
	f.freeing[seq] = true
	streams = f.streams[seq]
	delete(f.streams, seq)
	if on != nil {
		streams = append(streams, *on)
	}
	return streams, true
}

// end ends what begin began.
func (f *lateWriteDetector) end(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.freeing, seq)
}

// fill writes the pattern when the streams that the program named have done their work.
func (f *lateWriteDetector) fill(p piece, own alloc.Stream, others []alloc.Stream) bool {
	for _, s := range others {
		if s == own || f.events == nil {
			continue
		}
		e, err := f.events.RecordEvent(s)
		if err == nil {
			err = e.Wait()
		}
		if f.failed(err) {
			return false
		}
	}
	return !f.failed(f.filler.Fill(p.ptr, p.size, latePattern, own))
}

// failed reports whether there is an error. The first one is logged, because late writes may be missed from
// then on.
func (f *lateWriteDetector) failed(err error) bool {
	if err != nil {
		f.logged.Do(func() {
			f.t.report.Log.Warn("gpumemtrack: late writes may be missed: the device refuses", "err", err)
		})
	}
	return err != nil
}

func (f *lateWriteDetector) add(p piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropReleased()
	i, _ := f.search(p.ptr)
	f.pieces = slices.Insert(f.pieces, i, p)
}

func (f *lateWriteDetector) search(p alloc.Ptr) (int, bool) {
	return slices.BinarySearchFunc(f.pieces, p, func(x piece, p alloc.Ptr) int { return cmp.Compare(x.ptr, p) })
}

// take removes the pieces in a range of addresses, and returns them.
func (f *lateWriteDetector) take(p alloc.Ptr, n alloc.Bytes) []piece {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropReleased()
	return f.remove(p, n)
}

// dropReleased drops the pieces that the driver has back. The caller holds mu.
func (f *lateWriteDetector) dropReleased() {
	f.t.mu.Lock()
	released := f.released
	f.released = nil
	f.t.mu.Unlock()
	for _, p := range released {
		f.remove(p.ptr, p.size)
	}
}

// remove is take for a caller that holds mu. What is left of a piece on either side of the range stays.
func (f *lateWriteDetector) remove(p alloc.Ptr, n alloc.Bytes) (inside []piece) {
	from, _ := f.search(p)
	if from > 0 && f.pieces[from-1].end() > p {
		from--
	}
	to, end := from, p+alloc.Ptr(n)
	var rest []piece
	for ; to < len(f.pieces) && f.pieces[to].ptr < end; to++ {
		x := f.pieces[to]
		if x.ptr < p {
			before := x
			before.size = alloc.Bytes(p - x.ptr)
			rest = append(rest, before)
		}
		if x.end() > end {
			behind := x
			behind.ptr, behind.size = end, alloc.Bytes(x.end()-end)
			rest = append(rest, behind)
		}
		first, last := max(x.ptr, p), min(x.end(), end)
		x.ptr, x.size = first, alloc.Bytes(last-first)
		inside = append(inside, x)
	}
	f.pieces = slices.Replace(f.pieces, from, to, rest...)
	return inside
}

// checkReused compares memory that was handed out again to an allocation of that call stack.
func (f *lateWriteDetector) checkReused(p alloc.Ptr, n alloc.Bytes, next tables.StackID) {
	f.compare(f.take(p, n), next)
}

// checkRest compares all memory that was not handed out again, and returns what was ever found.
func (f *lateWriteDetector) checkRest() error {
	f.compare(f.take(0, math.MaxInt64), 0)
	return errors.Join(f.all()...)
}

// compare waits until the device has done what is queued, and then checks the pattern.
func (f *lateWriteDetector) compare(pieces []piece, next tables.StackID) {
	if len(pieces) == 0 || f.failed(f.waiter.Synchronize()) {
		return
	}
	memory, pattern := make([]byte, lateChunk), bytes.Repeat([]byte{latePattern}, lateChunk)
	for _, p := range pieces {
		first, last := alloc.Bytes(-1), alloc.Bytes(0)
		for at := alloc.Bytes(0); at < p.size; at += lateChunk {
			part := memory[:min(lateChunk, p.size-at)]
			if f.failed(f.copier.CopyToHost(part, p.ptr+alloc.Ptr(at))) {
				return
			}
			if bytes.Equal(part, pattern[:len(part)]) {
				continue
			}
			for i, c := range part {
				if c != latePattern {
					last = at + alloc.Bytes(i)
					if first < 0 {
						first = last
					}
				}
			}
		}
		if first >= 0 {
			f.report(p, first, last+1-first, next)
		}
	}
}

// maxLateWrites bounds what is kept and logged.
const maxLateWrites = 16

// report keeps and logs a late write.
func (f *lateWriteDetector) report(p piece, at, n alloc.Bytes, next tables.StackID) {
	t := f.t
	then := "and is not allocated again"
	if next != 0 {
		then = fmt.Sprintf("and allocated again at %v", t.stacks.Site(next))
	}
	e := fmt.Errorf("work wrote to %v at %v on %s after its free: the memory was allocated at %v, freed at %v, %s: "+
		"wait for the work before Free, or name its stream with RecordStream or FreeOn",
		n, p.ptr+alloc.Ptr(at), text.Line(t.name), t.stacks.Site(p.allocated), t.stacks.Site(p.freed), then)
	f.mu.Lock()
	kept := len(f.found) < maxLateWrites
	if kept {
		f.found = append(f.found, e)
	}
	f.mu.Unlock()
	if kept {
		t.report.Log.Error("gpumemtrack: " + e.Error())
	}
}

// all returns the late writes found so far.
func (f *lateWriteDetector) all() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.found)
}
