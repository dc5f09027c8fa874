//go:build linux && cgo

package gpuemu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

// device initialises NVML and gives the first device. One test process loads
// one library, so every test here runs in its own child.
func device(t *testing.T) nvml.Device {
	t.Helper()
	require.Equal(t, nvml.SUCCESS, nvml.Init())
	t.Cleanup(func() { nvml.Shutdown() })
	d, ret := nvml.DeviceGetHandleByIndex(0)
	require.Equal(t, nvml.SUCCESS, ret)
	return d
}

// here is a driver session on the machine that this process runs under.
func here(t *testing.T) *session {
	t.Helper()
	return ready(t, Options{State: os.Getenv("GPUEMU_STATE")})
}

func TestNVMLIdentity(t *testing.T) {
	if Rerun(t, Options{Devices: 3, Name: "Test GPU"}) {
		return
	}
	device(t)
	n, ret := nvml.DeviceGetCount()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, 3, n)
	seen := map[string]bool{}
	for i := range n {
		d, ret := nvml.DeviceGetHandleByIndex(i)
		require.Equal(t, nvml.SUCCESS, ret)
		name, _ := d.GetName()
		require.Equal(t, "Test GPU", name)
		uuid, _ := d.GetUUID()
		seen[uuid] = true
		same, ret := nvml.DeviceGetHandleByUUID(uuid)
		require.Equal(t, nvml.SUCCESS, ret)
		index, _ := same.GetIndex()
		require.Equal(t, i, index)
		pci, ret := d.GetPciInfo()
		require.Equal(t, nvml.SUCCESS, ret)
		require.EqualValues(t, i+1, pci.Bus)
	}
	require.Len(t, seen, 3)
	_, ret = nvml.DeviceGetHandleByIndex(3)
	require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	d, ret := nvml.DeviceGetHandleByPciBusId("0000:02:00.0")
	require.Equal(t, nvml.SUCCESS, ret)
	minor, _ := d.GetMinorNumber()
	require.Equal(t, 1, minor)
	version, ret := nvml.SystemGetCudaDriverVersion()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Equal(t, 12020, version)
}

func TestNVMLSeesOtherProcesses(t *testing.T) {
	if Rerun(t, Options{Memory: gib, Reserved: 64 * mib, Context: 128 * mib}) {
		return
	}
	d := device(t)
	list, ret := d.GetComputeRunningProcesses()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Empty(t, list)
	utilization, _ := d.GetUtilizationRates()
	require.Zero(t, utilization.Gpu)

	s := here(t)
	require.Contains(t, s.do("alloc a 134217728"), "ok")
	list, ret = d.GetComputeRunningProcesses()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Len(t, list, 1)
	require.EqualValues(t, s.cmd.Process.Pid, list[0].Pid)
	require.EqualValues(t, 256*mib, list[0].UsedGpuMemory)

	v2, ret := d.GetMemoryInfo_v2()
	require.Equal(t, nvml.SUCCESS, ret)
	require.EqualValues(t, []uint64{gib + 64*mib, 64 * mib, 256 * mib, 768 * mib}, []uint64{v2.Total, v2.Reserved, v2.Used, v2.Free})
	v1, ret := d.GetMemoryInfo()
	require.Equal(t, nvml.SUCCESS, ret)
	require.EqualValues(t, 320*mib, v1.Used, "with the driver's own share")

	utilization, _ = d.GetUtilizationRates()
	require.EqualValues(t, 25, utilization.Memory)
	temperature, ret := d.GetTemperature(nvml.TEMPERATURE_GPU)
	require.Equal(t, nvml.SUCCESS, ret)
	require.EqualValues(t, 47, temperature)
	power, _ := d.GetPowerUsage()
	require.EqualValues(t, 170000, power)
	clock, _ := d.GetClockInfo(nvml.CLOCK_SM)
	require.EqualValues(t, 1410, clock)
	_, ret = d.GetFanSpeed()
	require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)

	s.kill()
	list, _ = d.GetComputeRunningProcesses()
	require.Empty(t, list)
	v2, _ = d.GetMemoryInfo_v2()
	require.Zero(t, v2.Used)
}

func TestNVMLProcessViews(t *testing.T) {
	for _, view := range []ProcessView{HiddenProcesses, HostProcesses, UnsizedProcesses} {
		t.Run(string(view), func(t *testing.T) {
			if Rerun(t, Options{Processes: view}) {
				return
			}
			d, s := device(t), here(t)
			list, ret := d.GetComputeRunningProcesses()
			require.Equal(t, nvml.SUCCESS, ret)
			if view == HiddenProcesses {
				require.Empty(t, list)
				return
			}
			require.Len(t, list, 1)
			pid, used := s.cmd.Process.Pid, uint64(256*mib)
			if view == HostProcesses {
				pid = HostPID(pid)
			} else {
				used = 1<<64 - 1
			}
			require.EqualValues(t, pid, list[0].Pid)
			require.Equal(t, used, list[0].UsedGpuMemory)
		})
	}
}

func TestNVMLMemoryInfoMissing(t *testing.T) {
	for _, answers := range []MemoryInfo{OnlyV1, NoMemoryInfo} {
		t.Run(string(answers), func(t *testing.T) {
			if Rerun(t, Options{MemoryInfo: answers}) {
				return
			}
			d := device(t)
			_, ret := d.GetMemoryInfo_v2()
			require.Equal(t, nvml.ERROR_NOT_SUPPORTED, ret)
			_, ret = d.GetMemoryInfo()
			require.Equal(t, answers == OnlyV1, ret == nvml.SUCCESS)
		})
	}
}

func TestNVMLOldDriver(t *testing.T) {
	if Rerun(t, Options{OldDriver: true}) {
		return
	}
	d, s := device(t), here(t)
	symbols := nvml.Extensions()
	require.NoError(t, symbols.LookupSymbol("nvmlDeviceGetMemoryInfo"))
	for _, later := range []string{"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"} {
		require.Error(t, symbols.LookupSymbol(later), later)
	}
	list, ret := d.GetComputeRunningProcesses()
	require.Equal(t, nvml.SUCCESS, ret)
	require.Len(t, list, 1)
	require.EqualValues(t, s.cmd.Process.Pid, list[0].Pid)
}

func TestNVMLFaultsAndLoss(t *testing.T) {
	if Rerun(t, Options{Fail: []Fault{{Function: "nvmlDeviceGetMemoryInfo_v2", From: 2, Code: int(nvml.ERROR_UNKNOWN)}}}) {
		return
	}
	d := device(t)
	var codes []nvml.Return
	for range 3 {
		_, ret := d.GetMemoryInfo_v2()
		codes = append(codes, ret)
	}
	require.Equal(t, []nvml.Return{nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.SUCCESS}, codes)

	c, err := Attach()
	require.NoError(t, err)
	defer c.Close()
	c.Lose()
	_, ret := d.GetMemoryInfo_v2()
	require.Equal(t, nvml.ERROR_GPU_IS_LOST, ret)
	c.Heal()
	_, ret = d.GetMemoryInfo_v2()
	require.Equal(t, nvml.SUCCESS, ret)
}

func TestNVMLWithoutDriver(t *testing.T) {
	if Rerun(t, Options{Devices: -1}) {
		return
	}
	require.Equal(t, nvml.ERROR_DRIVER_NOT_LOADED, nvml.Init())
}

func TestStatePattern(t *testing.T) {
	dir := t.TempDir()
	s := ready(t, Options{State: filepath.Join(dir, "%p.state")})
	require.FileExists(t, filepath.Join(dir, s.do("pid")[len("ok "):]+".state"))
}
