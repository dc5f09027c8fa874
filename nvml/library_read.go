//go:build linux

package nvml

import (
	"fmt"
	"math"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

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
			return nil, fmt.Errorf("the driver's process list cannot be read (known of early R535 drivers): %w", errNoFigure)
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
