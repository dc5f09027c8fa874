package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Row is one call of a layer: what estimate.Row says of it, and more.
type Row struct {
	Path   string
	Kind   string
	Depth  int  // 1 for the layers of the list
	Leaf   bool // it has no parts
	Input  alloc.Shape
	Output alloc.Shape
	Params int64 // its own, not its parts'
	FLOPs  int64 // its own
	// Allocated is what a forward pass in training takes from the layer's
	// beginning to its end, its parts' included, freed meanwhile or not:
	// outputs that have memory of their own and what operations keep, but no
	// workspace. tracker.ProfileRow.Allocated is that, measured.
	Allocated alloc.Bytes
	// Kept is the memory that the layer is the first to keep for the backward
	// pass.
	Kept alloc.Bytes

	InPlace bool
	Module  int // of the declaration; -1 where it had a row before
	Owner   int // module whose parameters it reads: another's where it is Shared
}
