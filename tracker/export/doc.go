// Package export holds what the formats below it share: Record, what a tracker
// knows at an instant, which they write; and Usage, live memory by call stack,
// which they can be read as, and which two runs are compared by.
//
//	record := export.Take(tr)
//	err := pprof.Write(file, record)       // go tool pprof, Pyroscope
//	err = torch.Write(file, record)        // pytorch.org/memory_viz
//	err = trace.Write(file, record)        // ui.perfetto.dev
//	err = html.Write(file, record)         // any browser
//
// A program that imports only package tracker compiles none of them.
//
// # Concurrency and cost
//
// Take copies the ledger and the history: allocations wait for it about 50 ns a
// live buffer and 5 ns an event. Writing afterwards holds no lock of the tracker's. Records and usages do
// not change once made; any goroutine may read them.
package export
