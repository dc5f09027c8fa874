package attach

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Source is the per-device view of a process: the memory that it allocated on one device, or on the
// host through the driver. It has the reading methods of a *tracker.MemTracker. Any goroutine may call
// its methods. After the end of the process or the watcher it stays as it was.
type Source struct {
	w          *Watcher // its mu guards the fields below, except device and priorBytes
	process    *processState
	name       string
	device     ledger.Device
	priorBytes alloc.Bytes
	uuid       string // "" until known
	ledger     *ledger.Ledger
	marks      int
	recent     []*snapshot.Mark
	marked     chan struct{} // closed at the next mark or at the end; nil if no WaitMark waits
}

// maxMarks is the number of marks that are kept.
const maxMarks = 128

// Name returns the process and the device in characters that are valid in a path, such as
// "4711-gpu0". Each source of a watcher has another name.
func (s *Source) Name() string { return s.name }

// String names the source and says what is live: "4711-gpu0: 41 buffers, 145.0 MiB live, peak 146.8 MiB".
func (s *Source) String() string {
	if s.w == nil {
		return "no source: a Watcher makes them"
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return fmt.Sprintf("%s: %v live, peak %v", s.name, s.ledger.Levels().Live, s.ledger.Peak().Bytes)
}

// Origin returns the process, with the program that it runs now, or ran last.
func (s *Source) Origin() snapshot.Origin {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.process.origin
}

// Ended returns when the process ended, or executed another program where every process is watched; the
// zero time while it runs.
func (s *Source) Ended() time.Time {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.process.end
}

// Device returns the device's name and number as the process counts them: "GPU" and its ordinal.
// Pinned host memory, and memory of a context from before the watcher, have a name of their own and
// the ordinal 0. The blocks of a caching allocator are "PyTorch's blocks, GPU", with the ordinal of the
// device, and Levels.Reserved is the size of the segments. Pinned memory counts in Levels.Memory and
// Levels.HostReserved and in no total of a device, as in a tracker.
func (s *Source) Device() (name string, ordinal int) { return s.device.Name(), s.device.Ordinal() }

// PriorBytes returns what the process used on the device when watching began, contexts included, as
// the driver reports it. It is in no ledger. -1 means unknown; it is 0 for a process that was watched
// from its start.
func (s *Source) PriorBytes() alloc.Bytes { return s.priorBytes }

// Snapshot copies the ledger.
func (s *Source) Snapshot() *snapshot.Snapshot { return s.snapshot(true) }

// LightSnapshot returns a Snapshot without the single allocations.
func (s *Source) LightSnapshot() *snapshot.Snapshot { return s.snapshot(false) }

func (s *Source) snapshot(whole bool) *snapshot.Snapshot {
	used, total := s.driver()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.copyLedger(whole, used, total)
}

// copyLedger copies the ledger, with the driver's values. The caller holds mu.
func (s *Source) copyLedger(whole bool, used, total alloc.Bytes) *snapshot.Snapshot {
	name, ordinal := s.Device()
	at := &snapshot.Snapshot{
		Time: s.now(), Origin: s.process.origin, Device: name, Ordinal: ordinal, UUID: s.uuid, Levels: s.levels(used, total),
	}
	s.ledger.Copy(at, s.w.start, s.device.Memory(), whole)
	return at
}

// now is the time, or that of the end of the process. The caller holds mu.
func (s *Source) now() time.Time {
	if s.process.end.IsZero() {
		return time.Now()
	}
	return s.process.end
}

// driver asks the driver how much of the device all processes use; -1 is unknown. It also asks for the
// device's UUID until that is known. The caller must not hold mu, because a driver may be slow.
func (s *Source) driver() (used, total alloc.Bytes) {
	s.w.mu.Lock()
	pid, ended, known := s.process.origin.PID, !s.process.end.IsZero(), s.uuid != ""
	s.w.mu.Unlock()
	if s.device < 0 || ended {
		return -1, -1
	}
	if !known {
		if uuid, err := s.w.driver.UUID(pid, s.device.Ordinal()); err == nil {
			s.w.mu.Lock()
			s.uuid = uuid
			s.w.mu.Unlock()
		}
	}
	used, total, err := s.w.driver.Memory(pid, s.device.Ordinal())
	if err != nil {
		return -1, -1
	}
	return used, total
}

// levels returns the ledger's levels with the driver's values. The caller holds mu.
func (s *Source) levels(used, total alloc.Bytes) snapshot.Levels {
	levels := s.ledger.Levels()
	levels.DriverUsed, levels.DriverTotal = used, total
	if segments := s.process.sources[s.device-ledger.BlocksOf]; segments != nil { // the segments are what the driver allocated
		levels.Reserved = max(levels.Reserved, segments.ledger.Levels().Reserved)
	}
	return levels
}

// Track makes a mark: what changed since the previous one. Its CallSite is unknown, since no line of
// the process called Track.
func (s *Source) Track() *snapshot.Mark {
	used, total := s.driver()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	now := s.now()
	s.marks++
	m := &snapshot.Mark{Seq: s.marks, Time: now, Levels: s.levels(used, total)}
	m.Delta = s.ledger.Mark(m.Seq, now.Sub(s.w.start))
	if len(s.recent) == maxMarks {
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	s.recent = append(s.recent, m)
	s.wake()
	return m
}

// wake wakes every WaitMark. The caller holds mu.
func (s *Source) wake() {
	if s.marked != nil {
		close(s.marked)
		s.marked = nil
	}
}

// WaitMark returns the oldest mark kept whose Seq is above after, and waits for one if there
// is none. The error is the context's, or alloc.ErrClosed when the process has ended or the
// watcher is closed.
func (s *Source) WaitMark(ctx context.Context, after int) (*snapshot.Mark, error) {
	for {
		m, marked, err := s.markAfter(after)
		if m != nil || err != nil {
			return m, err
		}
		select {
		case <-marked:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a mark: %w", ctx.Err())
		}
	}
}

// markAfter returns the next mark, or a channel that is closed when there may be one.
func (s *Source) markAfter(seq int) (*snapshot.Mark, <-chan struct{}, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for _, m := range s.recent {
		if m.Seq > seq {
			return m, nil, nil
		}
	}
	if !s.process.end.IsZero() || s.w.closed {
		return nil, nil, fmt.Errorf("wait for a mark: %v is not watched any more: %w", s.process.origin, alloc.ErrClosed)
	}
	if s.marked == nil {
		s.marked = make(chan struct{})
	}
	return nil, s.marked, nil
}

// Dump returns all that is known at one instant, for the export packages. If the ledger may be
// inaccurate, Reason has the watcher's Warnings.
func (s *Source) Dump() *snapshot.Dump {
	used, total := s.driver()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	reason := strings.Join(append([]string{"attach"}, s.warnings()...), "; ")
	return &snapshot.Dump{
		Reason: reason, Build: &debug.BuildInfo{Path: s.process.origin.Program},
		Snapshot: s.copyLedger(true, used, total), Marks: slices.Clone(s.recent),
		History: tables.WrapHistory(s.ledger.History(s.w.start)),
	}
}
