//go:build linux

package nvml

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/gpumemtrack/gpumemtrack/internal/dylib"
)

// direct is the library's functions, called without go-nvml: each in its newest version.
type direct struct {
	functions map[string]versionedFunc
}

type versionedFunc struct {
	dylib.Func
	version string // "_v2"
}

// loadDirectly loads the library in builds without cgo, which go-nvml needs.
func loadDirectly(path string) (api, map[string]bool, error) {
	lib, err := dylib.Open(path)
	if err != nil {
		return nil, nil, notAvailable("%v", err)
	}
	present, err := presentIn(path, func(name string) bool { return lib.Func(name) != 0 })
	if err != nil {
		return nil, nil, err
	}
	d := &direct{make(map[string]versionedFunc)}
	for name, versions := range functions {
		for _, version := range slices.Backward(versions) {
			if f := lib.Func(name + version); f != 0 {
				d.functions[name] = versionedFunc{f, version}
				break
			}
		}
	}
	return d, present, nil
}

// call calls a function that the library has; the rules are dylib.Func's.
//
//go:uintptrescapes
func (d *direct) call(function string, args ...uintptr) int {
	return int(d.functions[function].Call(args...))
}

func (d *direct) init() int     { return d.call("nvmlInit") }
func (d *direct) shutdown() int { return d.call("nvmlShutdown") }

func (d *direct) driverVersion() (string, int) {
	var s [80]byte // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
	code := d.call("nvmlSystemGetDriverVersion", uintptr(unsafe.Pointer(&s)), uintptr(len(s)))
	return cString(s[:]), code
}

func (d *direct) count() (int, int) {
	var n uint32
	code := d.call("nvmlDeviceGetCount", uintptr(unsafe.Pointer(&n)))
	return int(n), code
}

func (d *direct) byIndex(i int) (gpu, int) {
	var handle uintptr
	code := d.call("nvmlDeviceGetHandleByIndex", uintptr(i), uintptr(unsafe.Pointer(&handle)))
	return directGPU{d, handle}, code
}

// directGPU is an nvmlDevice_t. The structures below are laid out as the library's.
type directGPU struct {
	*direct
	handle uintptr
}

func (g directGPU) uuid() (string, int) { return g.text("nvmlDeviceGetUUID") }
func (g directGPU) name() (string, int) { return g.text("nvmlDeviceGetName") }

func (g directGPU) text(function string) (string, int) {
	var s [96]byte // NVML_DEVICE_UUID_V2_BUFFER_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE
	code := g.call(function, g.handle, uintptr(unsafe.Pointer(&s)), uintptr(len(s)))
	return cString(s[:]), code
}

func (g directGPU) busID() (string, int) {
	var pci struct {
		legacy                                     [16]byte
		domain, bus, device, deviceID, subSystemID uint32
		busID                                      [32]byte
	}
	code := g.call("nvmlDeviceGetPciInfo", g.handle, uintptr(unsafe.Pointer(&pci)))
	return cString(pci.busID[:]), code
}

func (g directGPU) migEnabled() (bool, int) {
	var current, pending uint32
	code := g.call("nvmlDeviceGetMigMode", g.handle, uintptr(unsafe.Pointer(&current)), uintptr(unsafe.Pointer(&pending)))
	return current == 1, code
}

func (g directGPU) maxMIG() (int, int) {
	n, code := g.number("nvmlDeviceGetMaxMigDeviceCount")
	return int(n), code
}

func (g directGPU) mig(i int) (gpu, int) {
	var handle uintptr
	code := g.call("nvmlDeviceGetMigDeviceHandleByIndex", g.handle, uintptr(i), uintptr(unsafe.Pointer(&handle)))
	return directGPU{g.direct, handle}, code
}

func (g directGPU) memory() (deviceMemory, int) {
	var m struct{ total, free, used uint64 }
	code := g.call("nvmlDeviceGetMemoryInfo", g.handle, uintptr(unsafe.Pointer(&m)))
	return deviceMemory{total: m.total, free: m.free, used: m.used}, code
}

func (g directGPU) memoryV2() (deviceMemory, int) {
	var m struct {
		version                     uint32
		total, reserved, free, used uint64
	}
	m.version = uint32(unsafe.Sizeof(m)) | 2<<24
	code := g.call("nvmlDeviceGetMemoryInfo_v2", g.handle, uintptr(unsafe.Pointer(&m)))
	return deviceMemory{total: m.total, reserved: m.reserved, free: m.free, used: m.used}, code
}

func (g directGPU) sensor(q Quantity) (uint32, int) {
	function := sensorFunctions[q]
	switch q {
	case Utilization:
		var u struct{ gpu, memory uint32 }
		code := g.call(function, g.handle, uintptr(unsafe.Pointer(&u)))
		return u.gpu, code
	case Temperature:
		const ofGPU = 0
		return g.number(function, ofGPU)
	case ClockGraphics, ClockMemory, ClockSM, ClockVideo:
		return g.number(function, uintptr(clocks[q]))
	}
	return g.number(function)
}

// number calls a function that returns a number, with at most one argument before the result.
func (g directGPU) number(function string, of ...uintptr) (uint32, int) {
	var n uint32
	if len(of) == 0 {
		code := g.call(function, g.handle, uintptr(unsafe.Pointer(&n)))
		return n, code
	}
	code := g.call(function, g.handle, of[0], uintptr(unsafe.Pointer(&n)))
	return n, code
}

func (g directGPU) processes(function string) ([]runningProcess, int) {
	if g.functions[function].version == "" {
		return listed(g, function, func(p runningProcess) runningProcess { return p })
	}
	type newer struct {
		runningProcess
		_ [2]uint32 // the GPU instance and the compute instance
	}
	return listed(g, function, func(p newer) runningProcess { return p.runningProcess })
}

// listed asks with room for more, until the list of P fits.
func listed[P any](g directGPU, function string, running func(P) runningProcess) ([]runningProcess, int) {
	for room := uint32(16); ; room *= 2 {
		list, n := make([]P, room), room
		code := g.call(function, g.handle, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(unsafe.SliceData(list))))
		if code == codeInsufficientSize {
			continue
		}
		var all []runningProcess
		if code == codeSuccess {
			for _, p := range list[:min(n, room)] {
				all = append(all, running(p))
			}
		}
		return all, code
	}
}

func (g directGPU) busy(since uint64) ([]busyProcess, int) {
	type sample struct {
		pid             uint32
		_               uint32 // C aligns the next field to 8 bytes, also on 32-bit systems
		time            uint64
		multiprocessors uint32
		_               [3]uint32 // the memory, the encoder and the decoder
	}
	for room := uint32(16); ; room *= 2 {
		list, n := make([]sample, room), room
		code := g.call("nvmlDeviceGetProcessUtilization", g.handle, uintptr(unsafe.Pointer(unsafe.SliceData(list))), uintptr(unsafe.Pointer(&n)), uintptr(since))
		if code == codeInsufficientSize {
			continue
		}
		var all []busyProcess
		if code == codeSuccess {
			for _, s := range list[:min(n, room)] {
				all = append(all, busyProcess{s.pid, s.multiprocessors})
			}
		}
		return all, code
	}
}

// cString is the text before the first zero byte.
func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
