// Package trace writes a tracker's history as trace events, for ui.perfetto.dev
// and chrome://tracing:
//
//	err := trace.Write(file, tr.Dump())
//
// Sections are slices, each inside the slice of its parent. Allocated and reserved memory and
// the driver's used memory are counters. Marks and out of memory errors are instants, with
// details in their arguments.
//
// # Sections that do not nest
//
// Slices in one row of a viewer must nest. A section gets its own row, named by its whole
// path, if it overlaps another part of the same section, ends after its parent, or could belong to
// several open sections of one name.
//
// # What is counted
//
// Allocated bytes change with every event. Reserved bytes change with the segments of the
// tracker's own cache; for other devices they are known only at marks and at the end, as is
// the driver's used memory. Times count from the first event; the instant "begin" says when
// that was, and in which process. The process number is the rank plus 1, so that the traces
// of many ranks can be merged.
//
// # Cost
//
// Write streams: it needs memory for the open sections, and for sections that outlast
// their parent. It may be called from any goroutine.
//
// The format is Google's "Trace Event Format".
package trace
