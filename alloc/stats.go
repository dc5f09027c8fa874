package alloc

import "fmt"

// Gauge is a quantity that rises and falls.
type Gauge[T ~int64] struct {
	Current T `json:"current"` // the level now
	Peak    T `json:"peak"`    // the highest level since ResetPeak
	Total   T `json:"total"`   // the sum of all rises, at most the largest T; it never falls
}

// Usage is an amount of memory, and the number of pieces that it comes in.
type Usage struct {
	Bytes Gauge[Bytes] `json:"bytes"`
	Count Gauge[int64] `json:"count"`
}

// Stats is a Cache's state at one instant, with its totals since the start.
type Stats struct {
	Requested Usage `json:"requested"`        // requested bytes of the blocks in callers' hands
	Allocated Usage `json:"allocated"`        // the blocks in callers' hands, after rounding
	Inactive  Usage `json:"inactive"`         // inactive blocks, ready for reuse; splitting and joining changes their count
	Pending   Usage `json:"pending,omitzero"` // freed blocks that work on other streams may still use
	Reserved  Usage `json:"reserved"`         // all segments reserved from the driver: Allocated, Inactive and Pending together

	Retries int64 `json:"retries"` // times the driver was out of memory and was asked again
	OOMs    int64 `json:"ooms"`    // requests refused with an *OutOfMemoryError

	LargestInactive Bytes `json:"largest_inactive_bytes"` // the largest inactive block
	Reclaimable     Bytes `json:"reclaimable_bytes"`      // what Trim would give back: free segments, or chunks of expandable ones
}

// String says how many bytes are in which state now: "32 B requested, 512 B allocated, 2.0 MiB inactive, 0 B pending,
// 2.0 MiB reserved".
func (s Stats) String() string {
	return fmt.Sprintf("%v requested, %v allocated, %v inactive, %v pending, %v reserved",
		s.Requested.Bytes.Current, s.Allocated.Bytes.Current, s.Inactive.Bytes.Current, s.Pending.Bytes.Current, s.Reserved.Bytes.Current)
}
