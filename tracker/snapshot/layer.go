package snapshot

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Layer describes the work that one call of a section does. What is not known
// is zero.
type Layer struct {
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	FLOPs  int64         `json:"flops,omitempty"` // floating-point operations
	Params int64         `json:"params,omitempty"`
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

// Estimator returns what sections are expected to take.
type Estimator interface {
	Estimate(path string) (e Estimate, ok bool)
}

// Estimates is an Estimator: estimates by the path of the section.
type Estimates map[string]Estimate

// Estimate implements Estimator.
func (of Estimates) Estimate(path string) (Estimate, bool) {
	e, ok := of[path]
	return e, ok
}
