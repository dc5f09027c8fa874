// Package torch writes and reads PyTorch's memory snapshots, the pickles that
// pytorch.org/memory_viz and torch/cuda/_memory_viz.py open:
//
//	err := torch.Write(file, tr.Record())
//
// The page shows the Active Memory Timeline and the Allocator State History with
// our call stacks, coloured by kind. A snapshot of this package, or one that PyTorch's
// own _dump_snapshot wrote, is read by Read.
//
// # What is counted
//
// Blocks are the live buffers and the cached memory between them; events are the
// history. The page cannot show a buffer outside of every segment, so memory that is in no
// segment of the cache (registered by other code, or of a tracker without a
// cache) gets a segment of its own, from its allocation to its free. Sections are
// annotations. A block that lies
// within another, as part of a registered arena, stands in the events only. A mark is an
// event "snapshot". The page hides frames whose function has "_start" in its
// name or whose path has "/Register".
//
// # Cost
//
// Write streams: beside the record it needs some 50 bytes for each live buffer, and
// what names the distinct call stacks. Read holds what the file says:
// a pickle of a million live buffers, of 40 MB, takes 590 MB, and no file more than 32
// times its unpacked size. The functions may be called from any goroutine.
package torch
