package ledger

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Device is a device's ordinal in its process, or one of these.
type Device int

const (
	HostMemory    Device = -1
	UnknownDevice Device = -2 // the context was made before the process was watched
	LibraryMemory Device = -3 // Memory of a library in a process that uses no device, or host memory of a library
)

// BlocksOf is added to a device's ordinal for the blocks of a caching allocator, whose segments count
// under the ordinal itself.
const BlocksOf Device = 1 << 16

// Ordinal is the device's number in its process; 0 if it has none.
func (d Device) Ordinal() int {
	if d >= BlocksOf {
		d -= BlocksOf
	}
	return max(0, int(d))
}

// Name is the name of the device in reports.
func (d Device) Name() string {
	if d >= BlocksOf {
		return "PyTorch's blocks, GPU"
	}
	switch d {
	case HostMemory:
		return "Pinned host memory"
	case UnknownDevice:
		return "GPU of unknown number"
	case LibraryMemory:
		return "Memory of a library"
	}
	return "GPU"
}

// Short is the device in a source's name.
func (d Device) Short() string {
	if d >= BlocksOf {
		return fmt.Sprintf("gpu%d-blocks", d.Ordinal())
	}
	switch d {
	case HostMemory:
		return "host"
	case UnknownDevice:
		return "gpu"
	case LibraryMemory:
		return "library"
	}
	return fmt.Sprintf("gpu%d", int(d))
}

// Memory returns the type of memory of a source that has a single one other than device memory.
func (d Device) Memory() alloc.Memory {
	if d == HostMemory {
		return alloc.PinnedMemory
	}
	return alloc.UnknownMemory
}

// Rank orders blocks before their segments, and host memory after all devices.
func (d Device) Rank() int {
	switch {
	case d == HostMemory:
		return 0
	case d >= BlocksOf:
		return 2
	}
	return 1
}

// Prior is what a process used before it was watched.
type Prior struct {
	usage       map[Device]alloc.Bytes
	Known       bool
	UnseenCalls bool // its earlier calls were not seen: contexts may exist
}

// mayHaveContexts reports whether the process may have contexts that it made before it was watched.
func (p *Prior) mayHaveContexts() bool {
	return p != nil && p.UnseenCalls && !(p.Known && len(p.usage) == 0)
}

// ReadPrior asks the driver what a process uses. It may be slow.
func ReadPrior(d Driver, pid int) *Prior {
	p := &Prior{usage: make(map[Device]alloc.Bytes)}
	held, err := d.Held(pid)
	for ordinal, bytes := range held {
		p.usage[Device(ordinal)] = bytes
	}
	p.Known = err == nil
	return p
}

// device returns the device of earlier contexts: the only one that was in use then.
func (p *Prior) device() Device {
	if p == nil || !p.Known || len(p.usage) != 1 {
		return UnknownDevice
	}
	for d := range p.usage {
		return d
	}
	return UnknownDevice
}

// On returns the bytes that the process used on a device; -1 if unknown.
func (p *Prior) On(d Device) alloc.Bytes {
	switch {
	case p == nil:
		return 0
	case !p.Known || d == HostMemory || d >= BlocksOf:
		return -1
	case d != UnknownDevice:
		return p.usage[d]
	}
	var all alloc.Bytes
	for _, bytes := range p.usage {
		all += bytes
	}
	if all == 0 { // it has a context from before, so the driver does not tell all
		return -1
	}
	return all
}
