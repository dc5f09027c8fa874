// Package snapshot holds what was observed of a device's memory, as plain values. They do not
// depend on where they came from, and do not change.
//
// A [Record] is everything about one device. It has a [Snapshot], which is every live buffer
// and call site at one instant; a [History], the events before it; the latest [Mark]s; and a
// [Profile] of sections. Package tracker makes them for its own process. Package
// tracker/export/files reads them from files, PyTorch's included. The packages below tracker/export
// write them in the formats of other viewers.
//
//	r, err := snapshot.ReadDump(file)
//	for site := range r.Snapshot.Sites() {
//		fmt.Println(site.Live, site.Site)
//	}
//	for _, s := range r.Snapshot.Suspects() {
//		fmt.Println(s)
//	}
//
// # Concurrency
//
// Any goroutine may read these values. A [Profile] is for one goroutine at a time,
// because Sort changes its order.
package snapshot
