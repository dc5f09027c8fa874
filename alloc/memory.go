package alloc

import (
	"fmt"
	"slices"
	"strings"
)

// Memory is a type of memory: which call of a driver allocates it, and where it lies. The zero
// Memory is not known.
type Memory uint8

// The types of memory. The driver's calls are in parentheses.
const (
	// UnknownMemory is used by sources that do not tell the type, such as files of earlier
	// versions.
	UnknownMemory Memory = iota
	// DeviceMemory is plain memory of the device (cuMemAlloc).
	DeviceMemory
	// PoolMemory is of a stream-ordered pool (cuMemAllocAsync).
	PoolMemory
	// ManagedMemory moves between the host and the device, page by page (cuMemAllocManaged). Totals
	// count all of it as device memory, because the driver does not say where its pages are.
	ManagedMemory
	// PinnedMemory is host memory that does not move, for fast copies (cuMemHostAlloc).
	PinnedMemory
	// MappedMemory is pinned host memory that kernels reach by an address of the device
	// (cuMemHostAlloc with CU_MEMHOSTALLOC_DEVICEMAP, cuMemHostRegister).
	MappedMemory
	// VirtualMemory is memory of the device that was mapped to reserved addresses (cuMemMap).
	VirtualMemory
	// ArrayMemory is a CUDA array, for textures and surfaces (cuArrayCreate).
	ArrayMemory
	// ImportedMemory is of another process's device memory (cuIpcOpenMemHandle).
	ImportedMemory

	memories
)

var memoryNames = [memories]string{
	"unknown", "device", "pool", "managed", "pinned", "mapped", "virtual", "array", "imported",
}

// Memories returns every type of memory that is known, in the order of reports.
func Memories() []Memory {
	var all []Memory
	for m := DeviceMemory; m < memories; m++ {
		all = append(all, m)
	}
	return all
}

// OnHost reports whether the memory is the host's. It takes none of the device's.
func (m Memory) OnHost() bool { return m == PinnedMemory || m == MappedMemory }

// valid reports whether m is one of the kinds, or UnknownMemory.
func (m Memory) valid() bool { return m < memories }

// String returns the type's name: "pinned".
func (m Memory) String() string {
	if !m.valid() {
		return fmt.Sprintf("Memory(%d)", uint8(m))
	}
	return memoryNames[m]
}

// MarshalText writes the type's name.
func (m Memory) MarshalText() ([]byte, error) {
	if !m.valid() {
		return nil, fmt.Errorf("memory %d: there is no such kind", uint8(m))
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads a name that String returns. Any other name is an error.
func (m *Memory) UnmarshalText(text []byte) error {
	i := slices.Index(memoryNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("parse memory %q: want one of %s", text, strings.Join(memoryNames[:], ", "))
	}
	*m = Memory(i)
	return nil
}
