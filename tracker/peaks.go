package tracker

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// peaks are the highest levels that each of the open sections has seen, for a few
// steps at each begin and end, however many are open.
//
// The later a section began, the less it has seen, and the lower its peak is. So in
// the order of their beginnings the sections form runs of the same peak, each run's
// lower than the one's before it. A new level concerns only the last runs: they
// become part of the run before them when they have seen as much.
type peaks struct {
	youngest *run
}

// run is neighbouring sections with the same peak. Each section brings one, which
// is only a reference to another once it is part of it.
type run struct {
	peak           alloc.Bytes
	open           int  // its sections
	within         *run // the older one that it is part of
	older, younger *run
}

// begin enters the run of a section that begins at the level.
func (p *peaks) begin(r *run, level alloc.Bytes) {
	r.peak, r.open = level, 1
	if r.older = p.youngest; r.older != nil {
		r.older.younger = r
	}
	p.youngest = r
	p.raise(level)
}

// raise raises the peaks of all open sections to the level, at least.
func (p *peaks) raise(level alloc.Bytes) {
	r := p.youngest
	if r == nil {
		return
	}
	r.peak = max(r.peak, level)
	for older := r.older; older != nil && older.peak <= r.peak; older = r.older {
		older.peak = r.peak
		older.open += r.open
		older.younger = nil
		r.within, r.older = older, nil
		r = older
	}
	p.youngest = r
}

// end takes a section out, and returns its peak.
func (p *peaks) end(r *run) alloc.Bytes {
	r = r.whole()
	r.open--
	if r.open > 0 {
		return r.peak
	}
	if r.older != nil {
		r.older.younger = r.younger
	}
	if r.younger != nil {
		r.younger.older = r.older
	} else {
		p.youngest = r.older
	}
	r.older, r.younger = nil, nil
	return r.peak
}

// whole returns the run that r is part of by now.
func (r *run) whole() *run {
	for r.within != nil {
		if r.within.within != nil {
			r.within = r.within.within
		}
		r = r.within
	}
	return r
}
