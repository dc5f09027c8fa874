package alloc

import "fmt"

// Ptr is an address in a device's memory. Zero is not an address.
type Ptr uint64

// String prints the address in hexadecimal: "0x7f0000000200".
func (p Ptr) String() string { return fmt.Sprintf("0x%x", uint64(p)) }

// Stream is the driver's handle of a queue of work on a device. 0 is the default stream.
type Stream uint64

// MemInfo is a device's memory as its driver counts it, for all processes together, in bytes.
type MemInfo struct {
	Free  Bytes `json:"free_bytes"`
	Total Bytes `json:"total_bytes"`
}

// Used returns the memory that is not free.
func (m MemInfo) Used() Bytes { return m.Total - m.Free }

// Device is the interface of a device's driver. Its methods may be called from any goroutine.
//
// Alloc allocates n bytes of device memory. The error is *OutOfMemoryError, ErrSize for a
// negative n, or the driver's; a failed Alloc changes nothing. Zero bytes are a valid request,
// and get an address that is freed like any other.
//
// Free frees an address that Alloc returned, once. A second Free is ErrDoubleFree where the
// device can tell. An address that the device never returned is ErrUnknownPtr. Both change
// nothing.
//
// The methods must not call a cache or tracker over the device, nor wait for a goroutine that does: a cache calls the
// device while others wait for it. The cache returns ErrReentrant where it sees that. Nor should they panic. A cache or
// tracker whose caller recovers from that counts memory as live whose Free panicked, and may call Free again.
//
// MemInfo asks the driver. Name is the product name, Ordinal the index among the devices that
// the process sees. Package alloctest tests a Device of one's own.
//
// A device that can do more has more methods, which [As] finds: those of StreamAllocator and
// Copier, and any of
//
//	UUID() string             // its own name among all devices, as nvidia-smi prints it
//	Memory() Memory           // what it allocates, if that is not DeviceMemory
//	Reserved() (Bytes, error) // what it holds from the driver, as a pool does
//	Synchronize() error       // waits until all work queued on it is done
//
//	// RecordEvent marks the end of the work that is queued on a stream now; it does not wait. A cache needs it
//	// for RecordStream. Done reports whether the work has reached the mark, and Wait returns when it has. The
//	// mark is not used any more after true or nil: the driver's resources are released.
//	RecordEvent(s Stream) (interface {
//		Done() (bool, error)
//		Wait() error
//	}, error)
//
//	// StreamOfThread returns the handle that means another stream on each thread. Goroutines change threads, so that
//	// a cache refuses it.
//	StreamOfThread() Stream
//
//	// Fill queues on a stream that n bytes at p, inside one allocation, become a value.
//	Fill(p Ptr, n Bytes, value byte, s Stream) error
//
//	// CopyFrom copies n bytes from another device's memory. It is errors.ErrUnsupported for a
//	// device of another sort.
//	CopyFrom(dst Ptr, from Device, src Ptr, n Bytes) error
//
//	// With these four, addresses and memory are allocated separately, and a cache can have expandable
//	// segments. Reserve returns n bytes of addresses, a multiple of chunk, which is a multiple of 2 MiB, with no
//	// memory behind them, and Release takes them. Map puts memory behind whole chunks of one reservation that
//	// have none, and Unmap takes it when the work that is queued on the device is done.
//	Reserve(n, chunk Bytes) (Ptr, error)
//	Release(p Ptr) error
//	Map(p Ptr, n Bytes) error
//	Unmap(p Ptr, n Bytes) error
//
//	// StartInterval marks the beginning of an interval behind the work queued so far, Stop its end. Elapsed
//	// waits for the end, returns the time between them, and is called once.
//	StartInterval() (interface {
//		Stop() error
//		Elapsed() (time.Duration, error)
//	}, error)
type Device interface {
	Alloc(n Bytes) (Ptr, error)
	Free(p Ptr) error
	MemInfo() (MemInfo, error)
	Name() string
	Ordinal() int
}

// StreamAllocator is a Device that allocates for work on a stream, and knows which other streams
// use what it gave. The Cache is one.
type StreamAllocator interface {
	Device
	// AllocOn allocates n bytes for work on a stream, and returns the size of the block.
	AllocOn(n Bytes, s Stream) (p Ptr, allocated Bytes, err error)
	// RecordStream says that work on another stream uses the memory at an address: after
	// its Free, it is not used again before that work is done.
	RecordStream(p Ptr, s Stream) error
}

// Copier is a Device that can copy between its memory and the program's. The
// copy is complete when the call returns. An address may lie inside an
// allocation; the copy must not run past the allocation's end.
type Copier interface {
	CopyToDevice(dst Ptr, src []byte) error
	CopyToHost(dst []byte, src Ptr) error
}

// As returns the first T among dev and the devices that it wraps, as errors.As does: for
// example, the Copier under a Cache. A device that wraps another has a method Unwrap() Device.
func As[T any](dev Device) (found T, ok bool) {
	for dev != nil {
		if found, ok = dev.(T); ok {
			return found, true
		}
		wrapper, wraps := dev.(interface{ Unwrap() Device })
		if !wraps {
			break
		}
		dev = wrapper.Unwrap()
	}
	return found, false
}
