// Package recordings compares cache.Cache with what PyTorch's caching allocator did on real GPUs. It reads
// memory snapshots (torch.cuda.memory._dump_snapshot), rebuilds the state before their first event, and
// replays them through a Cache over a device that answers as the real one did. It is for tests.
//
// The snapshots are no part of this project. Its tests read them where they
// are, in a folder shared/recordings beside the project, and are skipped elsewhere; the tests say what was
// found with them.
package recordings
