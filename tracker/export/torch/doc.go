// Package torch writes and reads PyTorch's memory snapshots, the pickles that
// pytorch.org/memory_viz and torch/cuda/_memory_viz.py open:
//
//	err := torch.Write(file, tr.Dump())
//
// The page shows the Active Memory Timeline and the Allocator State History with the
// tracker's call stacks, coloured by kind. Read reads snapshots of this package and of
// PyTorch's _dump_snapshot.
//
// # What is counted
//
// Blocks are the live buffers and the inactive memory between them; events are the
// history. The page cannot show a buffer outside of every segment, so memory that is in no
// segment of the cache (registered by other code, or of a tracker without a
// cache) gets its own segment, from its allocation to its free. A block inside
// another, such as part of a registered arena, is in the events only. Sections are
// annotations. A mark is an
// event "snapshot". The page hides frames whose function has "_start" in its
// name or whose path has "/Register". Host memory is left out: the format is of the device's.
//
// # Cost
//
// Write streams: in addition to the dump it needs about 50 bytes for each live buffer, and memory for
// the names of the distinct call stacks. Read holds everything that the file contains, at most 32 times
// its unpacked size. The functions may be called from any goroutine.
package torch
