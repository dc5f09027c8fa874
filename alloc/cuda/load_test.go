//go:build linux

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

// openVariable makes the test binary a program that opens a device, for a look at what one and
// the same binary does on different machines.
const openVariable = "GPUMEMTRACK_TEST_OPEN"

func printOpened() {
	if driverIsLoaded() {
		fmt.Println("the driver was loaded before somebody asked")
		return
	}
	dev, err := cuda.Open(0)
	if err == nil && !driverIsLoaded() {
		fmt.Println("the driver that is open is not in this process's memory map")
		return
	}
	for name, known := range map[string]error{
		"ErrNoDriver": cuda.ErrNoDriver, "ErrDriverTooOld": cuda.ErrDriverTooOld,
		"ErrDriverRefuses": cuda.ErrDriverRefuses, "ErrNoDevice": cuda.ErrNoDevice,
	} {
		if errors.Is(err, known) {
			fmt.Println(name, err)
			return
		}
	}
	fmt.Println(dev, err)
}

func driverIsLoaded() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	return err != nil || strings.Contains(string(maps), "/libcuda.so")
}

// opened is what the program says where libraries is searched for the driver.
func opened(t *testing.T, libraries string, o gpuemu.Options, env ...string) string {
	t.Helper()
	cmd := gpuemu.Command(t, o, os.Args[0])
	cmd.Env = append(cmd.Env, openVariable+"=1")
	if libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraries)
	}
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "it never ends the program: %s", out)
	return strings.TrimSpace(string(out))
}

// folder holds a file as the driver's library.
func folder(t *testing.T, library string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libcuda.so.1"), []byte(library), 0o755))
	return dir
}

// TestOneBinary opens the device in the same binary with the emulated driver, with none,
// and with several that are of no use.
func TestOneBinary(t *testing.T) {
	needEmulated(t)
	libs, err := gpuemu.Build()
	require.NoError(t, err)
	otherLibrary, err := os.ReadFile(filepath.Join(libs.Dir, "libnvidia-ml.so.1"))
	require.NoError(t, err)
	two := gpuemu.Options{Devices: 2}
	for _, test := range []struct {
		name, libraries string
		options         gpuemu.Options
		env             string
		want            string // begins so
		contains        string
	}{
		{name: "emulated", want: "Emulated GPU 0 <nil>"},
		{name: "no driver", libraries: t.TempDir(), want: "ErrNoDriver open CUDA device 0: no NVIDIA driver", contains: "libcuda.so.1"},
		{name: "no library", libraries: folder(t, "no library"), want: "ErrNoDriver"},
		{name: "empty", libraries: folder(t, ""), want: "ErrNoDriver"},
		{name: "another library", libraries: folder(t, string(otherLibrary)), want: "ErrDriverTooOld", contains: "it has no function cuInit"},
		{name: "no device", options: gpuemu.Options{Devices: -1}, want: "ErrNoDevice", contains: "CUDA_ERROR_NO_DEVICE (100)"},
		{name: "refuses", options: gpuemu.Options{Fail: []gpuemu.Fault{{Function: "cuInit", From: 1, Code: 803}}}, want: "ErrDriverRefuses", contains: "cuInit: CUDA error 803"},
		{name: "fails later", options: gpuemu.Options{Fail: []gpuemu.Fault{{Function: "cuDeviceGetName", From: 1, Code: 719}}}, want: "<nil> open CUDA device 0: the device is lost"},
		{name: "none visible", options: two, env: "CUDA_VISIBLE_DEVICES=", want: "ErrNoDevice"},
		{name: "none visible by number", options: two, env: "CUDA_VISIBLE_DEVICES=-1", want: "ErrNoDevice"},
		{name: "one visible", options: two, env: "CUDA_VISIBLE_DEVICES=1", want: "Emulated GPU 0 <nil>"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := opened(t, test.libraries, test.options, test.env)
			require.True(t, strings.HasPrefix(got, test.want), got)
			require.Contains(t, got, test.contains)
		})
	}
}

// TestDriverWithoutGPU opens NVIDIA's own library where there is no GPU.
func TestDriverWithoutGPU(t *testing.T) {
	libraries := os.Getenv("GPUMEMTRACK_LIBCUDA")
	if libraries == "" {
		t.Skip("GPUMEMTRACK_LIBCUDA does not name a folder with NVIDIA's libcuda.so.1, as Debian's package libcuda1 has it")
	}
	got := opened(t, libraries, gpuemu.Options{})
	require.Regexp(t, "^(ErrNoDevice|ErrDriverRefuses) ", got)
}

func TestInfo(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Devices: 3, Memory: 8 << 30, Name: "Test GPU"}, "CUDA_VISIBLE_DEVICES=2,GPU-e3a10000-0000-4000-8000-000000000001") {
		return
	}
	infos, err := cuda.Devices()
	require.NoError(t, err)
	require.Equal(t, []cuda.Info{
		{"Test GPU", "GPU-e3a10000-0000-4000-8000-000000000002", 8 << 30},
		{"Test GPU", "GPU-e3a10000-0000-4000-8000-000000000001", 8 << 30},
	}, infos)
	dev, err := cuda.Open(1)
	require.NoError(t, err)
	require.Equal(t, infos[1], dev.(*cuda.Opened).Info())
	require.Equal(t, infos[1].UUID, dev.(*cuda.Opened).UUID())
	require.Equal(t, 1, dev.Ordinal())
	p, err := dev.Alloc(4 << 20)
	require.NoError(t, err)
	usage, _ := control(t).Usage(os.Getpid(), 1)
	require.EqualValues(t, 1, usage.Buffers, "on the machine's second device")
	require.NoError(t, dev.Free(p))
	require.NoError(t, dev.Close())
	_, err = cuda.Open(2)
	require.ErrorIs(t, err, cuda.ErrNoDevice)
	require.ErrorContains(t, err, "open CUDA device 2 of 2, counted from 0")
}

func TestMIGInstance(t *testing.T) {
	const (
		instance = "MIG-e3a10000-0000-4000-8000-000000000002"
		gpu      = "GPU-e3a10000-0000-4000-8000-000000000000"
	)
	for _, test := range []struct{ name, visible string }{
		{"by its UUID", instance},
		{"by the beginning of its UUID", "MIG-e3a1"},
		{"by its GPU's number", "0"},
		{"by its GPU's UUID", gpu},
		{"and no other device", instance + ",1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			needEmulated(t)
			if gpuemu.Rerun(t, gpuemu.Options{Devices: 2, Memory: 8 << 30, MIG: 1 << 30, Name: "Test GPU"}, "CUDA_VISIBLE_DEVICES="+test.visible) {
				return
			}
			infos, err := cuda.Devices()
			require.NoError(t, err)
			require.Equal(t, []cuda.Info{{Name: "Test GPU MIG 1g.1gb", UUID: instance, Memory: alloc.GiB}}, infos)
			dev := open(t)
			info, err := dev.MemInfo()
			require.NoError(t, err)
			require.Equal(t, alloc.GiB, info.Total)
			_, err = dev.Alloc(900 * alloc.MiB)
			require.ErrorIs(t, err, alloc.ErrOutOfMemory, "beside the context")
			p, err := dev.Alloc(700 * alloc.MiB)
			require.NoError(t, err)
			require.NoError(t, dev.Free(p))
		})
	}
	t.Run("its GPU's neighbour", func(t *testing.T) {
		needEmulated(t)
		if gpuemu.Rerun(t, gpuemu.Options{Devices: 2, MIG: 1 << 30}, "CUDA_VISIBLE_DEVICES=1") {
			return
		}
		infos, err := cuda.Devices()
		require.NoError(t, err)
		require.Len(t, infos, 1)
		require.Equal(t, "Emulated GPU", infos[0].Name)
	})
}
