package tracker

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Layer describes the work that one call of a section does. What is not known
// is zero.
type Layer struct {
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	FLOPs  int64         `json:"flops,omitempty"` // floating-point operations
	Params int64         `json:"params,omitempty"`
}

// Describe says what work is done in the section, for Profile. It must come
// before End; what l refers to must not be written to afterwards.
func (s *Section) Describe(l Layer) {
	s.tracker.mu.Lock()
	defer s.tracker.mu.Unlock()
	s.layer = &l
}

// Estimate is what is expected of one call of a section. Of a layer in a report of
// package estimate it is
//
//	tracker.Estimate{
//		Layer: tracker.Layer{Inputs: []alloc.Shape{row.Input}, FLOPs: row.FLOPs, Params: row.Params},
//		Of:    tracker.ByAllocated, Bytes: row.Allocated,
//	}
type Estimate struct {
	Layer
	// Of says which measured amount it is an estimate of: ByAllocated, ByKept,
	// ByPeak, ByOwnPeak or ByLive.
	Of    Column      `json:"of"`
	Bytes alloc.Bytes `json:"bytes"`
}

// Estimator knows what is expected of the sections of some paths.
type Estimator interface {
	Estimate(path string) (e Estimate, ok bool)
}

// Estimates is an Estimator: the estimates by the path of the section.
type Estimates map[string]Estimate

// Estimate implements Estimator.
func (of Estimates) Estimate(path string) (Estimate, bool) {
	e, ok := of[path]
	return e, ok
}

// measured is the amount of a call that a column shows.
func (r *ProfileRow) measured(of Column) alloc.Bytes {
	switch of {
	case ByAllocated:
		return r.Allocated.Bytes / alloc.Bytes(max(1, r.Calls))
	case ByKept:
		return r.Kept()
	case ByPeak:
		return r.Peak
	case ByOwnPeak:
		return r.OwnPeak
	case ByLive:
		return r.Live.Bytes
	}
	return 0
}
