// Package live shows a tracker over HTTP while the program runs:
//
//	http.Handle("/debug/gpumem/", live.Handler(tr))
//
// A program that package tracker/attach watches has the same pages: see Source, and Several
// for many at once.
//
// Importing the package registers nothing and starts nothing: the program serves the handler.
// It may be mounted at any path; it goes by the last element of a request's path:
//
//	/                    the lines that hold memory, the levels and the marks, as they change
//	/profile             pprof; ?seconds=30 for what changed meanwhile, ?debug=1 as text; of a tracker ?gc=1 after a collection, by POST
//	/snapshot            JSON; ?light=1 without the single allocations
//	/dump                JSON: snapshot, history, devices, how the program was built
//	/trace               trace events, for ui.perfetto.dev
//	/memory_viz.pickle   for pytorch.org/memory_viz
//	/report              the HTML page
//	/lines               the lines of code that hold memory now, with the age of the oldest buffer and their call stacks: JSON
//	/leaks               leak suspects, and what grows: JSON, ?debug=1 as text
//	/levels              the levels alone, as JSON
//	/timeline            the levels over time, as far as the history reaches: JSON
//	/marks               each mark as a server-sent event, JSON; ?after=7 for those after number 7; ends when the tracker is closed
//	/metrics             for Prometheus, or as OpenMetrics if asked; ?top=10 with the lines of code that hold most, ?suspects=1 with leak suspects
//
// A wrong or unknown parameter is answered with 400.
//
// # Keep it off public addresses
//
// The answers reveal the program's code, and each takes work. The handler has no
// authentication. Serve it on localhost, or behind a server that authenticates. A request whose Host header
// is a name other than localhost is refused, so that web pages cannot read the answers by DNS
// rebinding: see Handler. The pages load nothing from elsewhere
// (Content-Security-Policy).
//
// # Concurrency and cost
//
// The handler only reads. It writes an answer from a copy, without holding a lock of the
// tracker, so a slow client delays no allocation and no Track. A client that reads marks too
// slowly misses some, and the stream says how many.
//
// Each answer is complete before it is sent, and the snapshots of /metrics are taken before, so a
// slow client does not delay other clients. At most 4 answers that copy the ledger are made at a
// time; others wait up to 5 seconds. Until it is sent, an answer of up to 1 MiB is kept in memory,
// a larger one in a temporary file, of which there are at most 64. At most 64 clients may read
// marks, and 64 may wait for a profile of some seconds; others get 503. A client that takes less
// than 64 KiB in 30 seconds is dropped. Answers are compressed with gzip if the client accepts it,
// except profiles, which are compressed already.
//
// A stream of marks ends with its client or when the tracker is closed: close the
// tracker before http.Server.Shutdown, which waits for all requests.
package live
