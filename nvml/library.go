//go:build linux

package nvml

import (
	"fmt"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// library is the driver's library, libnvidia-ml.so.1: through go-nvml with cgo, and called
// directly without.
//
// With go-nvml, a function that the installed driver lacks, called all the same, ends the
// whole process ("symbol lookup error", exit 127), and so does any call after
// an Init that failed. So the names are looked up once, at the start, and every
// call asks has first. A library that is closed is not called either.
type library struct {
	api     api
	name    string
	present map[string]bool

	use    sync.RWMutex // calls hold it for reading, Close for writing
	closed bool

	mu      sync.RWMutex
	handles map[string]*handle // by UUID
}

// openLibrary opens the driver's library; an empty path means libnvidia-ml.so.1. The library is
// loaded at run time, so a program built with this package starts on a machine without a GPU too.
// After Close, methods return alloc.ErrClosed.
func openLibrary(path string) (Source, error) {
	if path == "" {
		path = "libnvidia-ml.so.1"
	}
	api, present, err := load(path)
	if err != nil {
		return nil, err
	}
	return newLibrary(api, present)
}

// newLibrary initialises the library. If that fails nothing is called any more.
func newLibrary(api api, present map[string]bool) (*library, error) {
	if err := check("nvmlInit_v2", api.init()); err != nil {
		return nil, notAvailable("%v", err)
	}
	l := &library{api: api, name: "NVML", present: present, handles: make(map[string]*handle)}
	if l.has("nvmlSystemGetDriverVersion") {
		if v, ret := api.driverVersion(); ret == codeSuccess {
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
	return check("nvmlShutdown", l.api.shutdown())
}

// check turns the code that a call returned into an error. It does not ask the library for the
// text, since calling a missing nvmlErrorString would end the process.
func check(function string, code int) error {
	if code == codeSuccess {
		return nil
	}
	return &callError{function: function, code: code}
}

var errLibraryClosed = fmt.Errorf("nvml: asking the driver: %w", alloc.ErrClosed)

func (l *library) Devices() ([]Device, error) {
	l.use.RLock()
	defer l.use.RUnlock()
	if l.closed {
		return nil, errLibraryClosed
	}
	n, ret := l.api.count()
	if err := check("nvmlDeviceGetCount_v2", ret); err != nil {
		return nil, fmt.Errorf("counting the GPUs: %w", err)
	}
	var devices []Device
	for i := range n {
		d := Device{Index: i}
		dev, ret := l.api.byIndex(i)
		err := check("nvmlDeviceGetHandleByIndex_v2", ret)
		if err == nil {
			d, err = l.describe(dev, d)
		}
		if err != nil { // a GPU that fell off the bus, or that this user may not open
			d = Device{Index: i, Name: deafName, UUID: fmt.Sprintf("%s%d", unknownPrefix, i)}
			l.remember(d.UUID, &handle{err: err})
			devices = append(devices, d)
			continue
		}
		devices = append(devices, d)
		devices = append(devices, l.migDevices(dev, d)...)
	}
	return devices, nil
}

func (l *library) describe(dev gpu, d Device) (Device, error) {
	uuid, ret := dev.uuid()
	if err := check("nvmlDeviceGetUUID", ret); err != nil {
		return d, fmt.Errorf("GPU %d: %w", d.Index, err)
	}
	d.UUID = uuid
	if name, ret := dev.name(); ret == codeSuccess {
		d.Name = name
	}
	if l.has("nvmlDeviceGetPciInfo") && d.Parent == "" {
		if id, ret := dev.busID(); ret == codeSuccess {
			d.BusID = id
		}
	}
	l.remember(uuid, &handle{gpu: dev})
	return d, nil
}

func (l *library) migDevices(dev gpu, parent Device) []Device {
	if !l.has("nvmlDeviceGetMigMode") || !l.has("nvmlDeviceGetMaxMigDeviceCount") || !l.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	if enabled, ret := dev.migEnabled(); ret != codeSuccess || !enabled {
		return nil
	}
	n, ret := dev.maxMIG()
	if ret != codeSuccess {
		return nil
	}
	var devices []Device
	for i := range n {
		mig, ret := dev.mig(i)
		if ret != codeSuccess {
			continue // a place that no MIG device was made in
		}
		d := Device{Index: parent.Index, BusID: parent.BusID, Parent: parent.UUID, MIG: len(devices) + 1}
		if d, err := l.describe(mig, d); err == nil {
			devices = append(devices, d)
		}
	}
	return devices
}

// remember keeps a device. If it is the same as before, it also keeps the list of queries that the
// device does not support.
func (l *library) remember(uuid string, h *handle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, ok := l.handles[uuid]; ok && before.gpu == h.gpu && h.err == nil {
		return
	}
	l.handles[uuid] = h
}

// handle returns a device that Devices has listed, or why it does not answer.
func (l *library) handle(d Device) (*handle, error) {
	l.mu.RLock()
	h, ok := l.handles[d.UUID]
	l.mu.RUnlock()
	switch {
	case !ok:
		return nil, errNoHandle
	case h.err != nil:
		return nil, h.err
	}
	return h, nil
}

var errNoHandle = &callError{function: "nvmlDeviceGetHandleByIndex_v2", code: codeLost}
