// Package html writes a dump as one HTML file, which any browser opens without a network:
//
//	err := html.Write(file, tr.Dump())
//
// If an allocation failed, the page begins with what was requested, what was free, who holds the
// memory and what would help. Then it shows memory over time, by kind or by line of code.
//
// All else is of one moment: the error if there is one, otherwise the end. A mark on the chart, which the mouse and the arrow keys
// move, chooses another: then the values, the flame graph of the call stacks that hold memory, the live buffers by line of
// code, and the cache's segments with what keeps each of them are those of that moment. Of a long history there is a sample of
// about a hundred moments: the peak, the error, marks, and the highest of the stretches between them.
//
// Unreachable buffers, leak suspects and sections follow, if there are any, and the marks, each with its table of changes. What a source
// cannot tell, such as the kinds of PyTorch's buffers, is not shown. Everything works
// with the keyboard. A dump of several devices has a page for each, and a list to choose from; one whose memory ran out
// comes first. Beyond 32, devices are left out.
//
// # What is counted
//
// The terms are those of package tracker. Allocated bytes follow the history; where it is long, each
// stretch shows its highest and its last level, so that no peak is lost. Reserved bytes
// are drawn where they are known: without segments in the history, at marks and at the end.
//
// # Cost
//
// The time to write grows with the events, buffers and call sites. The page takes at most 2 MiB and
// 20,000 nodes of a browser's document. Small items are left out, and the page says how many: call
// stacks with less than a thousandth of the whole at every moment, groups beyond the 300 largest of
// a moment, changes of a mark beyond 20, marks before the latest 200, segments beyond the 100 with
// the most inactive memory; if that is still too much, the page has less of each, and fewer moments.
// Write may be called from any goroutine.
package html
