package watch

import (
	"bytes"
	"fmt"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Driver is an attach.Driver that asks NVML, if a driver answers.
type Driver struct {
	source  nvml.Source // nil if none answers
	devices []nvml.Device
	err     error
}

// OpenDriver opens the driver, if there is one. Otherwise no figure is known.
func OpenDriver() *Driver {
	d := new(Driver)
	if d.source, d.err = nvml.Open(); d.err == nil {
		d.devices, d.err = d.source.Devices()
	}
	return d
}

// Close closes the driver.
func (d *Driver) Close() {
	if d.source != nil {
		d.source.Close()
	}
}

// visible returns a process's devices by its own ordinals, which follow from the environment that
// it started with.
func (d *Driver) visible(pid int) ([]nvml.Device, error) {
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
func (d *Driver) device(pid, ordinal int) (nvml.Device, error) {
	devices, err := d.visible(pid)
	if err != nil {
		return nvml.Device{}, err
	}
	if ordinal < 0 || ordinal >= len(devices) {
		return nvml.Device{}, fmt.Errorf("process %d has no device %d", pid, ordinal)
	}
	return devices[ordinal], nil
}

// UUID returns the UUID of a process's device.
func (d *Driver) UUID(pid, ordinal int) (string, error) {
	device, err := d.device(pid, ordinal)
	return device.UUID, err
}

// Memory returns what all programs use of a process's device, and the size of its memory.
func (d *Driver) Memory(pid, ordinal int) (used, total alloc.Bytes, err error) {
	device, err := d.device(pid, ordinal)
	if err != nil {
		return 0, 0, err
	}
	var readings [1]nvml.Reading
	d.source.Read([]nvml.Device{device}, []nvml.Quantity{nvml.MemoryUsed, nvml.MemoryTotal}, readings[:])
	used, known := readings[0].Bytes(nvml.MemoryUsed)
	total, also := readings[0].Bytes(nvml.MemoryTotal)
	if !known || !also || readings[0].Err != nil {
		return 0, 0, fmt.Errorf("the driver does not say what is in use: %w", readings[0].Err)
	}
	return used, total, nil
}

// Held returns the memory that a process uses on each of its devices, by ordinal.
func (d *Driver) Held(pid int) (map[int]alloc.Bytes, error) {
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
