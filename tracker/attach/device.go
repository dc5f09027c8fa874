package attach

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// deviceID is a device's ordinal in its process, or one of these.
type deviceID int

const (
	hostMemory    deviceID = -1
	unknownDevice deviceID = -2 // the context was made before the watcher came
)

func (d deviceID) name() string {
	switch d {
	case hostMemory:
		return "Pinned host memory"
	case unknownDevice:
		return "GPU of unknown number"
	}
	return "GPU"
}

// short is the device in a source's name.
func (d deviceID) short() string {
	switch d {
	case hostMemory:
		return "host"
	case unknownDevice:
		return "gpu"
	}
	return fmt.Sprintf("gpu%d", int(d))
}

// memory is the kind of all memory of a source, if it has only one that is not the device's.
func (d deviceID) memory() alloc.Memory {
	if d == hostMemory {
		return alloc.PinnedMemory
	}
	return alloc.UnknownMemory
}

// rank puts the host's memory behind that of devices.
func (d deviceID) rank() int {
	if d == hostMemory {
		return 0
	}
	return 1
}
