//go:build cgo && linux

package nvml

import (
	"errors"
	"math"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// mocked are functions that go-nvml's mock machines set; one that is called
// though it is not set panics, as one that a driver lacks ends the process.
var mocked = []string{
	"nvmlInit", "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode",
}

func has(names ...string) map[string]bool {
	present := make(map[string]bool)
	for _, name := range names {
		present[name] = true
	}
	return present
}

func openMock(t testing.TB, api gonvml.Interface, further ...string) *library {
	t.Helper()
	lib, err := newLibrary(goNVML{api}, has(append(mocked, further...)...))
	require.NoError(t, err)
	return lib
}

// dgx is a machine with eight GPUs of a name and a size.
func dgx(name string, memory alloc.Bytes) *dgxa100.Server {
	machine := dgxa100.New()
	for _, d := range machine.Devices {
		d := d.(*dgxa100.Device)
		d.Name, d.MemoryInfo.Total = name, uint64(memory)
	}
	return machine
}

func TestMockMachines(t *testing.T) {
	machines := []struct {
		server *dgxa100.Server
		name   string
		memory alloc.Bytes
	}{
		{dgxa100.New(), "Mock NVIDIA A100-SXM4-40GB", 40 * alloc.GiB},
		{dgx("NVIDIA H100 80GB HBM3", 80*alloc.GiB), "NVIDIA H100 80GB HBM3", 80 * alloc.GiB},
		{dgx("NVIDIA H200 141GB HBM3e", 141*alloc.GiB), "NVIDIA H200 141GB HBM3e", 141 * alloc.GiB},
	}
	for _, machine := range machines {
		t.Run(machine.name, func(t *testing.T) {
			lib := openMock(t, machine.server)
			list, err := readAll(lib)
			require.NoError(t, err)
			require.Len(t, list, 8)
			for i, d := range list {
				assert.Equal(t, i, d.Index)
				assert.Contains(t, d.Name, machine.name)
				assert.Regexp(t, "^GPU-", d.UUID)
				total, ok := d.bytes(MemoryTotal)
				assert.True(t, ok)
				assert.Equal(t, machine.memory, total)
				assert.Equal(t, ofDeviceAndDriver, d.Scope, "they answer the older query alone")
				assert.NoError(t, d.Err)
				for q := Utilization; q < numQuantities; q++ {
					_, ok := d.Value(q)
					assert.False(t, ok, q)
				}
				_, err := lib.Processes(d.Device)
				assert.ErrorIs(t, err, errNotSupported)
			}
			assert.Contains(t, lib.Name(), "NVML, driver 550.54.15")
			require.NoError(t, lib.Close())
		})
	}
}

// a mock device with everything that the recorder can ask for.
func fullMock(t testing.TB) (*library, *dgxa100.Device) {
	machine := dgxa100.New()
	for _, d := range machine.Devices {
		setFull(d.(*dgxa100.Device))
	}
	var all []string
	for name := range functions {
		all = append(all, name)
	}
	lib := openMock(t, machine, all...)
	return lib, machine.Devices[0].(*dgxa100.Device)
}

func setFull(d *dgxa100.Device) {
	ok := gonvml.SUCCESS
	d.GetMemoryInfo_v2Func = func() (gonvml.Memory_v2, gonvml.Return) {
		return gonvml.Memory_v2{Total: 1000, Reserved: 10, Free: 690, Used: 300}, ok
	}
	d.GetUtilizationRatesFunc = func() (gonvml.Utilization, gonvml.Return) { return gonvml.Utilization{Gpu: 93}, ok }
	d.GetPowerUsageFunc = func() (uint32, gonvml.Return) { return 700500, ok }
	d.GetTemperatureFunc = func(gonvml.TemperatureSensors) (uint32, gonvml.Return) { return 61, ok }
	d.GetFanSpeedFunc = func() (uint32, gonvml.Return) { return 0, gonvml.ERROR_NOT_SUPPORTED }
	d.GetClockInfoFunc = func(c gonvml.ClockType) (uint32, gonvml.Return) { return 1000 + uint32(c), ok }
	none := func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, ok }
	d.GetComputeRunningProcessesFunc = none
	d.GetGraphicsRunningProcessesFunc = none
	d.GetMPSComputeRunningProcessesFunc = none
}

func TestSensors(t *testing.T) {
	lib, d := fullMock(t)
	for range 2 {
		list, err := readAll(lib)
		require.NoError(t, err)
		want := map[Quantity]float64{
			MemoryTotal: 1000, MemoryUsed: 300, MemoryFree: 690, DriverReserved: 10, Utilization: 93, Power: 700.5,
			Temperature: 61, ClockGraphics: 1000, ClockSM: 1001, ClockMemory: 1002, ClockVideo: 1003,
		}
		for q, v := range want {
			got, ok := list[0].Value(q)
			assert.True(t, ok, q)
			assert.Equal(t, v, got, q)
		}
		_, ok := list[0].Value(FanSpeed)
		assert.False(t, ok, "passively cooled, as data-centre cards are")
		assert.NoError(t, list[0].Err)
		assert.Equal(t, ofDevice, list[0].Scope)
	}
	assert.Len(t, d.GetFanSpeedCalls(), 1, "what is not supported is asked once")
}

func TestMemoryQueries(t *testing.T) {
	tests := []struct {
		name   string
		v2, v1 gonvml.Return
		scope  Scope
		err    error
	}{
		{"newer", gonvml.SUCCESS, gonvml.SUCCESS, ofDevice, nil},
		{"unknown error under WSL", gonvml.ERROR_UNKNOWN, gonvml.SUCCESS, ofDeviceAndDriver, nil},
		{"version not known", gonvml.ERROR_ARGUMENT_VERSION_MISMATCH, gonvml.SUCCESS, ofDeviceAndDriver, nil},
		{"unified memory", gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_NOT_SUPPORTED, ofHost, nil},
		{"lost", gonvml.ERROR_GPU_IS_LOST, gonvml.SUCCESS, ofDevice, ErrLost},
		{"to be reset", gonvml.ERROR_RESET_REQUIRED, gonvml.SUCCESS, ofDevice, ErrLost},
		{"a MIG device's GPU in a container", gonvml.ERROR_NO_PERMISSION, gonvml.SUCCESS, ofDevice, errNoPermission},
		{"lost in between", gonvml.ERROR_UNKNOWN, gonvml.ERROR_GPU_IS_LOST, ofDevice, ErrLost},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lib, d := fullMock(t)
			d.GetMemoryInfo_v2Func = func() (gonvml.Memory_v2, gonvml.Return) { return gonvml.Memory_v2{Used: 2}, test.v2 }
			d.GetMemoryInfoFunc = func() (gonvml.Memory, gonvml.Return) { return gonvml.Memory{Used: 3}, test.v1 }
			devices, err := lib.Devices()
			require.NoError(t, err)
			for range 2 {
				readings := make([]Reading, 1)
				lib.Read(devices[:1], []Quantity{MemoryUsed}, readings)
				assert.Equal(t, test.scope, readings[0].Scope)
				if test.err != nil {
					assert.ErrorIs(t, readings[0].Err, test.err)
					continue
				}
				require.NoError(t, readings[0].Err)
				used, ok := readings[0].bytes(MemoryUsed)
				assert.True(t, ok)
				if test.scope == ofHost {
					assert.Greater(t, used, 10*alloc.MiB, "the host's")
				}
			}
			if test.scope != ofDevice {
				assert.Len(t, d.GetMemoryInfo_v2Calls(), 1, "what does not work is not asked again")
			}
		})
	}
}

// The older query counts more as used: a failure of the newer one that has
// worked is a gap, and no jump of the level.
func TestAQueryThatHasWorkedIsNotReplaced(t *testing.T) {
	lib, d := fullMock(t)
	answers := []gonvml.Return{gonvml.SUCCESS, gonvml.ERROR_UNKNOWN, gonvml.SUCCESS}
	d.GetMemoryInfo_v2Func = func() (gonvml.Memory_v2, gonvml.Return) {
		ret := answers[0]
		answers = answers[1:]
		return gonvml.Memory_v2{Used: 2}, ret
	}
	devices, err := lib.Devices()
	require.NoError(t, err)
	var used []alloc.Bytes
	for range 3 {
		readings := make([]Reading, 1)
		lib.Read(devices[:1], []Quantity{MemoryUsed}, readings)
		if v, ok := readings[0].bytes(MemoryUsed); ok {
			used = append(used, v)
		} else {
			assert.ErrorContains(t, readings[0].Err, "nvmlDeviceGetMemoryInfo_v2")
		}
	}
	assert.Equal(t, []alloc.Bytes{2, 2}, used)
}

func TestProcessLists(t *testing.T) {
	lib, d := fullMock(t)
	devices, err := lib.Devices()
	require.NoError(t, err)
	list := func(infos ...gonvml.ProcessInfo) func() ([]gonvml.ProcessInfo, gonvml.Return) {
		return func() ([]gonvml.ProcessInfo, gonvml.Return) { return infos, gonvml.SUCCESS }
	}
	info := func(pid uint32, used uint64) gonvml.ProcessInfo {
		return gonvml.ProcessInfo{Pid: pid, UsedGpuMemory: used}
	}
	d.GetComputeRunningProcessesFunc = list(info(1, 100), info(2, 200))
	d.GetGraphicsRunningProcessesFunc = list(info(1, 100), info(3, math.MaxUint64))
	d.GetMPSComputeRunningProcessesFunc = list(info(4, 400))
	got, err := lib.Processes(devices[0])
	require.NoError(t, err)
	assert.Equal(t, map[int]alloc.Bytes{1: 100, 2: 200, 3: -1, 4: 400}, got, "a process in two lists counts once")

	d.GetGraphicsRunningProcessesFunc = func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.ERROR_NOT_SUPPORTED }
	got, err = lib.Processes(devices[0])
	require.NoError(t, err)
	assert.Len(t, got, 3, "compute and MPS answer")

	d.GetComputeRunningProcessesFunc = list(info(1, 100), info(0, 0), info(4000000000, 7))
	_, err = lib.Processes(devices[0])
	assert.ErrorIs(t, err, errNoValue)
	assert.ErrorContains(t, err, "R535")
}

func TestMIGDevices(t *testing.T) {
	lib, gpu := fullMock(t)
	gpu.MigMode = gonvml.DEVICE_MIG_ENABLE
	migs := make([]*dgxa100.Device, 7)
	for i := range migs {
		migs[i] = dgxa100.NewDevice(i)
		setFull(migs[i])
		migs[i].UUID = "MIG-" + string(rune('a'+i))
	}
	gpu.GetMaxMigDeviceCountFunc = func() (int, gonvml.Return) { return 7, gonvml.SUCCESS }
	gpu.GetMigDeviceHandleByIndexFunc = func(i int) (gonvml.Device, gonvml.Return) {
		if i%3 != 0 {
			return nil, gonvml.ERROR_NOT_FOUND
		}
		return migs[i], gonvml.SUCCESS
	}
	devices, err := lib.Devices()
	require.NoError(t, err)
	require.Len(t, devices, 11)
	assert.Equal(t, []string{"GPU 0", "GPU 0 MIG 1", "GPU 0 MIG 2", "GPU 0 MIG 3", "GPU 1"},
		[]string{devices[0].Label(), devices[1].Label(), devices[2].Label(), devices[3].Label(), devices[4].Label()})
	assert.Equal(t, devices[0].UUID, devices[1].Parent)
	readings := make([]Reading, 11)
	lib.Read(devices, []Quantity{MemoryUsed}, readings)
	for _, r := range readings {
		assert.NoError(t, r.Err)
	}
}

func TestAGPUThatDoesNotAnswerIsListed(t *testing.T) {
	machine := dgxa100.New()
	answer := machine.DeviceGetHandleByIndexFunc
	machine.DeviceGetHandleByIndexFunc = func(i int) (gonvml.Device, gonvml.Return) {
		if i == 3 {
			return nil, gonvml.ERROR_GPU_IS_LOST
		}
		return answer(i)
	}
	list, err := readAll(openMock(t, machine))
	require.NoError(t, err)
	require.Len(t, list, 8)
	assert.ErrorIs(t, list[3].Err, ErrLost)
	assert.NoError(t, list[4].Err)
	_, err = openMock(t, machine).Processes(list[3].Device)
	assert.ErrorIs(t, err, ErrLost)
}

func TestAFailedInitIsFollowedByNoCall(t *testing.T) {
	machine := dgxa100.New()
	machine.InitFunc = func() gonvml.Return { return gonvml.ERROR_LIB_RM_VERSION_MISMATCH }
	_, err := newLibrary(goNVML{machine}, has(mocked...))
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.ErrorContains(t, err, "different versions: restart after the driver's update")
	assert.Empty(t, machine.ShutdownCalls())
	assert.Empty(t, machine.SystemGetDriverVersionCalls())
}

func TestCountFails(t *testing.T) {
	machine := dgxa100.New()
	machine.DeviceGetCountFunc = func() (int, gonvml.Return) { return 0, gonvml.ERROR_UNKNOWN }
	_, err := openMock(t, machine).Devices()
	call, ok := errors.AsType[*callError](err)
	require.True(t, ok)
	assert.Equal(t, "nvmlDeviceGetCount_v2", call.function)
	assert.ErrorContains(t, err, "only a restart of the container helps")
	assert.ErrorContains(t, &callError{function: "f", code: 4711}, "f: an unknown error (code 4711)")
}

func TestRecorderOverAMockMachine(t *testing.T) {
	lib, d := fullMock(t)
	rec, err := NewRecorder(Config{Source: lib, Quantities: allSet.list(), Devices: []string{"0", d.UUID, "7"}})
	require.NoError(t, err)
	require.NoError(t, rec.Start())
	require.NoError(t, rec.Stop())
	got := rec.Recording()
	require.Len(t, got.Devices, 2, "a device named twice is one")
	assert.Equal(t, 93.0, got.of(Utilization)[1].Max())
	assert.Equal(t, defaultInterval, got.Interval)
	assert.Less(t, got.Duration(), time.Minute)
}

// A GPU that does not even say its UUID hides none of the others.
func TestAGPUWithoutUUID(t *testing.T) {
	machine := dgxa100.New()
	machine.Devices[3].(*dgxa100.Device).GetUUIDFunc = func() (string, gonvml.Return) { return "", gonvml.ERROR_GPU_IS_LOST }
	list, err := readAll(openMock(t, machine))
	require.NoError(t, err)
	require.Len(t, list, 8)
	assert.Equal(t, "GPU that does not answer[3]", list[3].String())
	assert.ErrorIs(t, list[3].Err, ErrLost)
	assert.NoError(t, list[4].Err)
}

// Why a GPU cannot be asked is what the driver said, not that it is lost.
func TestAGPUThatThisUserMayNotAsk(t *testing.T) {
	machine := dgxa100.New()
	machine.Devices[3].(*dgxa100.Device).GetUUIDFunc = func() (string, gonvml.Return) { return "", gonvml.ERROR_NO_PERMISSION }
	list, err := readAll(openMock(t, machine))
	require.NoError(t, err)
	require.Len(t, list, 8)
	assert.ErrorIs(t, list[3].Err, errNoPermission)
	assert.NotErrorIs(t, list[3].Err, ErrLost)
	assert.ErrorContains(t, list[3].Err, "nvmlDeviceGetUUID")
}

// TestGarbledUtilization: some drivers give entries that nobody wrote, and shares above all.
func TestGarbledUtilization(t *testing.T) {
	lib, device := fullMock(t)
	devices, err := lib.Devices()
	require.NoError(t, err)
	samples, code := []gonvml.ProcessUtilizationSample{{}, {Pid: 7, SmUtil: 30}, {Pid: 8, SmUtil: 1 << 31}, {Pid: 1 << 30, SmUtil: 1}}, gonvml.SUCCESS
	device.GetProcessUtilizationFunc = func(since uint64) ([]gonvml.ProcessUtilizationSample, gonvml.Return) {
		assert.InDelta(t, time.Now().Add(-time.Second).UnixMicro(), since, 5e6)
		return samples, code
	}
	busy, err := UtilizationOf(lib, devices[0])
	require.NoError(t, err)
	assert.Equal(t, map[int]float64{7: 30}, busy)
	code = gonvml.ERROR_NOT_SUPPORTED
	_, err = UtilizationOf(lib, devices[0])
	require.ErrorIs(t, err, ErrUnknown)
}
