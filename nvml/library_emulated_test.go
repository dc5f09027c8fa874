//go:build linux && (amd64 || arm64)

package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

// The tests here load a real libnvidia-ml.so.1, the emulated one. A process can
// have one, so each runs in a child.

func openEmulated(t *testing.T) Source {
	t.Helper()
	src, err := Open()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, src.Close()) })
	return src
}

func TestEmulatedLibrary(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Devices: 2, Memory: int64(4 * alloc.GiB), Name: "Test GPU"}) {
		return
	}
	src := openEmulated(t)
	list, err := readAll(src)
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, "Test GPU[1]", list[1].String())
	assert.NotEmpty(t, list[1].BusID)
	assert.Equal(t, ofDevice, list[1].Scope)
	reserved, ok := list[1].bytes(DriverReserved)
	assert.True(t, ok)
	assert.Equal(t, 320*alloc.MiB, reserved)
	_, ok = list[1].Value(Temperature)
	assert.True(t, ok)
	_, ok = list[1].Value(FanSpeed)
	assert.False(t, ok)
	procs, err := src.Processes(list[0].Device)
	require.NoError(t, err)
	assert.Empty(t, procs)
	assert.Contains(t, src.Name(), "NVML, driver ")
}

// CUDA's devices are the driver's, and its own order is what numbers count in.
func TestCUDATellsItsUUIDs(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
	if gpuemu.Rerun(t, gpuemu.Options{Devices: 3}) {
		return
	}
	src := openEmulated(t)
	uuids, err := cudaUUIDs()
	require.NoError(t, err)
	require.Len(t, uuids, 3)
	visible, err := VisibleDevices(src)
	require.NoError(t, err)
	require.Len(t, visible, 3)
	for i, d := range visible {
		assert.Equal(t, uuids[i], d.UUID)
	}
	list, err := readAll(src)
	require.NoError(t, err)
	for _, d := range list {
		used, _ := d.bytes(MemoryUsed)
		assert.Zero(t, used, "asking takes no memory")
	}
}

func TestEmulatedMIGDevice(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	if gpuemu.Rerun(t, gpuemu.Options{Devices: 2, Memory: int64(4 * alloc.GiB), MIG: int64(alloc.GiB)}) {
		return
	}
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	defer dev.Close()
	src := openEmulated(t)
	list, err := readAll(src)
	require.NoError(t, err)
	require.Len(t, list, 3)
	gpu, mig := list[0], list[1]
	assert.Equal(t, "GPU 0 MIG 1", mig.Label())
	assert.Equal(t, gpu.UUID, mig.Parent)
	assert.Equal(t, dev.(capability.Identified).UUID(), mig.UUID)
	assert.Equal(t, dev.Name(), mig.Name)

	total, _ := mig.bytes(MemoryTotal)
	assert.Equal(t, alloc.GiB, total)
	for _, d := range list[:2] {
		used, _ := d.bytes(MemoryUsed)
		assert.Equal(t, 256*alloc.MiB, used, "the context, in the instance and in its GPU")
		processes, err := src.Processes(d.Device)
		require.NoError(t, err)
		assert.Equal(t, map[int]alloc.Bytes{os.Getpid(): 256 * alloc.MiB}, processes)
	}
	_, ok := mig.Value(Temperature)
	assert.False(t, ok)

	visible, err := VisibleDevices(src)
	require.NoError(t, err)
	assert.Equal(t, []Device{mig.Device}, visible, "GPU 0 stands for its instance")
}

func TestAnOldDriverIsNotAskedForMoreThanItHas(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{OldDriver: true}) {
		return
	}
	src := openEmulated(t)
	list, err := readAll(src)
	require.NoError(t, err)
	assert.Equal(t, ofDeviceAndDriver, list[0].Scope)
	_, err = src.Processes(list[0].Device)
	assert.NoError(t, err)
}

func TestMemoryNotSupportedFallsBackToTheHosts(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{MemoryInfo: gpuemu.NoMemoryInfo}) {
		return
	}
	rec := start(t, Config{Source: openEmulated(t)})
	require.NoError(t, rec.Stop())
	s := rec.Recording().Series[0]
	assert.Equal(t, ofHost, s.Scope)
	assert.Positive(t, s.Min())
	assert.Equal(t, "GPU 0 memory used (host memory: the GPU has none of its own)", s.Label())
}

func TestALostEmulatedDevice(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	src := openEmulated(t)
	devices, err := src.Devices()
	require.NoError(t, err)
	control, err := gpuemu.Attach()
	require.NoError(t, err)
	defer control.Close()
	control.Lose()
	readings := make([]Reading, 1)
	src.Read(devices, []Quantity{MemoryUsed}, readings)
	assert.ErrorIs(t, readings[0].Err, ErrLost)
	control.Heal()
	src.Read(devices, []Quantity{MemoryUsed}, readings)
	assert.NoError(t, readings[0].Err)
}

func TestNoDriverAnswers(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Devices: -1}) {
		return
	}
	_, err := openLibrary("")
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.ErrorContains(t, err, "nvmlInit_v2: the driver is not loaded: check that nvidia-smi works")
}

// minimalC is a driver's library with the least that there can be. Any other
// function, called, ends the process with "symbol lookup error", exit 127.
const minimalC = `
#include <string.h>
int nvmlInit(void) { return 0; }
int nvmlDeviceGetCount(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex(unsigned i, void **d) { *d = (void *)(8L + i); return 0; }
int nvmlDeviceGetUUID(void *d, char *to, unsigned n) { (void)d; strncpy(to, "GPU-minimal", n); return 0; }
int nvmlDeviceGetName(void *d, char *to, unsigned n) { (void)d; strncpy(to, "Minimal", n); return 0; }
`

const libraryVariable = "GPUMEMTRACK_TEST_LIBRARY"

// compileLibrary builds a library from C and returns its path.
func compileLibrary(t *testing.T, source string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc to build a library with")
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "lib.c"), filepath.Join(dir, "libtest-ml.so.1")
	require.NoError(t, os.WriteFile(in, []byte(source), 0o644))
	text, err := exec.Command(gcc, "-shared", "-fPIC", "-o", out, in).CombinedOutput()
	require.NoError(t, err, string(text))
	return out
}

// inChild runs the calling test again in a child with the library's path in its
// environment, and returns the path there, or "" in the parent.
func inChild(t *testing.T, source string) string {
	t.Helper()
	if path := os.Getenv(libraryVariable); path != "" {
		return path
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), libraryVariable+"="+compileLibrary(t, source))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return ""
}

func TestALibraryThatLacksEveryOptionalFunction(t *testing.T) {
	path := inChild(t, minimalC)
	if path == "" {
		return
	}
	src, err := openLibrary(path)
	require.NoError(t, err)
	list, err := readAll(src)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, "Minimal[0]", list[0].String())
	assert.ErrorIs(t, list[0].Err, errNotSupported)
	assert.ErrorContains(t, list[0].Err, "this driver lacks the function")
	_, err = src.Processes(list[0].Device)
	assert.ErrorIs(t, err, errNotSupported)
	assert.NoError(t, src.Close())
}

func TestALibraryThatIsNoNVML(t *testing.T) {
	path := inChild(t, "int answer(void) { return 42; }")
	if path == "" {
		return
	}
	_, err := openLibrary(path)
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.ErrorContains(t, err, "it is not NVML")
}

func TestNoLibrary(t *testing.T) {
	_, err := openLibrary(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.ErrorContains(t, err, "cannot open shared object file")
	assert.NotContains(t, err.Error(), "\n")
}

// A call into a library that was closed would end the process.
func TestAClosedLibraryIsNotCalled(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	src, err := openLibrary("")
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	require.NoError(t, src.Close())
	require.NoError(t, src.Close(), "closing twice does no harm")
	readings := make([]Reading, 1)
	src.Read(devices, allSet.list(), readings)
	assert.ErrorIs(t, readings[0].Err, alloc.ErrClosed)
	_, err = src.Devices()
	assert.ErrorIs(t, err, alloc.ErrClosed)
	_, err = src.Processes(devices[0])
	assert.ErrorIs(t, err, alloc.ErrClosed)
}

func TestUtilizationOfProcesses(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	src := openEmulated(t)
	devices, err := src.Devices()
	require.NoError(t, err)
	_, err = UtilizationOf(src, devices[0])
	require.ErrorIs(t, err, ErrUnknown, "no process has a context")
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	defer dev.Close()
	busy, err := UtilizationOf(src, devices[0])
	require.NoError(t, err)
	assert.Equal(t, map[int]float64{os.Getpid(): 40}, busy)
	_, err = UtilizationOf(src, Device{UUID: "GPU-none"})
	require.Error(t, err)
	require.NoError(t, src.Close())
	_, err = UtilizationOf(src, devices[0])
	require.ErrorIs(t, err, alloc.ErrClosed)
}
