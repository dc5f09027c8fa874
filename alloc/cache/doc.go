// Package cache is a caching allocator: it keeps freed memory for later requests, because drivers
// are slow. It never moves a block, and frees nothing that a caller still holds.
//
//	c, err := cache.New(dev, cache.Config{})
//	p, err := c.Alloc(3 * alloc.MiB)
//	...
//	err = c.Free(p)                  // stays reserved, for the next Alloc
//	fmt.Println(c.Stats().Reserved.Bytes.Current)
//	given, err := c.Trim()           // back to the driver
//
// # Scheme
//
// The Cache follows PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp). Requests
// are rounded up to a multiple of 512 bytes. Those up to 1 MiB are small: they are cut from
// segments of 2 MiB. Requests below 10 MiB are cut from segments of 20 MiB. Larger ones get a
// segment each, rounded up to 2 MiB. Small and large requests never share a segment.
//
// The best fit among the inactive blocks is used: the smallest that is large enough and, among
// blocks of one size, the one with the lowest address. It is split if the remainder is at least
// 512 bytes (small) or more than 1 MiB (large). A freed block is merged with its free neighbours.
//
// Config has the settings of PYTORCH_CUDA_ALLOC_CONF that change this, and says which of
// them were compared with recordings of PyTorch on real GPUs.
//
// # What is counted
//
//   - requested: what callers asked for
//   - allocated: the blocks that callers hold, after rounding
//   - inactive: inactive blocks, ready for reuse
//   - pending: blocks that were freed while other streams still used them
//   - reserved: all segments held from the driver, allocated + inactive + pending
//
// The driver's own rounding, its context and other processes are not counted; MemInfo
// includes them.
//
// # Streams
//
// A program may queue work on several streams. Cache.AllocOn allocates a block for one of them,
// and each stream has segments of its own: a freed block may be reused immediately, for work that the
// stream runs after what is queued. If work on other streams uses the block too, call
// Cache.RecordStream. A block that is freed then is pending until that work is done. This needs
// a device with events (RecordEvent); on others, wait for the other streams before Free. All of this follows
// PyTorch's allocator, down to the order of the calls to the driver.
//
// Alloc takes no stream: it allocates for the default stream, 0.
//
// # Concurrency and cost
//
// Any goroutine may call anything. A request that the cache can serve takes one lock and
// allocates no Go memory. Requests that need the driver wait for each other; other requests do
// not wait for them. If a block is freed meanwhile that serves a waiting request, it waits no longer.
// The time of Alloc and Free grows with the logarithm of the number of inactive blocks:
// those of one size for a small request, all large ones for a large request. Blocks hold no
// pointers, so they cost the Go collector nothing. Each stream other than the default one takes
// 64 KiB while it has segments. While blocks are pending, each Alloc asks the driver for one
// event per stream, unless the driver is in a call of another goroutine: then a later Alloc does.
package cache
