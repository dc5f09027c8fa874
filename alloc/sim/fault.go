package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrInjected is the error of a Fault that names none.
var ErrInjected = errors.New("injected fault")

// Fault makes calls of one kind fail:
//
//	Fault{Call: "Alloc", Nth: 3}     // the third Alloc from now
//	Fault{Call: "Free", Times: -1}   // every Free
//	Fault{Call: "Alloc", Err: alloc.ErrOutOfMemory}
//
// The calls are Alloc, Free, MemInfo, Synchronize, Reserve (and Release), Map, Unmap, Queue and Fill of the device;
// Copy, to the device and to the host; Event, which is RecordEvent and an Event's Done and Wait; PoolAlloc, PoolFree,
// and Pool, which is a pool's other calls; PinnedAlloc and PinnedFree.
//
// The calls fail with an error that wraps Err, except that an Alloc whose Err is
// alloc.ErrOutOfMemory fails with the *alloc.OutOfMemoryError that it would
// give if its memory were full.
type Fault struct {
	Call  string
	Nth   int   // the first call to fail, counted from 1 at the injection; 0 means 1
	Times int   // how many calls fail; 0 means 1, and a negative number all until the next Inject
	Err   error // nil means ErrInjected
}

// calls names the calls that a Fault can make fail.
var calls = []string{
	"Alloc", "Free", "MemInfo", "Synchronize", "Reserve", "Map", "Unmap", "Queue", "Fill",
	"Copy", "Event", "PoolAlloc", "PoolFree", "Pool", "PinnedAlloc", "PinnedFree",
}

// faultError is the error of a call that a Fault made fail.
type faultError struct {
	Call   string
	Device string // name and ordinal
	Err    error  // the fault's
}

func (e *faultError) Error() string { return fmt.Sprintf("%s on %s: %v", e.Call, e.Device, e.Err) }

// Unwrap returns the fault's error.
func (e *faultError) Unwrap() error { return e.Err }

// faults are the injected faults that have not all happened yet.
type faults []Fault

func newFaults(injected []Fault) (faults, error) {
	f := slices.Clone(injected)
	for i, fault := range f {
		if !slices.Contains(calls, fault.Call) {
			return nil, fmt.Errorf("sim: Fault.Call %q: want one of %v", fault.Call, calls)
		}
		f[i].Nth = max(fault.Nth, 1)
		f[i].Times = cmp.Or(fault.Times, 1)
		f[i].Err = cmp.Or(fault.Err, ErrInjected)
	}
	return f, nil
}

// next counts a call, and returns the error that it must fail with. Each fault
// sees each call; the first one injected that is due decides the error.
func (f *faults) next(call string) error {
	var err error
	for i := range *f {
		fault := &(*f)[i]
		switch {
		case fault.Call != call:
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
