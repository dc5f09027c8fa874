// Package replay runs a recorded history through an allocator again. It answers whether the
// run would have fitted on a smaller device, with which settings, and where it would have run
// out of memory.
//
//	f, err := files.ReadFile("yesterday.dump.json")
//	result, err := replay.Run(f.Dump, replay.Config{Memory: 24 * alloc.GiB})
//	if !result.Fits {
//		fmt.Print(result) // where it runs out of memory, and what there is then
//	}
//
// A history is part of a [snapshot.Dump], from a tracker's dump or from a memory snapshot
// of PyTorch. The replay makes the program's requests, frees and emptied caches in their order.
// It does not repeat what the recorded allocator did: the replay's allocator decides again.
//
// # What is exact, and what is not
//
// The allocator is [cache.Cache], which was compared with recordings of PyTorch on real GPUs: with
// the recorded settings and enough memory, a replay makes the recorded calls to the driver. Each
// result says how far that is so of its own history. Each stream has a pool, as in PyTorch; when
// memory runs out, all pools are emptied. MemoryFraction and GarbageCollection apply to each stream
// separately. A buffer belongs to the private pool of a CUDA graph if that pool has the segment at
// its address. Events of PyTorch before 2.12 do not name the pool: then the segment that is there
// at the end of the recording decides.
//
// If the history has several freed segments in a row, the program is taken to have emptied its
// cache, unless the history shows that a request ran out of memory. A tracker's history shows that;
// PyTorch's does if its segments have call stacks.
//
// A history that begins in the middle starts from the state before it, which is rebuilt
// backwards: with the recorded segments and holes if the allocator can have made them, otherwise
// with its buffers allocated in their order, without older holes. The replay's notes say which.
//
// A program that would have acted differently on another device is not modelled.
package replay
