// Package inside is how nvml/chart reaches what an nvml.Series and a Quantity have for charts alone. nvml sets the functions.
package inside

import "time"

// Unit returns the unit of an nvml.Quantity: "MB" of all memory, "W".
var Unit func(quantity any) string

// Of an nvml.Series. Last and Since return a Series.
var (
	// Span returns the times of the first and the last sample; both are 0 if there is none.
	Span func(series any) (first, last time.Duration)
	// Last returns the last n samples, or a few more where samples were merged into points. The
	// statistics of the result count these samples only.
	Last func(series any, n int) any
	// Since returns the series from the point that contains a time since the recording's start.
	// The statistics of the result count these samples only.
	Since func(series any, t time.Duration) any
)
