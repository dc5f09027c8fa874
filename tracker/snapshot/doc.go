// Package snapshot holds what was seen of a device's memory, as plain values: they
// know nothing of where they came from, and do not change.
//
// A [Record] is all of it for one device. Its parts are a [Snapshot], which is every
// live buffer and call site at an instant; a [History], the events before that; the
// latest [Mark]s; and a [Profile] of sections. Package tracker makes them of its own
// process. Package tracker/export/files reads them from files, PyTorch's among them. The packages
// under tracker/export write them in the formats of other viewers.
//
//	r, err := snapshot.ReadDump(file)
//	for site := range r.Snapshot.Sites() {
//		fmt.Println(site.Live, site.Site)
//	}
//	for _, s := range r.Snapshot.Suspects() {
//		fmt.Println(s)
//	}
//
// # Sources
//
// A source fills in [Tables] and [HistoryTables] and calls [New] and [NewHistory].
// What it does not know stays unknown: an amount in bytes is -1, a [Tensor] is
// [Untyped], a [StackID] is 0, the zero [Frame] prints as "unknown".
//
// # Concurrency
//
// Any goroutine may read these values. A [Profile] is for one goroutine at a time,
// since Sort changes its order.
package snapshot
