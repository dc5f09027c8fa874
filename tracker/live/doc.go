// Package live shows a tracker over HTTP while the program runs:
//
//	http.Handle("/debug/gpumem/", live.Handler(tr))
//
// Nothing registers itself. The handler answers below whatever path it is
// mounted at, by the last element of the path:
//
//	/                    the levels and marks, as they change
//	/profile             pprof; ?seconds=30 for what changed meanwhile, ?debug=1 as text, ?gc=1 after a collection
//	/snapshot            JSON; ?light=1 without the single allocations
//	/dump                JSON: snapshot, history, devices, how the program was built
//	/trace               trace events, for ui.perfetto.dev
//	/memory_viz.pickle   for pytorch.org/memory_viz
//	/report              the HTML report
//	/leaks               leak suspects, and what grows from mark to mark: JSON, ?debug=1 as text
//	/levels              the levels alone, as JSON
//	/marks               each mark as a server-sent event, JSON; ?after=7 for those after number 7; ends when the tracker is closed
//	/metrics             for Prometheus; ?top=10 with the lines of code that hold most, ?suspects=1 with leak suspects
//
// # Keep it off public addresses
//
// The answers tell of the program's code, and each takes work. The handler asks nobody
// who they are. Serve it on localhost, or behind what does.
//
// # Concurrency and cost
//
// The handler only reads. An answer is written from a copy, with no lock of the
// tracker's held, so a client that is slow or gone delays no allocation and no Track. Who
// reads the marks too slowly misses some, and is told so. At most 4 of the
// answers that copy the ledger are in work at a time, and 64 clients may read marks
// and 64 wait for a profile of some seconds; others get 503. A client that takes
// less than 64 KiB in 30 seconds is dropped.
//
// A stream of marks ends with its client or when the tracker is closed: close the
// tracker before http.Server.Shutdown, which waits for all requests.
package live
