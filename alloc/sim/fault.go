package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Op is a call to the device that can be made to fail.
type Op uint8

// The calls.
const (
	OpAlloc Op = iota
	OpFree
	OpMemInfo
	OpSynchronize
	OpCopy    // to the device and to the host
	OpReserve // and Release
	OpMap
	OpUnmap
	OpQueue
	OpEvent // RecordEvent, and an Event's Done and Wait
	OpFill
	OpPoolAlloc
	OpPoolFree
	OpPool // a pool's Stats and Trim
	OpPinnedAlloc
	OpPinnedFree
	ops
)

// String returns the call's name: "Alloc".
func (op Op) String() string {
	names := [...]string{"Alloc", "Free", "MemInfo", "Synchronize", "Copy", "Reserve", "Map", "Unmap", "Queue", "Event", "Fill", "PoolAlloc", "PoolFree", "Pool", "PinnedAlloc", "PinnedFree"}
	if op >= ops {
		return fmt.Sprintf("Op(%d)", uint8(op))
	}
	return names[op]
}

// ErrInjected is the error of a Fault that names none.
var ErrInjected = errors.New("injected fault")

// Always is the Times of a fault that stays until ClearFaults.
const Always = -1

// Fault makes calls of one kind fail:
//
//	Fault{Op: OpAlloc, Nth: 3}               // the third Alloc from now
//	Fault{Op: OpFree, Times: Always}         // every Free
//	Fault{Op: OpAlloc, Err: alloc.ErrOutOfMemory}
//
// The calls fail with an error that wraps Err, except that an Alloc whose Err is
// alloc.ErrOutOfMemory fails with the *alloc.OutOfMemoryError that it would
// give if its memory were full.
type Fault struct {
	Op    Op
	Nth   int   // the first call to fail, counted from 1 at the injection; 0 means 1
	Times int   // how many calls fail; 0 means 1
	Err   error // nil means ErrInjected
}

// faultError is the error of a call that a Fault made fail.
type faultError struct {
	Op     Op
	Device string // name and ordinal
	Err    error  // the fault's
}

func (e *faultError) Error() string { return fmt.Sprintf("%v on %s: %v", e.Op, e.Device, e.Err) }

// Unwrap returns the fault's error.
func (e *faultError) Unwrap() error { return e.Err }

// faults are those that have not been used up.
type faults []Fault

func (f *faults) add(added []Fault) {
	for _, fault := range added {
		fault.Nth = max(fault.Nth, 1)
		fault.Times = cmp.Or(fault.Times, 1)
		fault.Err = cmp.Or(fault.Err, ErrInjected)
		*f = append(*f, fault)
	}
}

// next counts a call, and returns the error that it must fail with. Each fault
// sees each call; the first one injected that is due decides the error.
func (f *faults) next(op Op) error {
	var err error
	for i := range *f {
		fault := &(*f)[i]
		switch {
		case fault.Op != op:
		case fault.Nth > 1:
			fault.Nth--
		default:
			err = cmp.Or(err, fault.Err)
			if fault.Times > 0 {
				fault.Times--
			}
		}
	}
	*f = slices.DeleteFunc(*f, func(fault Fault) bool { return fault.Times == 0 })
	return err
}
