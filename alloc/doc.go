// Package alloc is device memory: the words for it (Bytes, Shape, DType, Ptr),
// what a driver must offer (Device), and Cache, an allocator that keeps freed
// memory for the next request, since asking a driver is slow.
//
//	cache := alloc.NewCache(dev, alloc.CacheConfig{})
//	p, err := cache.Alloc(3 * alloc.MiB)
//	...
//	err = cache.Free(p)                  // stays reserved, for the next Alloc
//	fmt.Println(cache.Stats().Reserved.Bytes.Current)
//	given, err := cache.Empty()          // back to the driver
//
// # Scheme
//
// The Cache follows PyTorch's caching allocator
// (c10/cuda/CUDACachingAllocator.cpp). Requests are rounded up to 512 bytes, at
// least 512. Those up to 1 MiB are small and are cut from segments of 2 MiB;
// below 10 MiB, from segments of 20 MiB; those of 10 MiB and more get a segment
// of their own, rounded up to 2 MiB. Small and large requests share no segment.
// The best fit among the free blocks is taken: the smallest that is large
// enough, and of those of one size the one at the lowest address. It is split if
// what remains is at least 512 bytes (small) or more than 1 MiB (large). A freed
// block is joined with its free neighbours.
//
// CacheConfig has the settings of PYTORCH_CUDA_ALLOC_CONF that change this, and
// says which of them were held to what PyTorch did on real GPUs.
//
// # What is counted
//
// Requested is what callers asked for, allocated the blocks in their hands
// after rounding, inactive the cached blocks, pending those that were freed while other
// streams used them, reserved all segments held from the driver: allocated + inactive +
// pending = reserved. The driver's own rounding, its
// context, and other processes are not counted; MemInfo has them.
//
// # Streams
//
// A program may queue work on several streams. Cache.AllocOn gives a block for one of
// them, and each stream has segments of its own: a freed block may be handed out at
// once, for work that the stream runs behind what is queued. If work on other streams uses
// the block too, say so by Cache.RecordStream: when the block is freed it becomes
// pending, and can be handed out when that work is done. That needs an EventDevice; on
// others, the work of the other streams must be done before Free. All of this follows
// PyTorch's allocator, down to the order of the calls to the driver.
//
// Alloc, which knows no stream, is for the default stream, 0.
//
// # Concurrency and cost
//
// Any goroutine may call anything. A request that the cache can satisfy takes
// one lock for some tens of nanoseconds and allocates no Go memory; requests
// that need the driver wait for each other, and nobody else waits for them.
// An Alloc or a Free takes time in the logarithm of the number of free blocks: of
// those of one size for a small request, of all large ones for a large request. A
// block costs about 60 bytes, which hold no pointers and so cost the Go collector
// nothing. A stream other than the default one costs 64 KiB while it has segments. While
// blocks are pending, each Alloc first asks the driver for one event a stream.
package alloc
