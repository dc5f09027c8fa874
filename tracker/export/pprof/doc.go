// Package pprof writes and reads device memory in pprof's format, for go tool
// pprof and everything else that opens heap profiles:
//
//	err := pprof.Write(file, tr.Dump())
//
//	go tool pprof -top gpu.pb.gz
//	go tool pprof -http=: -tagroot=kind gpu.pb.gz
//	go tool pprof -top -diff_base yesterday.pb.gz today.pb.gz
//	go tool pprof -top -tagroot=rank rank0.pb.gz rank1.pb.gz
//
// # What is counted
//
// As in a heap profile of Go: inuse_space and inuse_objects are the live buffers,
// alloc_space and alloc_objects all buffers ever, with requested bytes and whole
// stacks. Samples have the labels device, stream, kind, dtype, shape, section and memory, and
// of the process rank, world_size, host, pid and program, where they are known. A
// profile does not need single allocations: a light snapshot gives the same profile.
//
// Live buffers in host memory (pinned, mapped) are counted in host_space and host_objects, which
// are there only if there are any, and in no other column.
//
// A profile of a source without totals, such as a snapshot of JAX, has inuse values only. JAX
// writes -1 as the size of a compiled program that it does not know: Read leaves these out. The
// stacks include the frames of libraries below a call site. drop_frames names those, so
// that pprof shows the call site as the leaf.
//
// # Cost
//
// A profile takes memory for its call stacks, not for the buffers. The functions may be called from any goroutine.
package pprof
