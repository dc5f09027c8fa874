package replay

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// maxReplays bounds a search.
const maxReplays = 20

// Smallest returns the result of the replay with the least memory on which the history
// fits, with Smallest and Memory set, found in at most 20 replays. cfg.Memory does not count. The
// errors are those of Run.
//
// The search halves the span between the most memory in blocks and what the allocator takes without a limit,
// in steps of 2 MiB or, where it is very long, a 2^18th of it. An allocator may fit into less memory and
// fail with a little more, since it does other things then; what is returned did fit.
func Smallest(r *snapshot.Record, cfg Config) (Result, error) {
	cfg, err := cfg.check()
	if err != nil {
		return Result{}, err
	}
	p, err := compile(r)
	if err != nil {
		return Result{}, err
	}
	return p.smallest(cfg)
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
	best.Replays = 1
	from, to := alloc.Bytes(0), (high-low+unit-1)/unit // in units above low: it fits with the last
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
		best.Replays = replays
	}
	best.Smallest, best.Memory = found, found
	return best, nil
}

func roundUp(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) / unit * unit }

// foreignPeak is the most that registered buffers hold.
func (p *program) foreignPeak() (peak alloc.Bytes) {
	level := alloc.Bytes(0)
	count := func(i int32, sign alloc.Bytes) {
		if b := &p.buffers[i]; b.foreign {
			level += sign * b.allocated
			peak = max(peak, level)
		}
	}
	for i := range p.begun {
		count(int32(i), 1)
	}
	for _, o := range p.ops {
		switch o.do {
		case opAlloc:
			count(o.buffer, 1)
		case opFree:
			count(o.buffer, -1)
		}
	}
	return peak
}
