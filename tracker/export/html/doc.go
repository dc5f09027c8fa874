// Package html writes what a tracker knows as one HTML file that any browser
// opens without a network, and that can be mailed:
//
//	err := html.Write(file, tr.Record())
//
// Of a failed allocation it says first what was asked for, what was free, who holds the
// memory and what would help. Then come memory over time, by kind or by line of code,
// with the peak and what was live then; the call stacks that hold it as a flame graph; the live
// buffers; the cache's segments and what keeps each of them; lost buffers, leak
// suspects and sections, where there are any; and the marks, each with its table of what grew
// and fell. Everything works with the keyboard. A record of several devices has a page of each, of
// which one is shown; the first 32 can be chosen.
//
// # What is counted
//
// The words are those of package tracker. Over time, allocated bytes follow the
// history; of a long one each stretch shows its highest and its last level, so
// that no peak is lost. Reserved bytes stand where they are known: without segments in
// the history, at marks and at the end.
//
// # Cost
//
// The time follows the events, buffers and call sites. The page takes at most 2 MiB and
// 20,000 nodes of a browser's document. What is small is left out, and the page says how
// much that is: call stacks with less than a thousandth of the whole, groups beyond the 300 largest,
// changes of a mark beyond 20, marks before the latest 200, segments beyond the
// 100 with most unused memory; less of each where that is too much.
// Write may be called from any goroutine.
package html
