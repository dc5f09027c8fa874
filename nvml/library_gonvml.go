//go:build cgo && linux

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// load opens the library before go-nvml does, because go-nvml would call Init out of sight and drop
// the loader's error message.
func load(path string) (api, map[string]bool, error) {
	lib := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := lib.Open(); err != nil {
		return nil, nil, notAvailable("%v", err)
	}
	defer lib.Close()
	present, err := presentIn(path, func(name string) bool { return lib.Lookup(name) == nil })
	if err != nil {
		return nil, nil, err
	}
	return goNVML{nvml.New(nvml.WithLibraryPath(path))}, present, nil
}

// goNVML is the library as go-nvml calls it.
type goNVML struct{ nvml.Interface }

func (a goNVML) init() int     { return int(a.Init()) }
func (a goNVML) shutdown() int { return int(a.Shutdown()) }

func (a goNVML) driverVersion() (string, int) {
	v, ret := a.SystemGetDriverVersion()
	return v, int(ret)
}

func (a goNVML) count() (int, int) {
	n, ret := a.DeviceGetCount()
	return n, int(ret)
}

func (a goNVML) byIndex(i int) (gpu, int) {
	dev, ret := a.DeviceGetHandleByIndex(i)
	return goGPU{dev}, int(ret)
}

type goGPU struct{ nvml.Device }

func (g goGPU) uuid() (string, int) {
	s, ret := g.GetUUID()
	return s, int(ret)
}

func (g goGPU) name() (string, int) {
	s, ret := g.GetName()
	return s, int(ret)
}

func (g goGPU) busID() (string, int) {
	pci, ret := g.GetPciInfo()
	b := make([]byte, 0, len(pci.BusId))
	for _, c := range pci.BusId {
		b = append(b, byte(c))
	}
	return cString(b), int(ret)
}

func (g goGPU) migEnabled() (bool, int) {
	current, _, ret := g.GetMigMode()
	return current == nvml.DEVICE_MIG_ENABLE, int(ret)
}

func (g goGPU) maxMIG() (int, int) {
	n, ret := g.GetMaxMigDeviceCount()
	return n, int(ret)
}

func (g goGPU) mig(i int) (gpu, int) {
	dev, ret := g.GetMigDeviceHandleByIndex(i)
	return goGPU{dev}, int(ret)
}

func (g goGPU) memory() (deviceMemory, int) {
	m, ret := g.GetMemoryInfo()
	return deviceMemory{total: m.Total, free: m.Free, used: m.Used}, int(ret)
}

func (g goGPU) memoryV2() (deviceMemory, int) {
	m, ret := g.GetMemoryInfo_v2()
	return deviceMemory{total: m.Total, reserved: m.Reserved, free: m.Free, used: m.Used}, int(ret)
}

func (g goGPU) sensor(q Quantity) (n uint32, code int) {
	var ret nvml.Return
	switch q {
	case Utilization:
		var u nvml.Utilization
		u, ret = g.GetUtilizationRates()
		n = u.Gpu
	case Power:
		n, ret = g.GetPowerUsage()
	case Temperature:
		n, ret = g.GetTemperature(nvml.TEMPERATURE_GPU)
	case FanSpeed:
		n, ret = g.GetFanSpeed()
	default:
		n, ret = g.GetClockInfo(nvml.ClockType(clocks[q]))
	}
	return n, int(ret)
}

func (g goGPU) processes(function string) ([]runningProcess, int) {
	list := g.GetComputeRunningProcesses
	switch function {
	case "nvmlDeviceGetGraphicsRunningProcesses":
		list = g.GetGraphicsRunningProcesses
	case "nvmlDeviceGetMPSComputeRunningProcesses":
		list = g.GetMPSComputeRunningProcesses
	}
	infos, ret := list()
	running := make([]runningProcess, len(infos))
	for i, info := range infos {
		running[i] = runningProcess{info.Pid, info.UsedGpuMemory}
	}
	return running, int(ret)
}

func (g goGPU) busy(since uint64) ([]busyProcess, int) {
	samples, ret := g.GetProcessUtilization(since)
	var all []busyProcess
	for _, s := range samples {
		all = append(all, busyProcess{s.Pid, s.SmUtil})
	}
	return all, int(ret)
}
