package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
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

// nvmlDriver asks NVML, which numbers devices by the machine.
type nvmlDriver struct {
	source  nvml.Source
	devices []nvml.Device
	err     error
}

// NewDriver returns the driver of a source; one that knows nothing if it is nil.
func NewDriver(source nvml.Source) Driver {
	if source == nil {
		return &nvmlDriver{err: ErrNoDriver}
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

// Accuracy is what is known of how accurate the ledgers are. It is guarded by the caller's lock.
type Accuracy struct {
	Start        time.Time // the time that the times of warnings count from
	UnknownFrees uint64    // frees of addresses that are in no ledger
	LostEvents   uint64    // that the ring buffer had no room for
	LostSince    time.Time // time of the first: the ledgers are inaccurate from then on
	warnings     []accuracyWarning
}

// accuracyWarning is a reason why the ledgers may be inaccurate from a moment on.
type accuracyWarning struct {
	since  time.Time
	reason string
}

const maxWarnings = 16

// Warn records a reason why the ledgers may be inaccurate, once.
func (a *Accuracy) Warn(now time.Duration, reason string) {
	if len(a.warnings) < maxWarnings && !slices.ContainsFunc(a.warnings, func(d accuracyWarning) bool { return d.reason == reason }) {
		a.warnings = append(a.warnings, accuracyWarning{a.Start.Add(now), reason})
	}
}

// Texts returns the warnings as sentences with their times.
func (a *Accuracy) Texts() (all []string) {
	const clock = "15:04:05.000"
	if a.LostEvents > 0 {
		all = append(all, fmt.Sprintf("from %s on the ledger is not exact: %d events were lost: give a larger ring buffer (--ring-buffer, Config.RingBufferBytes)", a.LostSince.Format(clock), a.LostEvents))
	}
	for _, d := range a.warnings {
		all = append(all, fmt.Sprintf("from %s on the ledger may not be exact: %s", d.since.Format(clock), d.reason))
	}
	if a.UnknownFrees > 0 {
		all = append(all, fmt.Sprintf("%d frees were of memory that is not in the ledger: from before the process was watched, or of a function that is not watched", a.UnknownFrees))
	}
	return all
}
