package tracker

import "github.com/gpumemtrack/gpumemtrack/alloc"

// peaks has the highest level that each open section has seen. A begin or an end takes a few steps,
// however many sections are open.
//
// A section that began later has seen less, so its peak is not higher. In the order in which they
// began, the sections therefore form runs with equal peaks, each run lower than the one before. A
// new level can only raise the last runs: a run joins the one before it when it has reached the
// same peak.
type peaks struct {
	youngest *run
}

// run is neighbouring sections with the same peak. Each section begins as its own run; when runs
// are joined, one refers to the other.
type run struct {
	peak           alloc.Bytes
	open           int  // its sections
	within         *run // the older run that it is part of
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

// end removes an open section, and returns its peak.
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

// whole returns the run that r has been joined to, or r.
func (r *run) whole() *run {
	for r.within != nil {
		if r.within.within != nil {
			r.within = r.within.within
		}
		r = r.within
	}
	return r
}
