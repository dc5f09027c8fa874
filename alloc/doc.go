// Package alloc has the types that all packages of this module use for device memory: sizes
// (Bytes), shapes (Shape), element types (DType), addresses (Ptr), streams (Stream), and Device,
// the interface of a device:
//
//	n, err := alloc.Shape{64, 3, 3, 3}.Bytes(alloc.Float32) // 6.8 KiB
//	var dev alloc.Device = ...                              // of package sim or cuda, or a type of your own
//	p, err := dev.Alloc(n)
//
// It allocates nothing itself. Devices are in packages alloc/sim and alloc/cuda. Package
// alloc/cache has an allocator that keeps freed memory for later requests, because drivers are
// slow.
package alloc
