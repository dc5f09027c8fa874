package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Driver reports what the calls of a process do not show. An error means that a value is unknown. The
// methods are called from any goroutine, and without a lock, since a driver may be slow.
type Driver interface {
	// Memory returns how much of a device's memory all processes use, and its size.
	Memory(pid, ordinal int) (used, total alloc.Bytes, err error)
	// UUID returns the device's UUID, as nvidia-smi prints it.
	UUID(pid, ordinal int) (string, error)
	// Held returns the memory that a process holds on each of its devices, CUDA contexts included,
	// by the process's ordinals.
	Held(pid int) (map[int]alloc.Bytes, error)
}

var (
	ErrNoDriver   = errors.New("no driver answers")
	errUnknownUse = errors.New("the driver does not say what is in use")
)

// NoDriver is the driver if Config has none: all values are unknown.
type NoDriver struct{}

func (NoDriver) Memory(int, int) (used, total alloc.Bytes, err error) { return 0, 0, ErrNoDriver }
func (NoDriver) UUID(int, int) (string, error)                        { return "", ErrNoDriver }
func (NoDriver) Held(int) (map[int]alloc.Bytes, error)                { return nil, ErrNoDriver }

// nvmlDriver asks NVML, which numbers devices by the machine.
type nvmlDriver struct {
	source  nvml.Source
	devices []nvml.Device
	err     error
}

// NewDriver returns the driver of a source; one that knows nothing if it is nil.
func NewDriver(source nvml.Source) Driver {
	if source == nil {
		return NoDriver{}
	}
	devices, err := source.Devices()
	return &nvmlDriver{source, devices, err}
}

// visible returns a process's devices by its ordinals, which follow from the environment that it
// started with.
func (d *nvmlDriver) visible(pid int) ([]nvml.Device, error) {
	if d.err != nil {
		return nil, d.err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil, err
	}
	return nvml.Visible(d.devices, func(name string) (string, bool) {
		for variable := range bytes.SplitSeq(text, []byte{0}) {
			if value, ok := bytes.CutPrefix(variable, []byte(name+"=")); ok {
				return string(value), true
			}
		}
		return "", false
	})
}

// device returns a process's device by its ordinal.
func (d *nvmlDriver) device(pid, ordinal int) (nvml.Device, error) {
	devices, err := d.visible(pid)
	if err != nil {
		return nvml.Device{}, err
	}
	if ordinal < 0 || ordinal >= len(devices) {
		return nvml.Device{}, fmt.Errorf("process %d has no device %d", pid, ordinal)
	}
	return devices[ordinal], nil
}

func (d *nvmlDriver) UUID(pid, ordinal int) (string, error) {
	device, err := d.device(pid, ordinal)
	return device.UUID, err
}

func (d *nvmlDriver) Memory(pid, ordinal int) (used, total alloc.Bytes, err error) {
	device, err := d.device(pid, ordinal)
	if err != nil {
		return 0, 0, err
	}
	var readings [1]nvml.Reading
	d.source.Read([]nvml.Device{device}, []nvml.Quantity{nvml.MemoryUsed, nvml.MemoryTotal}, readings[:])
	inUse, known := readings[0].Value(nvml.MemoryUsed)
	all, also := readings[0].Value(nvml.MemoryTotal)
	if err := readings[0].Err; err != nil {
		return 0, 0, fmt.Errorf("the driver does not say what is in use: %w", err)
	}
	if !known || !also {
		return 0, 0, errUnknownUse
	}
	return alloc.Bytes(inUse), alloc.Bytes(all), nil
}

func (d *nvmlDriver) Held(pid int) (map[int]alloc.Bytes, error) {
	devices, err := d.visible(pid)
	if err != nil {
		return nil, err
	}
	held := make(map[int]alloc.Bytes)
	for ordinal, device := range devices {
		bytes, err := nvml.MemoryOf(d.source, device, nvml.Target{PID: pid})
		if err != nil {
			return nil, err
		}
		if bytes > 0 {
			held[ordinal] = bytes
		}
	}
	return held, nil
}
