package snapshot

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// OOM is what was known when an allocation failed for lack of memory. An unknown amount is -1.
type OOM struct {
	Requested alloc.Bytes `json:"requested_bytes"`
	Kind      mem.Kind    `json:"kind"`
	DType     alloc.DType `json:"dtype,omitempty"` // not valid where it is not known
	Shape     alloc.Shape `json:"shape"`
	Section   string      `json:"section,omitempty"`

	Free            alloc.Bytes `json:"free_bytes"`  // as the driver says
	Total           alloc.Bytes `json:"total_bytes"` // of the device
	Reserved        alloc.Bytes `json:"reserved_bytes"`
	Inactive        alloc.Bytes `json:"inactive_bytes"`         // the part of Reserved that is cached
	LargestInactive alloc.Bytes `json:"largest_inactive_bytes"` // the largest hole in the cache
	Untracked       alloc.Bytes `json:"untracked_bytes"`
	Elsewhere       alloc.Bytes `json:"elsewhere_bytes"` // cached by other trackers of the process
	Others          alloc.Bytes `json:"others_bytes"`    // held by other processes

	Sites  []mem.SiteTally `json:"sites"`  // the lines of code that hold most
	Advice string          `json:"advice"` // what would help, in a sentence
}
