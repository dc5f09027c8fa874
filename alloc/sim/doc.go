// Package sim is a GPU in plain Go: it behaves as a driver does, so that
// programs run and tests pass on a machine without one.
//
//	dev, err := sim.New(sim.Config{})              // 24 GiB, as device 0
//	if err != nil { ... }
//	defer dev.Close()
//	p, err := dev.Alloc(3 * alloc.MiB)             // takes two pages
//	err = dev.Free(p)
//
// # What is simulated
//
// The driver takes memory in pages of 2 MiB. An allocation of a page or more
// takes whole pages of its own; smaller ones, rounded up to 512 bytes, share pages
// with each other, as CUDA's do. Addresses are taken lowest first and used
// again after a free. Physical memory runs out by the page, addresses do not:
// as on a device with virtual memory, holes between allocations never make a
// request fail. Addresses can be reserved and mapped, as alloc.VirtualDevice
// says. Opening the device takes the context's overhead, and Device.SetOther
// takes what other processes would.
//
// # Streams
//
// Device.Queue queues work on a stream: which memory it uses, and for how long. The clock
// stands still but for Device.Advance, and for calls that wait, which move it as far as they
// wait; so a test decides what is done when. Device.RecordEvent marks a place in a
// stream, as alloc.EventDevice says. With Config.CheckReuse the device finds what a real
// one cannot: memory that a Cache hands out while queued work still uses it. Device.Err
// tells of it, with the line that asked for the memory and the line that queued the work.
//
// # Faults
//
// Device.Inject makes chosen calls fail, and Device.SetLatency makes every call
// take time, at run time and from any goroutine. A failed call changes nothing.
//
// # Cost
//
// Memory is accounted and not held: a device of 192 GiB costs no more than its
// live allocations' records, unless Config.Backed asks for host memory behind
// those that are copied to or from. An Alloc searches the holes between allocations in
// order. The device remembers every address that it ever gave, to tell a
// double free from a foreign address; addresses that are reused cost nothing
// more.
//
// All methods may be called from any goroutine.
package sim
