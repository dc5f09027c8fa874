// Package recordings compares cache.Cache with what PyTorch's caching allocator did on real GPUs. It reads
// memory snapshots (torch.cuda.memory._dump_snapshot), rebuilds the state before their first event, and
// replays them through a Cache over a device that answers as the real one did. It is for tests.
//
// The snapshots are not part of this project: package outside finds them. What was found with them is
// in testdata.
package recordings
