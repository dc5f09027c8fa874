// Package trace writes a tracker's history as trace events, for ui.perfetto.dev
// and chrome://tracing:
//
//	err := trace.Write(file, export.Take(tr))
//
// Sections are slices, which may overlap; allocated, reserved and the driver's
// used memory are counters; marks and refusals for lack of memory are instants.
//
// # What is counted
//
// Allocated bytes change with every event. Reserved bytes change with the segments
// of the tracker's own cache; of another device they are known at marks and at the end,
// as the driver's used memory always is. Times count from the first event; the
// process's name says when that was. The process number is the rank plus 1, so
// that the traces of many ranks can be laid into one.
//
// # Cost
//
// Write streams: it needs memory for the open sections only. It may be called from
// any goroutine.
//
// The format is Google's "Trace Event Format".
package trace
