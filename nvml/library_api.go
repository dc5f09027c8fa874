//go:build linux

package nvml

import (
	"sync/atomic"
)

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

// memoryQuery is where a device's memory figures come from.
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
