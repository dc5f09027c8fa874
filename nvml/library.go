//go:build cgo && linux

package nvml

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// library is the driver's library, libnvidia-ml.so.1, through go-nvml.
//
// A function that the installed driver lacks, called all the same, ends the
// whole process ("symbol lookup error", exit 127), and so does any call after
// an Init that failed. So the names are looked up once, at the start, and every
// call asks has first. A library that is closed is not called either.
type library struct {
	api     nvml.Interface
	name    string
	present map[string]bool

	use    sync.RWMutex // held for reading around calls, for writing to close
	closed bool

	mu      sync.RWMutex
	handles map[string]*handle // by UUID
}

// handle is a device as the library knows it, with what it was seen to lack,
// so that what is not supported is asked once and no more.
type handle struct {
	nvml.Device
	lacks  atomic.Uint32 // Quantities
	memory atomic.Uint32 // the memoryQuery that has answered
}

// memoryQuery is where a device's memory figures come from.
type memoryQuery = uint32

const (
	untried memoryQuery = iota
	newerQuery
	olderQuery
	hostMemoryQuery // it has no memory of its own
)

// functions are those called, each with the versions that go-nvml tries.
var functions = map[string][]string{
	"nvmlInit":                                {"", "_v2"},
	"nvmlShutdown":                            {""},
	"nvmlSystemGetDriverVersion":              {""},
	"nvmlDeviceGetCount":                      {"", "_v2"},
	"nvmlDeviceGetHandleByIndex":              {"", "_v2"},
	"nvmlDeviceGetUUID":                       {""},
	"nvmlDeviceGetName":                       {""},
	"nvmlDeviceGetPciInfo":                    {"", "_v2", "_v3"},
	"nvmlDeviceGetMemoryInfo":                 {""},
	"nvmlDeviceGetMemoryInfo_v2":              {""},
	"nvmlDeviceGetUtilizationRates":           {""},
	"nvmlDeviceGetPowerUsage":                 {""},
	"nvmlDeviceGetTemperature":                {""},
	"nvmlDeviceGetFanSpeed":                   {""},
	"nvmlDeviceGetClockInfo":                  {""},
	"nvmlDeviceGetMigMode":                    {""},
	"nvmlDeviceGetMaxMigDeviceCount":          {""},
	"nvmlDeviceGetMigDeviceHandleByIndex":     {""},
	"nvmlDeviceGetComputeRunningProcesses":    {"", "_v2", "_v3"},
	"nvmlDeviceGetGraphicsRunningProcesses":   {"", "_v2", "_v3"},
	"nvmlDeviceGetMPSComputeRunningProcesses": {"", "_v2", "_v3"},
}

// essential are the functions without which there is no device to speak of.
var essential = []string{"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName"}

// OpenLibrary opens the driver's library, libnvidia-ml.so.1 if path is empty.
// The library is opened at run time: a program that was built with it starts on
// a machine without a GPU. A process can have one such library only; a second
// one, of another path, would be answered by the first. After Close its methods
// fail with alloc.ErrClosed.
func OpenLibrary(path string) (Source, error) {
	if path == "" {
		path = "libnvidia-ml.so.1"
	}
	present, err := lookup(path)
	if err != nil {
		return nil, err
	}
	return newLibrary(nvml.New(nvml.WithLibraryPath(path)), present)
}

// lookup opens the library before go-nvml does, which calls Init unseen and
// keeps the loader's own words to itself.
func lookup(path string) (map[string]bool, error) {
	lib := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := lib.Open(); err != nil {
		return nil, notAvailable("%v", err)
	}
	defer lib.Close()
	present := presentIn(lib.Lookup)
	for _, name := range essential {
		if !present[name] {
			return nil, notAvailable("%s has no %s: it is no NVML, or a very old one", path, name)
		}
	}
	return present, nil
}

func presentIn(lookup func(string) error) map[string]bool {
	present := make(map[string]bool, len(functions))
	for name, versions := range functions {
		for _, v := range versions {
			present[name] = present[name] || lookup(name+v) == nil
		}
	}
	return present
}

// newLibrary initialises the library. If that fails nothing is called any more.
func newLibrary(api nvml.Interface, present map[string]bool) (*library, error) {
	if err := check("nvmlInit_v2", api.Init()); err != nil {
		return nil, notAvailable("%v", err)
	}
	l := &library{api: api, name: "NVML", present: present, handles: make(map[string]*handle)}
	if l.has("nvmlSystemGetDriverVersion") {
		if v, ret := api.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			l.name = "NVML, driver " + v
		}
	}
	return l, nil
}

func (l *library) has(function string) bool { return l.present[function] }

func (l *library) Name() string { return l.name }

// Close waits for the calls that are under way. Closing twice does no harm.
func (l *library) Close() error {
	l.use.Lock()
	defer l.use.Unlock()
	if l.closed || !l.has("nvmlShutdown") {
		l.closed = true
		return nil
	}
	l.closed = true
	return check("nvmlShutdown", l.api.Shutdown())
}

// check makes an error of what a call returned, without asking the library for
// its text (a missing nvmlErrorString would end the process).
func check(function string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &CallError{Function: function, Code: int(ret)}
}

var errLibraryClosed = fmt.Errorf("nvml: asking the driver: %w", alloc.ErrClosed)

func (l *library) Devices() ([]Device, error) {
	l.use.RLock()
	defer l.use.RUnlock()
	if l.closed {
		return nil, errLibraryClosed
	}
	n, ret := l.api.DeviceGetCount()
	if err := check("nvmlDeviceGetCount_v2", ret); err != nil {
		return nil, fmt.Errorf("counting the GPUs: %w", err)
	}
	var devices []Device
	for i := range n {
		d := Device{Index: i}
		dev, ret := l.api.DeviceGetHandleByIndex(i)
		err := check("nvmlDeviceGetHandleByIndex_v2", ret)
		if err == nil {
			d, err = l.describe(dev, d)
		}
		if err != nil { // a GPU that fell off the bus, or that this user may not open
			d = Device{Index: i, Name: "GPU that does not answer", UUID: fmt.Sprintf("unknown-%d", i)}
			l.remember(d.UUID, nil)
			devices = append(devices, d)
			continue
		}
		devices = append(devices, d)
		devices = append(devices, l.migDevices(dev, d)...)
	}
	return devices, nil
}

func (l *library) describe(dev nvml.Device, d Device) (Device, error) {
	uuid, ret := dev.GetUUID()
	if err := check("nvmlDeviceGetUUID", ret); err != nil {
		return d, fmt.Errorf("GPU %d: %w", d.Index, err)
	}
	d.UUID = uuid
	if name, ret := dev.GetName(); ret == nvml.SUCCESS {
		d.Name = name
	}
	if l.has("nvmlDeviceGetPciInfo") && d.Parent == "" {
		if pci, ret := dev.GetPciInfo(); ret == nvml.SUCCESS {
			d.BusID = cString(pci.BusId[:])
		}
	}
	l.remember(uuid, dev)
	return d, nil
}

func (l *library) migDevices(gpu nvml.Device, parent Device) []Device {
	if !l.has("nvmlDeviceGetMigMode") || !l.has("nvmlDeviceGetMaxMigDeviceCount") || !l.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	if current, _, ret := gpu.GetMigMode(); ret != nvml.SUCCESS || current != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	n, ret := gpu.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var devices []Device
	for i := range n {
		mig, ret := gpu.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a place that no MIG device was made in
		}
		d := Device{Index: parent.Index, BusID: parent.BusID, Parent: parent.UUID, MIG: len(devices) + 1}
		if d, err := l.describe(mig, d); err == nil {
			devices = append(devices, d)
		}
	}
	return devices
}

func (l *library) remember(uuid string, dev nvml.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, ok := l.handles[uuid]; ok && h.Device == dev {
		return
	}
	l.handles[uuid] = &handle{Device: dev}
}

func (l *library) handle(d Device) (*handle, error) {
	l.mu.RLock()
	h, ok := l.handles[d.UUID]
	l.mu.RUnlock()
	if !ok || h.Device == nil {
		return nil, errNoHandle
	}
	return h, nil
}

var errNoHandle = &CallError{Function: "nvmlDeviceGetHandleByIndex_v2", Code: codeLost}

func cString[Char int8 | uint8](chars []Char) string { // go-nvml has had both
	b := make([]byte, 0, len(chars))
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
