// Package replay runs a recorded history through an allocator again: would it have
// fitted on a smaller device, with which settings, and where would it have run out?
//
//	f, err := files.Open("yesterday.dump.json")
//	result, err := replay.Run(f.Record, replay.Config{Memory: 24 * alloc.GiB})
//	if !result.Fits {
//		fmt.Println(result.OOM)
//	}
//
// A history is what a [snapshot.Record] has, wherever it comes from: a tracker's dump, or a
// memory snapshot of PyTorch. The program's requests, frees, and emptied caches are replayed
// in their order. What its allocator did of itself is not: that is what the replay finds out.
//
// # What holds, and what does not
//
// The allocator is [alloc.Cache], which was held to recordings of PyTorch on real GPUs: with
// the recorded settings and enough memory, a replay makes the recorded calls to the driver.
// Each stream has a pool of its own, as in PyTorch; when memory runs out, all of them are
// emptied. MemoryFraction and GarbageCollection count for each stream by itself.
// The private pools of CUDA graphs are not told apart, since events do not name theirs.
//
// A run of freed segments in the history is taken for a program that emptied its cache. It may have been
// an allocator that was out of memory; a history does not say which.
//
// A history that begins in the middle starts from the state before it, which is rebuilt backwards:
// with the recorded segments and holes where the allocator can have made these, and else with
// its buffers allocated in their order, which knows nothing of older holes. [Start] says which.
//
// A program that would have done otherwise on another device is not foreseen.
package replay
