// Package capability has interfaces for the optional methods of an alloc.Device. The packages of this module find them by
// alloc.As; a device of another module implements the same methods, which the documentation of alloc.Device lists.
package capability

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Identified is a Device that has a name of its own among all devices, as nvidia-smi prints it; "" if that is not known.
type Identified interface {
	UUID() string
}

// Synchronizer is a Device that can wait until all work queued on it is done.
type Synchronizer interface {
	Synchronize() error
}

// EventDevice is a Device that can report when the work queued on a stream so far is done. A
// Cache needs it for RecordStream.
type EventDevice interface {
	alloc.Device
	// RecordEvent marks the end of the work that is queued on a stream now; it does not
	// wait.
	RecordEvent(s alloc.Stream) (Event, error)
}

// Event is a mark in a stream's work. When Done has reported true or Wait has returned nil,
// the driver's resources are released, and the Event must not be used any more.
type Event = interface {
	// Done reports whether the stream's work has reached the mark; it does not wait.
	Done() (bool, error)
	// Wait returns when the stream's work has reached the mark.
	Wait() error
}

// ThreadStreamer is a Device with a handle that means another stream on each thread. Goroutines change threads: a cache
// refuses it.
type ThreadStreamer interface {
	StreamOfThread() alloc.Stream
}

// NoThreadStream is the error of a request that names the stream of a ThreadStreamer; it is errors.ErrUnsupported.
func NoThreadStream(s alloc.Stream) error {
	return fmt.Errorf("stream %#x is another one on each thread, and goroutines change threads: create a stream, and give its handle: %w", uint64(s), errors.ErrUnsupported)
}

// PeerCopier is a Device that can copy from another device's memory.
type PeerCopier interface {
	// CopyFrom copies n bytes at src, which is memory of the device from, to dst. They may be the same
	// device. The copy is complete when the call returns. It is errors.ErrUnsupported
	// for a device of another sort.
	CopyFrom(dst alloc.Ptr, from alloc.Device, src alloc.Ptr, n alloc.Bytes) error
}

// Filler is a Device that can fill its memory.
type Filler interface {
	// Fill queues on a stream that n bytes at p, inside one allocation, become a value; it does
	// not wait.
	Fill(p alloc.Ptr, n alloc.Bytes, value byte, s alloc.Stream) error
}

// VirtualDevice is a Device on which addresses and memory are allocated separately, so that
// memory can be put at addresses next to each other. A Cache needs it for expandable
// segments.
//
// Memory comes in chunks, whose size is a multiple of 2 MiB and is fixed when addresses are
// reserved. Addresses and sizes of Map and Unmap are whole chunks of one
// reservation. A failed call changes nothing.
type VirtualDevice interface {
	alloc.Device
	// Reserve returns n bytes of addresses, a multiple of chunk, with no memory behind them.
	// It is errors.ErrUnsupported on a device that turns out to have no such thing.
	Reserve(n, chunk alloc.Bytes) (alloc.Ptr, error)
	// Release takes back addresses that Reserve returned. None of them may be mapped.
	Release(p alloc.Ptr) error
	// Map maps memory to n bytes at p, which have none. The error is *alloc.OutOfMemoryError if the device is full.
	Map(p alloc.Ptr, n alloc.Bytes) error
	// Unmap waits until the work that is queued on the device is done, and takes the memory behind
	// n bytes at p, all of which must be mapped.
	Unmap(p alloc.Ptr, n alloc.Bytes) error
}

// Reconciler is a Device whose driver may refuse to undo a call that failed.
type Reconciler interface {
	// Reconcile unmaps the memory that such calls left mapped. After an error, call it again.
	Reconcile() error
}

// Timer is a Device that can time an interval of its own work.
type Timer interface {
	// StartInterval marks the interval's beginning behind the work queued so far.
	StartInterval() (Interval, error)
}

// Interval measures the time of a stretch of a device's work.
type Interval = interface {
	// Stop marks the end behind the work queued so far; it does not wait.
	Stop() error
	// Elapsed waits until the device has reached the end and returns the time
	// between the marks. It releases the interval: call it once, after Stop.
	Elapsed() (time.Duration, error)
}

// ReservingDevice is a Device that holds more of the driver's memory than its callers, as a
// pool does.
type ReservingDevice interface {
	alloc.Device
	// Reserved returns what the device holds from the driver.
	Reserved() (alloc.Bytes, error)
}

// All is what a device of this module can do.
type All interface {
	alloc.Copier
	Synchronizer
	Filler
	PeerCopier
	Timer
	EventDevice
	VirtualDevice
}

// MemoryOf returns the type of memory that a device allocates: that of its method Memory, or alloc.DeviceMemory if it
// has none.
func MemoryOf(dev alloc.Device) alloc.Memory {
	if typed, ok := alloc.As[interface{ Memory() alloc.Memory }](dev); ok {
		return typed.Memory()
	}
	return alloc.DeviceMemory
}
