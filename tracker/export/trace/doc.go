// Package trace writes a tracker's history as trace events, for ui.perfetto.dev
// and chrome://tracing:
//
//	err := trace.Write(file, tr.Record())
//
// Sections are slices, inside that of the section that they are a part of;
// allocated, reserved and the driver's used memory are counters; marks and refusals
// for lack of memory are instants, which a click tells more about.
//
// # Sections that do not nest
//
// What a viewer draws in one row must nest. A section that overlaps another part
// of the same section, or ends after it, or may be a part of several open ones of one
// name, begins a row of its own, under its whole path.
//
// # What is counted
//
// Allocated bytes change with every event. Reserved bytes change with the segments
// of the tracker's own cache; of another device they are known at marks and at the end,
// as the driver's used memory always is. Times count from the first event; the
// instant "begin" says when that was, and in which process. The process number is the
// rank plus 1, so that the traces of many ranks can be laid into one.
//
// # Cost
//
// Write streams: it needs memory for the open sections, and those that outlast
// the one that they began in. It may be called from any goroutine.
//
// The format is Google's "Trace Event Format".
package trace
