//go:build cgo && linux

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (l *library) Read(devices []Device, want Quantities, into []Reading) {
	l.use.RLock()
	defer l.use.RUnlock()
	for i := range devices {
		r := &into[i]
		r.Reset()
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

// readMemory asks the newer query, which keeps the driver's own part apart from
// what is used, then the older one, which counts it as used. Where neither is
// supported the GPU shares the host's memory. What has answered once is asked
// from then on: another query counts otherwise.
func (l *library) readMemory(h *handle, r *Reading) {
	query := h.memory.Load()
	if query == hostMemoryQuery {
		readHost(r)
		return
	}
	newer := &CallError{Function: "nvmlDeviceGetMemoryInfo_v2", Code: codeFunctionNotFound}
	if l.has("nvmlDeviceGetMemoryInfo_v2") && query != olderQuery {
		m, ret := h.GetMemoryInfo_v2()
		if ret == nvml.SUCCESS {
			h.memory.Store(newerQuery)
			r.setMemory(m.Total, m.Used, m.Free, OfDevice)
			r.Set(DriverReserved, float64(m.Reserved))
			return
		}
		newer.Code = int(ret)
		if query == newerQuery || !worthTryingOlder(newer.Code) {
			r.Err = newer
			return
		}
	}
	if !l.has("nvmlDeviceGetMemoryInfo") {
		r.Err = newer
		return
	}
	m, ret := h.GetMemoryInfo()
	switch err := check("nvmlDeviceGetMemoryInfo", ret); {
	case err == nil:
		h.memory.Store(olderQuery)
		r.setMemory(m.Total, m.Used, m.Free, OfDeviceAndDriver)
	case ret == nvml.ERROR_NOT_SUPPORTED && query == untried:
		if readHost(r) {
			h.memory.Store(hostMemoryQuery)
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
func (l *library) readSensors(h *handle, want Quantities, r *Reading) {
	lacks := Quantities(h.lacks.Load())
	for q := Utilization; q < numQuantities; q++ {
		if !want.Has(q) || lacks.Has(q) {
			continue
		}
		v, function, ret := l.readSensor(h, q)
		switch ret {
		case nvml.SUCCESS:
			r.Set(q, v)
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
			h.lacks.Or(1 << q)
		case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
			r.Err = check(function, ret)
			return
		}
	}
}

func (l *library) readSensor(h *handle, q Quantity) (v float64, function string, ret nvml.Return) {
	function = sensorFunctions[q]
	if !l.has(function) {
		return 0, function, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	var n uint32
	switch q {
	case Utilization:
		var u nvml.Utilization
		u, ret = h.GetUtilizationRates()
		n = u.Gpu
	case Power:
		n, ret = h.GetPowerUsage() // mW
		return float64(n) / 1000, function, ret
	case Temperature:
		n, ret = h.GetTemperature(nvml.TEMPERATURE_GPU)
	case FanSpeed:
		n, ret = h.GetFanSpeed()
	case ClockGraphics:
		n, ret = h.GetClockInfo(nvml.CLOCK_GRAPHICS)
	case ClockMemory:
		n, ret = h.GetClockInfo(nvml.CLOCK_MEM)
	case ClockSM:
		n, ret = h.GetClockInfo(nvml.CLOCK_SM)
	case ClockVideo:
		n, ret = h.GetClockInfo(nvml.CLOCK_VIDEO)
	}
	return float64(n), function, ret
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

// Processes merges the lists of compute, graphics and MPS processes. A process
// that computes and draws is in two of them, with the same memory.
func (l *library) Processes(d Device) ([]Process, error) {
	l.use.RLock()
	defer l.use.RUnlock()
	if l.closed {
		return nil, errLibraryClosed
	}
	h, err := l.handle(d)
	if err != nil {
		return nil, err
	}
	lists := []struct {
		function string
		call     func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", h.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", h.GetGraphicsRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses", h.GetMPSComputeRunningProcesses},
	}
	var all []nvml.ProcessInfo
	failed := error(&CallError{Function: lists[0].function, Code: codeFunctionNotFound})
	answered := false
	for _, list := range lists {
		if !l.has(list.function) {
			continue
		}
		infos, ret := list.call()
		if err := check(list.function, ret); err != nil {
			failed = err
			continue
		}
		answered = true
		all = append(all, infos...)
	}
	if !answered {
		return nil, failed
	}
	return mergeProcesses(all)
}

func mergeProcesses(infos []nvml.ProcessInfo) ([]Process, error) {
	var list []Process
	at := make(map[uint32]int, len(infos))
	for _, info := range infos {
		if info.Pid == 0 || info.Pid > maxPID {
			return nil, errGarbledList
		}
		p := Process{PID: int(info.Pid), Memory: -1}
		if info.UsedGpuMemory <= math.MaxInt64 { // 2^64-1 says "not available"
			p.Memory = bytesOf(info.UsedGpuMemory)
		}
		if i, ok := at[info.Pid]; ok {
			list[i].Memory = max(list[i].Memory, p.Memory)
			continue
		}
		at[info.Pid] = len(list)
		list = append(list, p)
	}
	return list, nil
}
