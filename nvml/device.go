package nvml

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Device is a GPU, or a MIG device: a slice of one that looks like a GPU.
type Device struct {
	Index  int    `json:"index"` // the driver's number, as nvidia-smi prints it; of a MIG device, its GPU's number; -1 if it is not known
	UUID   string `json:"uuid"`
	Name   string `json:"name"`
	BusID  string `json:"bus_id,omitempty"` // on the PCI bus: "00000000:3B:00.0"
	Parent string `json:"parent,omitempty"` // UUID of a MIG device's GPU
	MIG    int    `json:"mig,omitempty"`    // number of a MIG device on its GPU, from 1; otherwise 0
	File   string `json:"file,omitempty"`   // the recording that it is in, where several are joined; see Join
}

// The name of a GPU that the driver lists and that does not answer, and the beginning of the text
// that stands for its UUID.
const (
	deafName      = "GPU that does not answer"
	unknownPrefix = "unknown-"
)

// Label returns a short name: "GPU 0", "GPU 0 MIG 2", "run.csv GPU 0" in a recording that Join made. Where the number is not
// known, the bus or the UUID stands for it, or nothing.
func (d Device) Label() string {
	label := "GPU"
	switch prefix := len("GPU-01234567"); {
	case d.Index >= 0:
		label = "GPU " + strconv.Itoa(d.Index)
	case d.BusID != "":
		label = "GPU " + d.BusID
	case len(d.UUID) > prefix && strings.HasPrefix(d.UUID, "GPU-"):
		label = d.UUID[:prefix]
	case d.UUID != "":
		label = "GPU " + d.UUID
	}
	if d.Parent != "" {
		label += " MIG " + strconv.Itoa(d.MIG)
	}
	if d.File != "" {
		label = d.File + " " + label
	}
	return label
}

// String returns the name as gpulink prints it: "NVIDIA TITAN RTX[0]".
func (d Device) String() string {
	if d.Parent == "" {
		return fmt.Sprintf("%s[%d]", d.Name, d.Index)
	}
	return fmt.Sprintf("%s[%d.%d]", d.Name, d.Index, d.MIG)
}

// Scope says what memory values count. "device", or nothing, is the rule: the device's memory, without what the driver
// reserves for itself. "device+driver" and "host" print as a note beside the values.
type Scope string

const (
	ofDevice Scope = "device"
	// ofDeviceAndDriver counts what the driver reserves for itself as used:
	// the older of NVML's two queries, where the newer one fails.
	ofDeviceAndDriver Scope = "device+driver"
	// ofHost counts the machine's main memory. The GPU has no memory of its own, and its driver
	// answers "not supported".
	ofHost Scope = "host"
)

// String returns a note for a label, and nothing for the rule.
func (s Scope) String() string {
	switch s {
	case ofDeviceAndDriver:
		return "with the driver's own part"
	case ofHost:
		return "host memory: the GPU has none of its own"
	}
	return ""
}

// scopeOf reads a scope in a file.
func scopeOf(text string) (Scope, error) {
	switch s := Scope(text); s {
	case ofDevice, ofDeviceAndDriver, ofHost:
		return s, nil
	}
	return "", fmt.Errorf("nvml: no scope %q", text)
}

// Reading is what a device reported at one moment. The zero Reading has no values.
type Reading struct {
	Device
	Err    error `json:"-"`     // why the device could not be asked
	Scope  Scope `json:"scope"` // what the memory values include
	known  quantitySet
	values [numQuantities]float64
}

// reset makes it the Reading of a device, without values.
func (r *Reading) reset(d Device) { r.Device, r.Err, r.Scope, r.known = d, nil, ofDevice, 0 }

// Set sets a value: bytes, percent, watts, degrees Celsius or megahertz.
func (r *Reading) Set(q Quantity, v float64) {
	r.values[q] = v
	r.known |= 1 << q
}

// Value returns the value of a quantity, and whether it is known.
func (r *Reading) Value(q Quantity) (float64, bool) { return r.values[q], r.known.has(q) }

func (r *Reading) bytes(q Quantity) (alloc.Bytes, bool) {
	return alloc.Bytes(r.values[q]), r.known.has(q)
}

// setMemory sets the values of a device's memory that are known. NVML says "not available"
// by the largest number.
func (r *Reading) setMemory(total, used, free uint64, scope Scope) {
	r.Scope = scope
	for q, v := range [...]uint64{MemoryUsed: used, MemoryFree: free, MemoryTotal: total} {
		if v <= math.MaxInt64 {
			r.Set(Quantity(q), float64(v))
		}
	}
}

// readHost reads the host's memory in place of a GPU's, and reports whether it could.
func readHost(r *Reading) bool {
	total, available, ok := hostMemory()
	if !ok {
		r.Err = &callError{function: "nvmlDeviceGetMemoryInfo", code: codeNotSupported}
		return false
	}
	r.setMemory(total, total-available, available, ofHost)
	return true
}

// byUUID returns the device with a UUID, which may be cut after enough characters to identify
// it: "GPU-5e2d...", "MIG-...", or without the prefix, in any case. A CUDA ordinal is not an
// index into devices: ask CUDA for the ordinal's UUID. The error says that no device, or more
// than one, has such a UUID.
func byUUID(devices []Device, uuid string) (Device, error) {
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

// pick returns the device with a number, as nvidia-smi prints it, or with a UUID. If there is no
// such device, the error lists those that exist.
func pick(devices []Device, name string) (Device, error) {
	index, err := strconv.Atoi(strings.TrimSpace(name))
	if err != nil {
		return byUUID(devices, name)
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

// samePrefix reports whether have begins with the same "GPU-" or "MIG-" as want, or want has neither.
func samePrefix(have, want string) bool {
	kind, _, ok := strings.Cut(strings.ToUpper(strings.TrimSpace(want)), "-")
	return !ok || (kind != "GPU" && kind != "MIG") || strings.HasPrefix(strings.ToUpper(have), kind)
}
