// Package sim simulates a GPU in plain Go, so that programs run and tests pass on a machine
// without one.
//
//	dev, err := sim.New(sim.Config{})              // 24 GiB, as device 0
//	if err != nil { ... }
//	defer dev.Close()
//	p, err := dev.Alloc(3 * alloc.MiB)             // takes two pages
//	err = dev.Free(p)
//
// # What is simulated
//
// The driver allocates memory in pages of 2 MiB. An allocation of at least a page gets whole pages.
// Smaller ones, rounded up to 512 bytes, share pages, as with CUDA. The lowest free address is
// used first, and addresses are reused after a free. Physical memory runs out by the page,
// addresses do not: as on a device with virtual memory, holes between allocations never make a
// request fail. Addresses can be reserved and mapped: see alloc.Device. Opening the device
// takes the context's overhead. Device.SetOther sets the memory of other processes.
//
// # Streams
//
// Device.Queue queues work on a stream: which memory it uses, and for how long. The device has a
// clock that moves only with Device.Advance and with calls that wait, so a test decides
// what is done when. RecordEvent marks a place in a stream, as alloc.Device
// describes. With Config.CheckReuse the device finds an error that a real one cannot find:
// memory that a Cache hands out while queued work still uses it. Device.Err returns that error, with the
// line that allocated the memory and the line that queued the work.
//
// # Types of memory
//
// Device.NewPool makes a stream-ordered pool, and Device.Pinned an allocator of pinned host memory
// with a limit: each is a separate alloc.Device. docs/memory.md says what they cannot show.
//
// # Faults
//
// Device.Inject makes chosen calls fail, and Device.SetLatency makes every call take time. Both work
// at run time and from any goroutine. A failed call changes nothing.
//
// # Cost
//
// Memory is counted, not held: a device of 192 GiB costs only the records of its live
// allocations, unless Config.Backed asks for host memory behind those that are copied to or
// from. An Alloc searches the holes between allocations in order. The device remembers every
// address that it returned, to tell a double free from a foreign address; a reused address is
// remembered once.
//
// All methods may be called from any goroutine.
package sim
