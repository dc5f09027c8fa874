package replay

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Run replays a record's history. The errors are snapshot.ErrNoHistory, those of
// snapshot.Record.At, and of a Config that cannot be. That the history does not fit
// is not an error: see Result.Fits. A replay takes some hundred nanoseconds an event. Of a record of several devices
// it replays the first; the others are in Others. It may be called from any goroutine.
func Run(r *snapshot.Record, cfg Config) (Result, error) {
	cfg, err := cfg.check()
	if err != nil {
		return Result{}, err
	}
	p, err := compile(r)
	if err != nil {
		return Result{}, err
	}
	return p.run(cfg)
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
	s := p.record.Snapshot
	result := Result{
		Device: s.Device, Ordinal: s.Ordinal, Allocator: cfg.Allocator, Memory: cfg.Memory, Events: p.events,
		Fits: oom == nil, Levels: m.levels, OOM: oom, Recorded: p.recorded, Gap: p.gap,
		Start: Start{
			Dropped: p.record.First(), Buffers: p.begun, Requested: p.start.Live.Bytes, Reserved: p.start.Reserved, Layout: m.layout,
		},
	}
	result.PeakReserved, result.DriverAllocs, result.DriverFrees = m.dev.peak, m.dev.allocs, m.dev.frees
	if oom != nil {
		result.OOMs = 1
	}
	if p.record.First() > 0 && s.Peak.Bytes > p.recorded.PeakRequested {
		result.Start.EarlierPeak = s.Peak.Bytes
	}
	return result, nil
}
