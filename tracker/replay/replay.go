package replay

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Run replays a dump's history. If the dump has several devices, it replays the first; the others
// are in Dump.Others. A replay takes some hundred nanoseconds for each event. Run may be called
// from any goroutine.
//
// The errors say that there is no history or that cfg is not valid, or are those of rewind.At. A
// history that does not fit is not an error: see Result.Fits.
func Run(r *snapshot.Dump, cfg Config) (Result, error) { return replayed(r, cfg, (*program).run) }

// replayed runs a dump's history, and says how far a replay agrees with what was recorded.
func replayed(r *snapshot.Dump, cfg Config, run func(*program, Config) (Result, error)) (Result, error) {
	cfg, err := cfg.check()
	if err != nil {
		return Result{}, err
	}
	p, err := compile(r)
	if err != nil {
		return Result{}, err
	}
	result, err := run(p, cfg)
	result.agreement = p.agreement()
	return result, err
}

func (p *program) run(cfg Config) (Result, error) {
	m, err := newMachine(p, cfg)
	if err != nil {
		return Result{}, err
	}
	oom, err := m.run()
	if err != nil {
		return Result{}, err
	}
	s := p.dump.Snapshot
	result := Result{
		Allocator: cfg.Allocator, Memory: cfg.Memory, Events: p.events, Fits: oom == nil, Levels: m.levels, Recorded: p.recorded,
		oom: oom, device: s.Device, ordinal: s.Ordinal, gap: p.gap, unknown: p.unknownSettings(),
		start: start{
			Dropped: p.first, Buffers: p.begun, Requested: p.start.Live.Bytes, Reserved: p.start.Reserved, Layout: m.layout,
		},
	}
	result.PeakReserved, result.DriverAllocs, result.DriverFrees = m.dev.peak, m.dev.allocs, m.dev.frees
	if oom != nil {
		result.OOMs = 1
	}
	if p.first > 0 && s.Peak.Bytes > p.recorded.PeakRequested {
		result.start.EarlierPeak = s.Peak.Bytes
	}
	return result, nil
}

// agreement replays the recorded allocator without a limit of memory: requests fail and caches are emptied
// where they were when it was recorded. It is nil if the history has no calls to compare with, or if the
// recorded allocator cannot be replayed.
func (p *program) agreement() *agreement {
	cfg := Recorded(p.dump)
	if cfg.Allocator == driver {
		return nil
	}
	m, err := newMachine(p, cfg)
	if err != nil {
		return nil
	}
	m.compareWithRecorded()
	if oom, err := m.run(); oom != nil || err != nil {
		return nil
	}
	m.compared.compare()
	a := m.compared.agreement
	a.PeakReserved, a.RecordedPeakReserved = m.dev.peak, p.recorded.PeakReserved
	if a.RecordedCalls+a.RecordedAddresses == 0 {
		return nil
	}
	return &a
}

// maxReplays bounds a search.
const maxReplays = 20

// Smallest returns the result of the replay with the least memory on which the history
// fits, found in at most 20 replays: Result.Memory says how much. cfg.Memory does not count. The
// errors are those of Run.
//
// The search halves the range between the peak of allocated bytes and what the allocator takes
// without a limit, down to 2 MiB, or to a 2^18th of a very long range. An allocator may fit into
// less memory and yet fail with a little more, because it then decides differently. What Smallest
// returns did fit.
func Smallest(r *snapshot.Dump, cfg Config) (Result, error) {
	return replayed(r, cfg, (*program).smallest)
}

func (p *program) smallest(cfg Config) (Result, error) {
	cfg.Memory = 0
	best, err := p.run(cfg)
	if err != nil || !best.Fits {
		return best, err
	}
	const step = 2 * alloc.MiB // which segments are multiples of
	high := best.PeakReserved + p.foreignPeak()
	low := best.PeakAllocated / step * step // nothing fits into less than what is in blocks
	unit := max(step, roundUp((high-low)>>18, step))
	best.replays = 1
	from, to := alloc.Bytes(0), (high-low+unit-1)/unit // in units above low; the history fits at to
	found := high
	for replays := 2; from < to && replays <= maxReplays; replays++ {
		middle := (from + to) / 2
		cfg.Memory = max(low+middle*unit, 1)
		result, err := p.run(cfg)
		if err != nil {
			return Result{}, err
		}
		if result.Fits {
			best, found, to = result, cfg.Memory, middle
		} else {
			from = middle + 1
		}
		best.replays = replays
	}
	best.Memory = found
	return best, nil
}

func roundUp(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) / unit * unit }
