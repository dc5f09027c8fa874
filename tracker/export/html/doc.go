// Package html writes what a tracker knows as one HTML file that any browser
// opens without a network, and that can be mailed:
//
//	err := html.Write(file, export.Take(tr))
//
// It shows memory over time, the call stacks that hold it as a flame graph, the
// live buffers, and the marks, each with its table of what came and went.
//
// # What is counted
//
// The words are those of package tracker. Over time, allocated bytes follow the
// history; of a long one each stretch shows its highest and its last level, so
// that no peak is lost. Reserved bytes stand where they are known: without segments in
// the history, at marks and at the end. Call stacks with less than a thousandth of the
// whole are left out, the smallest groups beyond 500 stand together, and of the marks
// the latest 200 have their tables.
//
// # Cost
//
// The page's size is bounded, whatever the number of buffers and events. Write
// may be called from any goroutine.
package html
