package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// fakeGPU is a GPU by the fields of nvidia-smi's query.
type fakeGPU map[string]string

// fakeSMI answers a query of GPUs by their fields, and any other by its first argument.
type fakeSMI struct {
	gpus     []fakeGPU
	messages string // printed before the rows
	lacks    []string
	other    map[string]string
	queries  int
}

func (f *fakeSMI) run(args ...string) ([]byte, error) {
	f.queries++
	for prefix, text := range f.other {
		if strings.HasPrefix(args[0], prefix) {
			if message, failed := strings.CutPrefix(text, "error: "); failed {
				return nil, errors.New(message)
			}
			return []byte(text), nil
		}
	}
	list, ok := strings.CutPrefix(args[0], "--query-gpu=")
	if !ok {
		return nil, errors.New("unexpected " + args[0])
	}
	out := f.messages
	for _, gpu := range f.gpus {
		var cells []string
		for field := range strings.SplitSeq(list, ",") {
			if slices.Contains(f.lacks, field) {
				return nil, fmt.Errorf("nvidia-smi: exit status 2: Field %q is not a valid field to query.", field) //nolint:revive // its own words
			}
			cell, ok := gpu[field]
			if !ok {
				cell = "[N/A]"
			}
			cells = append(cells, cell)
		}
		out += strings.Join(cells, ", ") + "\n"
	}
	return []byte(out), nil
}

// gpuRow is a GPU with what every GPU tells, and more of it: pairs of field and text.
func gpuRow(index, uuid, name string, more ...string) fakeGPU {
	g := fakeGPU{
		"index": index, "uuid": uuid, "name": name, "pci.bus_id": "00000000:" + index + "B:00.0", "driver_version": "570.86.10",
		"memory.total": "143771", "memory.used": "120345", "memory.free": "22862", "memory.reserved": "564",
	}
	for i := 0; i < len(more); i += 2 {
		g[more[i]] = more[i+1]
	}
	return g
}

func openFakeSMI(t *testing.T, f *fakeSMI) *smi {
	t.Helper()
	s, err := newSMI(f.run)
	require.NoError(t, err)
	return s
}

// read reads everything of every device.
func read(t *testing.T, s *smi) ([]Device, []Reading) {
	t.Helper()
	devices, err := s.Devices()
	require.NoError(t, err)
	readings := make([]Reading, len(devices))
	s.Read(devices, allSet.list(), readings)
	return devices, readings
}

func TestSMIDevices(t *testing.T) {
	s := openFakeSMI(t, &fakeSMI{
		gpus:     []fakeGPU{gpuRow("0", "GPU-a", "NVIDIA H200"), gpuRow("2", "GPU-c", "NVIDIA GB10, with a comma"), gpuRow("3", "GPU-d", "NVIDIA RTX 4090")},
		messages: "Unable to determine the device handle for GPU1: 0000:2B:00.0: Unknown Error\n",
	})
	devices, readings := read(t, s)
	require.Len(t, devices, 4)
	assert.Equal(t, Device{Index: 2, UUID: "GPU-c", Name: "NVIDIA GB10, with a comma", BusID: "00000000:2B:00.0"}, devices[2])
	assert.Equal(t, Device{Index: 1, UUID: "unknown-0000:2B:00.0", Name: deafName, BusID: "0000:2B:00.0"}, devices[1])
	assert.ErrorContains(t, readings[1].Err, "Unable to determine the device handle for GPU1")
	assert.NoError(t, readings[0].Err)
	assert.Equal(t, "nvidia-smi, driver 570.86.10", s.Name())
}

func TestSMIDeafGPUWithoutItsNumber(t *testing.T) {
	devices := devicesOf([]smiRow{{"index": "0", "uuid": "a"}, {"index": "2", "uuid": "c"}},
		[]string{"Unable to determine the device handle for GPU 0000:2B:00.0: GPU is lost.  Reboot the system to recover this GPU", "WARNING: infoROM is corrupted at gpu 0000:17:00.0"})
	require.Len(t, devices, 3)
	assert.Equal(t, [2]any{1, deafName}, [2]any{devices[1].Index, devices[1].Name})
	err := messageOn(devices[1], []string{"Unable to determine the device handle for GPU 0000:2B:00.0: GPU is lost."})
	assert.ErrorIs(t, err, ErrLost)
}

// 120345 MiB is what grep -Eo "[0-9]{1,5}" made two numbers of.
func TestSMIReadings(t *testing.T) {
	s := openFakeSMI(t, &fakeSMI{gpus: []fakeGPU{
		gpuRow("0", "GPU-a", "A", "power.draw", "700.00", "fan.speed", "[Not Supported]", "clocks.video", "1545"),
		gpuRow("1", "GPU-b", "B", "power.draw", "70,50", "temperature.gpu", "-3"),
	}})
	_, readings := read(t, s)
	used, ok := readings[0].bytes(MemoryUsed)
	assert.True(t, ok)
	assert.Equal(t, 120345*alloc.MiB, used)
	for q, want := range map[Quantity]float64{Power: 700, ClockVideo: 1545, DriverReserved: 564 * smiMiB} {
		v, _ := readings[0].Value(q)
		assert.Equal(t, want, v, q)
	}
	_, ok = readings[0].Value(FanSpeed)
	assert.False(t, ok)
	power, _ := readings[1].Value(Power)
	assert.Equal(t, 70.5, power, "a decimal comma")
	cold, _ := readings[1].Value(Temperature)
	assert.Equal(t, -3.0, cold)
}

func TestSMIValues(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "12.5": 12.5, "12,5": 12.5} {
		v, ok := parseNumber(text, MemoryUsed)
		assert.True(t, ok, text)
		assert.Equal(t, want, v, text)
	}
	for _, text := range []string{"", "nan", "NaN", "inf", "-inf", "-1", "1e300", "[N/A]", "N/A", "[Unknown Error]", "12 MiB"} {
		_, ok := parseNumber(text, MemoryUsed)
		assert.False(t, ok, text)
	}
}

// A value that is missing is host memory only where the GPU has none of its own.
func TestSMIMemoryThatIsNoNumber(t *testing.T) {
	tests := map[string]struct {
		gpu   fakeGPU
		scope Scope
		err   error
		text  string
	}{
		"no memory of its own": {gpu: gpuRow("0", "GPU-a", "GB10", "memory.used", "[N/A]", "memory.total", "[N/A]"), scope: ofHost},
		"a card without it":    {gpu: gpuRow("0", "GPU-a", "NVIDIA RTX 4090", "memory.used", "[N/A]", "memory.total", "[N/A]"), err: errNotSupported},
		"not permitted":        {gpu: gpuRow("0", "GPU-a", "A", "memory.used", "[Insufficient Permissions]", "memory.total", "[Insufficient Permissions]"), err: errNoPermission},
		"an error":             {gpu: gpuRow("0", "GPU-a", "A", "memory.used", "[Unknown Error]", "memory.total", "[Unknown Error]"), text: "[Unknown Error]"},
		"a total":              {gpu: gpuRow("0", "GPU-a", "A", "memory.used", "[N/A]"), err: errNotSupported},
		"MIG mode":             {gpu: gpuRow("0", "GPU-a", "A", "memory.used", "[N/A]", "memory.total", "[N/A]", "mig.mode.current", "Enabled"), err: errNotSupported},
		"lost":                 {gpu: gpuRow("0", "GPU-a", "A", "memory.used", "[GPU is lost]"), err: ErrLost},
		"not a number":         {gpu: gpuRow("0", "GPU-a", "A", "memory.used", "nan"), text: `"nan"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.scope == ofHost && runtime.GOOS != "linux" {
				t.Skip("the host's memory is known on Linux")
			}
			_, readings := read(t, openFakeSMI(t, &fakeSMI{gpus: []fakeGPU{test.gpu}, other: map[string]string{"-L": ""}}))
			r := &readings[0]
			_, known := r.Value(MemoryUsed)
			assert.Equal(t, test.scope == ofHost, known)
			assert.Equal(t, cmp.Or(test.scope, ofDevice), r.Scope)
			if test.err != nil {
				assert.ErrorIs(t, r.Err, test.err)
			}
			assert.ErrorContains(t, errors.Join(r.Err, errors.New("-")), test.text)
			assert.Equal(t, test.scope == ofHost, r.Err == nil)
		})
	}
}

// A driver that gives no value for a while does not turn a GPU's memory into the host's.
func TestSMIThatFailsForAWhile(t *testing.T) {
	f := &fakeSMI{gpus: []fakeGPU{gpuRow("0", "GPU-a", "A")}}
	s := openFakeSMI(t, f)
	_, readings := read(t, s)
	require.NoError(t, readings[0].Err)
	f.gpus[0] = gpuRow("0", "GPU-a", "A", "memory.used", "[N/A]", "memory.total", "[N/A]")
	_, readings = read(t, s)
	assert.ErrorIs(t, readings[0].Err, errNotSupported)
	assert.Equal(t, ofDevice, readings[0].Scope)
}

// Fields that an old nvidia-smi does not have cost no other field.
func TestSMIOfAnOldDriver(t *testing.T) {
	f := &fakeSMI{gpus: []fakeGPU{gpuRow("0", "GPU-a", "A", "clocks.sm", "1000")}, lacks: []string{"memory.reserved", "clocks.video", "mig.mode.current"}}
	s := openFakeSMI(t, f)
	_, readings := read(t, s)
	require.NoError(t, readings[0].Err)
	used, _ := readings[0].bytes(MemoryUsed)
	assert.Equal(t, 120345*alloc.MiB, used)
	clock, _ := readings[0].Value(ClockSM)
	assert.Equal(t, 1000.0, clock)
	for _, q := range []Quantity{DriverReserved, ClockVideo} {
		_, ok := readings[0].Value(q)
		assert.False(t, ok, q)
	}
	before := f.queries
	read(t, s)
	assert.Equal(t, before+2, f.queries, "what it lacks is asked for once")
}

// GPUs that print one text for their UUIDs are told apart by the bus.
func TestSMIWithoutUUIDs(t *testing.T) {
	f := &fakeSMI{
		gpus: []fakeGPU{gpuRow("0", "[Unknown Error]", "A", "memory.used", "1"), gpuRow("1", "[Unknown Error]", "A", "memory.used", "2"),
			gpuRow("2", "GPU-x", "A", "memory.used", "3"), gpuRow("3", "GPU-x", "A", "memory.used", "4")},
		other: map[string]string{"--query-compute-apps": "GPU-x, 00000000:3B:00.0, 42, 7\n"},
	}
	s := openFakeSMI(t, f)
	devices, readings := read(t, s)
	for i := range readings {
		used, _ := readings[i].bytes(MemoryUsed)
		assert.Equal(t, alloc.Bytes(i+1)*alloc.MiB, used)
	}
	list, err := s.Processes(devices[3])
	require.NoError(t, err)
	assert.Equal(t, map[int]alloc.Bytes{42: 7 * alloc.MiB}, list)
	list, err = s.Processes(devices[2])
	require.NoError(t, err)
	assert.Empty(t, list)
}

func TestSMIProcesses(t *testing.T) {
	s := openFakeSMI(t, &fakeSMI{other: map[string]string{
		"--query-compute-apps": "GPU-a, 0:1, 120, 120345\nGPU-d, 0:2, 120, 7\nGPU-a, 0:1, 1203, [N/A]\nGPU-a, 0:1, [Insufficient Permissions], 1\nGPU-a, 0:1, -4, 1\nGPU-a, 0:1, 7, inf\n",
	}})
	list, err := s.Processes(Device{UUID: "GPU-a"})
	require.NoError(t, err)
	assert.Equal(t, map[int]alloc.Bytes{120: 120345 * alloc.MiB, 1203: -1, 7: -1}, list)
}

func TestSMIThatFails(t *testing.T) {
	f := &fakeSMI{other: map[string]string{"--query-gpu": "error: it cannot communicate with the driver"}}
	_, err := newSMI(f.run)
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.ErrorContains(t, err, "cannot communicate")

	f.other = nil
	s := openFakeSMI(t, f)
	f.other = map[string]string{"--query-gpu": "error: exit status 15"}
	readings := make([]Reading, 2)
	s.Read([]Device{{UUID: "GPU-a"}, {UUID: "GPU-d"}}, []Quantity{MemoryUsed}, readings)
	assert.ErrorContains(t, readings[0].Err, "exit status 15")
	assert.ErrorContains(t, readings[1].Err, "exit status 15")
}

// script is an nvidia-smi of a few lines of shell.
func script(t *testing.T, text string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell script")
	}
	name := filepath.Join(t.TempDir(), "nvidia-smi")
	require.NoError(t, os.WriteFile(name, []byte("#!/bin/sh\n"+text), 0o755))
	return name
}

func TestSMIProgram(t *testing.T) {
	src, err := openSMI(script(t, `case $1 in *driver_version) echo 0, 570.1;; *mig.mode*name) echo "0, GPU-a, 0:1, [N/A], Fake $LC_ALL";; *) echo 'No devices were found'; exit 6;; esac`))
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	assert.Equal(t, "Fake C[0]", devices[0].String(), "numbers in one form wherever it runs")
	_, err = src.Processes(devices[0])
	assert.ErrorContains(t, err, "exit status 6: No devices were found")
	assert.NoError(t, src.Close())
}

// Exit code 14 is a warning: the rows are whole.
func TestSMIWithACorruptedInfoROM(t *testing.T) {
	src, err := openSMI(script(t, "case $1 in *driver_version) echo 0, 570.1;; *) echo '0, GPU-a, 0:1, [N/A], Fake';; esac\necho 'WARNING: infoROM is corrupted at gpu 0000:17:00.0'\nexit 14\n"))
	require.NoError(t, err)
	assert.Equal(t, "nvidia-smi, driver 570.1", src.Name())
	devices, err := src.Devices()
	require.NoError(t, err)
	assert.Len(t, devices, 1)
	require.NoError(t, src.Close())
}

// Close ends a run that hangs.
func TestSMIThatHangs(t *testing.T) {
	src, err := openSMI(script(t, "case $1 in *driver_version) echo 0, 570.1;; *) exec sleep 600;; esac\n"))
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		_, err := src.Devices()
		done <- err
	}()
	require.NoError(t, src.Close())
	assert.Error(t, <-done)
}

func TestNoSMI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := openSMI("")
	assert.ErrorContains(t, err, "there is no nvidia-smi to run")
	if library, err := openLibrary(""); err == nil {
		assert.NoError(t, library.Close())
		t.Skip("a driver answers on this machine: Open has its library")
	}
	_, err = Open()
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.NotContains(t, err.Error(), "\n")
}
