package nvml

import (
	"fmt"
	"strconv"
	"strings"
)

// Status is a device and everything that it reports at one moment.
type Status struct {
	Device
	Reading
}

// Devices asks every device of the source for everything it has: memory in total, used, free
// and reserved by the driver, and the sensors. Each may be missing. A device that cannot be
// asked is in the list too, with the reason in Reading.Err. The error is that of
// Source.Devices.
func Devices(src Source) ([]Status, error) {
	devices, err := src.Devices()
	if err != nil {
		return nil, err
	}
	return StatusOf(src, devices), nil
}

// StatusOf asks the given devices for everything they have.
func StatusOf(src Source, devices []Device) []Status {
	readings := make([]Reading, len(devices))
	src.Read(devices, AllQuantities, readings)
	list := make([]Status, len(devices))
	for i, d := range devices {
		list[i] = Status{d, readings[i]}
	}
	return list
}

// ByUUID returns the device with a UUID, which may be cut after enough characters to identify
// it: "GPU-5e2d...", "MIG-...", or without the prefix, in any case. A CUDA ordinal is not an
// index into devices: ask CUDA for the ordinal's UUID. The error says that no device, or more
// than one, has such a UUID.
func ByUUID(devices []Device, uuid string) (Device, error) {
	want := bareUUID(uuid)
	var found []Device
	for _, d := range devices {
		have := bareUUID(d.UUID)
		if have == want {
			return d, nil
		}
		if want != "" && strings.HasPrefix(have, want) && samePrefix(d.UUID, uuid) {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 0:
		return Device{}, fmt.Errorf("UUID %q: %w: `gpumemtrack sensors --json` lists those there are", uuid, ErrNoDevice)
	case 1:
		return found[0], nil
	}
	return Device{}, fmt.Errorf("UUID %q is that of %d devices: write more of it: %w", uuid, len(found), ErrNoDevice)
}

// Pick returns the device with a number, as nvidia-smi prints it, or with a UUID. The error of
// an unknown device lists the devices.
func Pick(devices []Device, name string) (Device, error) {
	index, err := strconv.Atoi(strings.TrimSpace(name))
	if err != nil {
		return ByUUID(devices, name)
	}
	for _, d := range devices {
		if d.Index == index && d.Parent == "" {
			return d, nil
		}
	}
	return Device{}, fmt.Errorf("GPU %d: %w: %s", index, ErrNoDevice, numbersOf(devices))
}

func numbersOf(devices []Device) string {
	switch last := len(devices) - 1; last {
	case -1:
		return "there is none"
	case 0:
		return fmt.Sprintf("the only one is %d", devices[0].Index)
	default:
		return fmt.Sprintf("they are numbered %d to %d", devices[0].Index, devices[last].Index)
	}
}

func bareUUID(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	s = strings.TrimPrefix(s, "gpu-")
	return strings.TrimPrefix(s, "mig-")
}

// samePrefix reports whether a UUID that says what it is of says the same as have.
func samePrefix(have, want string) bool {
	kind, _, ok := strings.Cut(strings.ToUpper(strings.TrimSpace(want)), "-")
	return !ok || (kind != "GPU" && kind != "MIG") || strings.HasPrefix(strings.ToUpper(have), kind)
}
