package nvml

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Source is what the driver's figures come from: the driver's library, the
// nvidia-smi program, or simulated devices. Its methods may be called from any
// goroutine.
//
// Devices lists the GPUs in the driver's order, which is that of the PCI bus,
// each followed by its MIG devices.
//
// Read asks each of devices for the quantities in want, and answers in the
// element of into with the same index; ProcessMemory is not among them. What a
// device does not have is missing from its Reading; where the device could not
// be asked at all, Reading.Err says why. Read keeps no reference to its arguments.
//
// Processes lists the processes that have memory on the device, each once. It
// is the costly call: 4.5 ms under a lock of the driver's were measured
// elsewhere, against 12 us for the memory.
type Source interface {
	Name() string
	Devices() ([]Device, error)
	Read(devices []Device, want Quantities, into []Reading)
	Processes(d Device) ([]Process, error)
	Close() error
}

// Process is a process with memory on a device, as the driver counts it.
type Process struct {
	PID    int         // the host's number
	Memory alloc.Bytes // negative where the driver gives no figure
}
