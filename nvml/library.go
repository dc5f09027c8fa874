//go:build linux

package nvml

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

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

// api is the library's functions, whoever calls them. An int is the library's code.
type api interface {
	init() int
	shutdown() int
	driverVersion() (string, int)
	count() (int, int)
	byIndex(i int) (gpu, int)
}

// gpu is a device of the library, or a MIG device.
type gpu interface {
	uuid() (string, int)
	name() (string, int)
	busID() (string, int)
	migEnabled() (bool, int)
	maxMIG() (int, int)
	mig(i int) (gpu, int)
	memory() (deviceMemory, int)
	memoryV2() (deviceMemory, int)
	sensor(q Quantity) (uint32, int) // for the quantities in sensorFunctions
	processes(function string) ([]runningProcess, int)
	busy(since uint64) ([]busyProcess, int) // since is in microseconds of the Unix time
}

type deviceMemory struct{ total, reserved, free, used uint64 }

type runningProcess struct {
	pid  uint32
	used uint64 // 2^64-1: not available
}

// busyProcess is how many percent of the multiprocessors a process used.
type busyProcess struct{ pid, percent uint32 }

// handle is a device as the library knows it. It remembers what the device lacks, so that what
// is not supported is asked for once only.
type handle struct {
	gpu
	err   error         // why it does not answer at all
	lacks atomic.Uint32 // a quantitySet
	query atomic.Uint32 // the memoryQuery that has answered
}

// memoryQuery is where a device's memory values come from.
type memoryQuery = uint32

const (
	untried memoryQuery = iota
	newerQuery
	olderQuery
	hostMemoryQuery // it has no memory of its own
)

// functions are the library's functions that are called, each with its versions, older ones first.
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
	"nvmlDeviceGetProcessUtilization":         {""},
}

// essential are the functions that a library must have to be of any use.
var essential = []string{"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName"}

// presentIn looks the functions up, and says which of the essential ones is missing.
func presentIn(path string, has func(name string) bool) (map[string]bool, error) {
	present := make(map[string]bool, len(functions))
	for name, versions := range functions {
		for _, v := range versions {
			present[name] = present[name] || has(name+v)
		}
	}
	for _, name := range essential {
		if !present[name] {
			return nil, notAvailable("%s has no %s: it is not NVML, or a very old version", path, name)
		}
	}
	return present, nil
}

var sensorFunctions = [numQuantities]string{
	Utilization:   "nvmlDeviceGetUtilizationRates",
	Power:         "nvmlDeviceGetPowerUsage",
	Temperature:   "nvmlDeviceGetTemperature",
	FanSpeed:      "nvmlDeviceGetFanSpeed",
	ClockGraphics: "nvmlDeviceGetClockInfo",
	ClockMemory:   "nvmlDeviceGetClockInfo",
	ClockSM:       "nvmlDeviceGetClockInfo",
	ClockVideo:    "nvmlDeviceGetClockInfo",
}

// clocks are the numbers of nvmlClockType_t.
var clocks = [numQuantities]uint32{ClockGraphics: 0, ClockSM: 1, ClockMemory: 2, ClockVideo: 3}

func (l *library) Read(devices []Device, wanted []Quantity, into []Reading) {
	want := setOf(wanted...)
	l.use.RLock()
	defer l.use.RUnlock()
	for i := range devices {
		r := &into[i]
		r.reset(devices[i])
		if l.closed {
			r.Err = errLibraryClosed
			continue
		}
		h, err := l.handle(devices[i])
		if err != nil {
			r.Err = err
			continue
		}
		if want&memoryQuants != 0 {
			l.readMemory(h, r)
		}
		if rest := want &^ memoryQuants; rest != 0 && r.Err == nil {
			l.readSensors(h, rest, r)
		}
	}
}

// readMemory tries the newer query, which reports the driver's own part apart from the used memory,
// and then the older one, which counts it as used. If neither is supported, the GPU shares the
// host's memory. It keeps to the query that has answered once, because the other one counts
// differently.
func (l *library) readMemory(h *handle, r *Reading) {
	query := h.query.Load()
	if query == hostMemoryQuery {
		readHost(r)
		return
	}
	newer := &callError{function: "nvmlDeviceGetMemoryInfo_v2", code: codeFunctionNotFound}
	if l.has("nvmlDeviceGetMemoryInfo_v2") && query != olderQuery {
		m, ret := h.memoryV2()
		if ret == codeSuccess {
			h.query.Store(newerQuery)
			r.setMemory(m.total, m.used, m.free, ofDevice)
			r.Set(DriverReserved, float64(m.reserved))
			return
		}
		newer.code = ret
		if query == newerQuery || !worthTryingOlder(newer.code) {
			r.Err = newer
			return
		}
	}
	if !l.has("nvmlDeviceGetMemoryInfo") {
		r.Err = newer
		return
	}
	m, ret := h.memory()
	switch err := check("nvmlDeviceGetMemoryInfo", ret); {
	case err == nil:
		h.query.Store(olderQuery)
		r.setMemory(m.total, m.used, m.free, ofDeviceAndDriver)
	case ret == codeNotSupported && query == untried:
		if readHost(r) {
			h.query.Store(hostMemoryQuery)
		}
	default:
		r.Err = err
	}
}

// worthTryingOlder reports whether a failure of the newer query can be the
// query's own: under WSL it was seen to fail with the driver's unknown error.
func worthTryingOlder(code int) bool {
	switch code {
	case codeNotSupported, codeFunctionNotFound, codeInvalidArgument, codeVersionMismatch, codeUnknown:
		return true
	}
	return false
}

// readSensors asks one call a quantity. One that is not supported is missing
// from then on; another failure leaves it out this time, and a lost device is
// an error of the reading.
func (l *library) readSensors(h *handle, want quantitySet, r *Reading) {
	lacks := quantitySet(h.lacks.Load())
	for q := Utilization; q < numQuantities; q++ {
		if !want.has(q) || lacks.has(q) {
			continue
		}
		v, function, ret := l.readSensor(h, q)
		switch ret {
		case codeSuccess:
			r.Set(q, v)
		case codeNotSupported, codeFunctionNotFound:
			h.lacks.Or(1 << q)
		case codeLost, codeResetRequired:
			r.Err = check(function, ret)
			return
		}
	}
}

func (l *library) readSensor(h *handle, q Quantity) (v float64, function string, code int) {
	function = sensorFunctions[q]
	if !l.has(function) {
		return 0, function, codeFunctionNotFound
	}
	n, code := h.sensor(q)
	if q == Power { // mW
		return float64(n) / 1000, function, code
	}
	return float64(n), function, code
}

// Processes merges the lists of compute, graphics and MPS processes. A process
// that computes and draws is in two of them, with the same memory.
func (l *library) Processes(d Device) (map[int]alloc.Bytes, error) {
	l.use.RLock()
	defer l.use.RUnlock()
	if l.closed {
		return nil, errLibraryClosed
	}
	h, err := l.handle(d)
	if err != nil {
		return nil, err
	}
	var all []runningProcess
	failed := error(&callError{function: processFunctions[0], code: codeFunctionNotFound})
	answered := false
	for _, function := range processFunctions {
		if !l.has(function) {
			continue
		}
		running, code := h.processes(function)
		if err := check(function, code); err != nil {
			failed = err
			continue
		}
		answered = true
		all = append(all, running...)
	}
	if !answered {
		return nil, failed
	}
	return mergeProcesses(all)
}

var processFunctions = []string{
	"nvmlDeviceGetComputeRunningProcesses",
	"nvmlDeviceGetGraphicsRunningProcesses",
	"nvmlDeviceGetMPSComputeRunningProcesses",
}

func mergeProcesses(infos []runningProcess) (map[int]alloc.Bytes, error) {
	list := make(map[int]alloc.Bytes, len(infos))
	for _, info := range infos {
		if info.pid == 0 || info.pid > maxPID { // early R535 drivers added a field to the entries, and kept their version
			return nil, fmt.Errorf("the driver's process list cannot be read (known of early R535 drivers): %w", errNoValue)
		}
		memory := alloc.Bytes(-1)
		if info.used <= math.MaxInt64 { // 2^64-1 says "not available"
			memory = bytesOf(info.used)
		}
		if before, ok := list[int(info.pid)]; ok {
			memory = max(memory, before)
		}
		list[int(info.pid)] = memory
	}
	return list, nil
}

// busy asks for the last second. For some GPUs a driver answers with an empty list, which means
// unknown and not zero. If the list has one process, the others did nothing.
func (l *library) busy(d Device) (map[int]float64, error) {
	const function = "nvmlDeviceGetProcessUtilization"
	l.use.RLock()
	defer l.use.RUnlock()
	if l.closed {
		return nil, errLibraryClosed
	}
	h, err := l.handle(d)
	if err != nil {
		return nil, err
	}
	if !l.has(function) {
		return nil, &callError{function: function, code: codeFunctionNotFound}
	}
	samples, code := h.busy(uint64(time.Now().Add(-time.Second).UnixMicro()))
	if code == codeNotFound {
		return nil, fmt.Errorf("%s: %w", function, errNoSample)
	}
	if err := check(function, code); err != nil {
		return nil, err
	}
	all := make(map[int]float64, len(samples))
	for _, s := range samples {
		if s.pid != 0 && s.pid <= maxPID && s.percent <= 100 { // some drivers give entries that nobody wrote
			all[int(s.pid)] = max(all[int(s.pid)], float64(s.percent))
		}
	}
	return all, nil
}
