package tape

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Amount is a number of elements and the memory they take.
type Amount struct {
	Count int64       `json:"count"`
	Bytes alloc.Bytes `json:"bytes"`
}

// Band is how far a figure may be off, as fractions of it: the truth is
// expected between figure x (1 - Below) and figure x (1 + Above).
type Band struct {
	Below float64 `json:"below"`
	Above float64 `json:"above"`
}

// Row is one call of a layer.
type Row struct {
	Path   string      `json:"path"`
	Kind   string      `json:"kind"`
	Depth  int         `json:"depth"` // 1 for the layers of the list
	Leaf   bool        `json:"leaf"`  // it has no parts
	Input  alloc.Shape `json:"input,omitempty"`
	Output alloc.Shape `json:"output,omitempty"`
	Params int64       `json:"params"` // its own, not its parts'
	FLOPs  int64       `json:"flops"`  // its own
	// Allocated is what a forward pass in training takes from the layer's
	// beginning to its end, its parts' included, freed meanwhile or not:
	// outputs that have memory of their own and what operations keep, but no
	// workspace. tracker.ProfileRow.Allocated is that, measured.
	Allocated alloc.Bytes `json:"allocated_bytes"`
	// Kept is the memory that the layer is the first to keep for the backward
	// pass.
	Kept alloc.Bytes `json:"kept_bytes"`

	InPlace bool `json:"-"`
	Module  int  `json:"-"` // of the declaration; -1 where it had a row before
	Owner   int  `json:"-"` // module whose parameters it reads: another's where it is Shared
}

// Figure is an amount of memory, and how far off it may be.
type Figure struct {
	Bytes alloc.Bytes `json:"bytes"`
	Lower alloc.Bytes `json:"lower_bytes"`
	Upper alloc.Bytes `json:"upper_bytes"`
}

// String is the figure with its bounds: "15.1 GiB (14.2 GiB to 16.0 GiB)".
func (f Figure) String() string { return fmt.Sprintf("%v (%v to %v)", f.Bytes, f.Lower, f.Upper) }
