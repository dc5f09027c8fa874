//go:build cuda && cgo

package cuda

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Code returns the driver's number of an error that came from gorgonia.org/cu,
// whose own type has no exported name.
func Code(err error) (code int, ok bool) { return codeAs(cu.Success, err) }

func codeAs[T interface {
	~int
	error
}](_ T, err error) (int, bool) {
	var own T
	if !errors.As(err, &own) {
		return 0, false
	}
	return int(own), true
}

// Codes that v0.9.6 has no names for.
const (
	// unavailable is of a device that was lost, or one in a compute mode that
	// keeps this process out.
	unavailable         = 46
	contained           = 226 // a hardware error, or a bad access over NVLink, kept to this process
	tensorMemoryLeak    = 721
	mpsClientTerminated = 810
	externalDevice      = 911
)

// The codes that the driver documents as leaving the context, or the process,
// unable to go on (as of CUDA 13.5), and what it says of a device that fell off the bus.
var lost = map[int]bool{
	int(cu.Deinitialized):       true, // the driver is shutting down
	unavailable:                 true,
	contained:                   true,
	tensorMemoryLeak:            true,
	mpsClientTerminated:         true,
	externalDevice:              true,
	int(cu.EccUncorrectable):    true,
	int(cu.NvlinkUncorrectable): true,
	int(cu.IllegalAddress):      true,
	int(cu.LaunchTimeout):       true,
	int(cu.ContextIsDestroyed):  true,
	int(cu.Assert):              true,
	int(cu.HardwareStackError):  true,
	int(cu.IllegalInstruction):  true,
	int(cu.MisalignedAddress):   true,
	int(cu.InvalidAddressSpace): true,
	int(cu.InvalidPc):           true,
	int(cu.LaunchFailed):        true,
	int(cu.Unknown):             true,
}

// mapped puts our error beside an error of the driver that says the same.
func mapped(err error) error {
	switch code, ok := Code(err); {
	case ok && code == unavailable:
		return fmt.Errorf("%w (%w: or another process has the device for itself, see nvidia-smi -q -d COMPUTE)", ErrDeviceLost, err)
	case ok && lost[code]:
		return fmt.Errorf("%w (%w)", ErrDeviceLost, err)
	case ok && code == int(cu.OutOfMemory):
		return fmt.Errorf("%w (%w)", alloc.ErrOutOfMemory, err)
	}
	return err
}

// mappedAddress is mapped for a call that an invalid address makes invalid.
func mappedAddress(err error) error {
	if errors.Is(err, cu.InvalidValue) {
		return fmt.Errorf("%w (%w)", alloc.ErrUnknownPtr, err)
	}
	return mapped(err)
}

// outOfMemory fills in what the driver knows; a device has no cache.
func (d *Device) outOfMemory(n alloc.Bytes, err error) error {
	oom := &alloc.OutOfMemoryError{
		Device: d.String(), Requested: n, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1, Err: err,
	}
	if info, infoErr := d.MemInfo(); infoErr == nil {
		oom.Free, oom.Total = info.Free, info.Total
	}
	return oom
}
