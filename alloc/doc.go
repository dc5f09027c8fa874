// Package alloc has the vocabulary of device memory (Bytes, Shape, DType, Ptr, Stream) and the
// interface of a device (Device). It allocates nothing: devices are in alloc/sim and alloc/cuda, and
// package alloc/cache has the allocator that keeps freed memory for later requests, as drivers
// are slow.
package alloc
