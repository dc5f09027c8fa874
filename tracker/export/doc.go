// Package export holds what the formats below it share: Usage, which is memory by call stack.
// Every format can be read as a Usage, and two runs are compared by it. The formats are
// written from a [snapshot.Record].
//
//	record := tr.Record()
//	err := pprof.Write(file, record)       // go tool pprof, Pyroscope
//	err = torch.Write(file, record)        // pytorch.org/memory_viz
//	err = trace.Write(file, record)        // ui.perfetto.dev
//	err = html.Write(file, record)         // any browser
//
// A program that imports only package tracker compiles none of them.
//
// # Concurrency and cost
//
// A record is a copy, so writing it holds no lock of a tracker. Records and usages do not
// change; any goroutine may read them.
package export
