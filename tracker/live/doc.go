// Package live shows a tracker over HTTP while the program runs:
//
//	http.Handle("/debug/gpumem/", live.Handler(tr))
//
// A program that package tracker/attach watches has the same pages: see Source, and Several
// for many at once.
//
// Nothing registers itself. The handler answers below whatever path it is
// mounted at, by the last element of the path:
//
//	/                    the levels and marks, as they change
//	/profile             pprof; ?seconds=30 for what changed meanwhile, ?debug=1 as text; of a tracker ?gc=1 after a collection, by POST
//	/snapshot            JSON; ?light=1 without the single allocations
//	/dump                JSON: snapshot, history, devices, how the program was built
//	/trace               trace events, for ui.perfetto.dev
//	/memory_viz.pickle   for pytorch.org/memory_viz
//	/report              the HTML report
//	/leaks               leak suspects, and what grows from mark to mark: JSON, ?debug=1 as text
//	/levels              the levels alone, as JSON
//	/timeline            the levels over time, as far as the history reaches: JSON
//	/marks               each mark as a server-sent event, JSON; ?after=7 for those after number 7; ends when the tracker is closed
//	/metrics             for Prometheus, or as OpenMetrics if asked; ?top=10 with the lines of code that hold most, ?suspects=1 with leak suspects
//
// A parameter that is wrong, or that the page does not take, is answered with 400.
//
// # Keep it off public addresses
//
// The answers tell of the program's code, and each takes work. The handler asks nobody
// who they are. Serve it on localhost, or behind what does. A request whose Host header
// is a name other than localhost is refused, so that web pages cannot read the answers through a
// name of their own: see AllowHosts. The pages load nothing from elsewhere
// (Content-Security-Policy).
//
// # Concurrency and cost
//
// The handler only reads. An answer is written from a copy, with no lock of the
// tracker's held, so a client that is slow or gone delays no allocation and no Track. Who
// reads the marks too slowly misses some, and is told so.
//
// Answers are made first and sent then, so a slow client delays no other client either.
// At most 4 of those that copy the ledger are made at a time, and others wait up to 5 seconds for
// their turn. Until it is sent an answer of up to
// 1 MiB is kept in memory, a larger one in a temporary file, of which there are at most 64. At most 64
// clients may read marks, and 64 wait for a profile of some seconds. Others get
// 503. A client that takes less than 64 KiB in 30 seconds is dropped. Clients that
// accept gzip get it, other than for profiles, which are packed anyway.
//
// A stream of marks ends with its client or when the tracker is closed: close the
// tracker before http.Server.Shutdown, which waits for all requests.
package live
