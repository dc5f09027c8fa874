// Package export holds what the formats below it share: Usage, which is memory by call stack.
// Every format can be read as a Usage, and two runs are compared by it. The formats are
// written from a [snapshot.Dump].
//
//	dump := tr.Dump()
//	err := pprof.Write(file, dump)       // go tool pprof, Pyroscope
//	err = torch.Write(file, dump)        // pytorch.org/memory_viz
//	err = trace.Write(file, dump)        // ui.perfetto.dev
//	err = html.Write(file, dump)         // any browser
//
// A program that imports only package tracker compiles none of them.
//
// # Concurrency and cost
//
// A dump is a copy, so writing it holds no lock of a tracker. Dumps and usages do not
// change; any goroutine may read them.
package export
