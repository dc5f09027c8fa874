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
// enough. It is split if what remains is at least 512 bytes (small) or more
// than 1 MiB (large). A freed block is joined with its free neighbours. One
// detail differs: among small blocks of one size, the last freed is taken,
// where PyTorch takes the lowest address.
//
// # What is counted
//
// Requested is what callers asked for, allocated the blocks in their hands
// after rounding, inactive the cached blocks, reserved all segments held from
// the driver: allocated + inactive = reserved. The driver's own rounding, its
// context, and other processes are not counted; MemInfo has them.
//
// # Streams
//
// The Cache knows nothing of streams. A freed block may be handed out at once,
// so before Free, the work queued on it must be done, or all of its users must
// be queued on one stream, which runs them in order.
//
// # Concurrency and cost
//
// Any goroutine may call anything. A request that the cache can satisfy takes
// one lock for some tens of nanoseconds and allocates no Go memory; requests
// that need the driver wait for each other, and nobody else waits for them.
// Finding a small block takes constant time, a large one time in the logarithm
// of the number of free large blocks. A block costs about 60 bytes, which hold
// no pointers and so cost the Go collector nothing.
package alloc
