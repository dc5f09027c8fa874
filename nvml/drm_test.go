package nvml

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// machine makes the files of a machine from a file of testdata/drm: "-- NAME --" before a file's
// content, "-- NAME -> TARGET --" for a link.
func machine(t *testing.T, name string) (root string) {
	t.Helper()
	root = t.TempDir()
	b, err := os.ReadFile(filepath.Join("testdata/drm", name))
	require.NoError(t, err)
	var file *os.File
	for line := range strings.Lines(string(b)) {
		head, ok := strings.CutPrefix(strings.TrimSuffix(line, " --\n"), "-- ")
		if !ok {
			if file != nil {
				_, err := file.WriteString(line)
				require.NoError(t, err)
			}
			continue
		}
		if file != nil {
			require.NoError(t, file.Close())
			file = nil
		}
		name, target, link := strings.Cut(head, " -> ")
		path := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if link {
			if err := os.Symlink(target, path); err != nil {
				t.Skip("no links here: ", err)
			}
			continue
		}
		file, err = os.Create(path)
		require.NoError(t, err)
	}
	if file != nil {
		require.NoError(t, file.Close())
	}
	return root
}

// values are what a source tells of each device, for people.
func values(t *testing.T, src Source) string {
	t.Helper()
	devices, err := src.Devices()
	require.NoError(t, err)
	var text strings.Builder
	for _, r := range ReadAll(src, devices) {
		require.NoError(t, r.Err)
		fmt.Fprintf(&text, "%v %s %s\n", r.Device, r.UUID, r.BusID)
		for _, q := range allSet.list() {
			if v, ok := r.Value(q); ok {
				fmt.Fprintf(&text, "  %v %s\n", q, q.Format(v))
			}
		}
		list, err := src.Processes(r.Device)
		require.NoError(t, err)
		for _, pid := range slices.Sorted(maps.Keys(list)) {
			fmt.Fprintf(&text, "  pid %d: %d KiB\n", pid, list[pid]>>10)
		}
	}
	return text.String()
}

func TestDRM(t *testing.T) {
	for name, want := range map[string]string{
		// Client 30 has two copies in one process and one in its child; client 30 of the other card is another.
		// Of process 2001 the driver tells no memory.
		"amdgpu.txt": `AMD INSTINCT MI210 (MCM) OAM AC MBA[0] PCI-0000:43:00.0 0000:43:00.0
  memory used 10.5 MiB
  memory free 64.0 GiB
  memory total 64.0 GiB
  pid 2000: 10240 KiB
  pid 2001: -1 KiB
AMD Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M][1] GPU-f86a3c1e4b2d7790 0000:83:00.0
  memory used 1.1 GiB
  memory free 22.8 GiB
  memory total 24.0 GiB
  utilization 37 %
  power 112 W
  temperature 54 °C
  fan speed 20 %
  graphics clock 2304 MHz
  memory clock 1249 MHz
  pid 1000: 548524 KiB
`,
		"xe.txt": `Intel DG2 [Arc A770][0] PCI-0000:03:00.0 0000:03:00.0
  memory total 16.0 GiB
  temperature 46 °C
  graphics clock 2400 MHz
  pid 77: 25016 KiB
`,
		// The first GPU's memory is the host's. Memory that the firmware keeps, stolen, is not the process's.
		"i915.txt": `Intel GPU 8086:46a6[0] PCI-0000:00:02.0 0000:00:02.0
  graphics clock 1300 MHz
  pid 5: -1 KiB
Intel GPU 8086:56a0[1] PCI-0000:03:00.0 0000:03:00.0
  graphics clock 0 MHz
  pid 5: 131072 KiB
`,
	} {
		t.Run(name, func(t *testing.T) {
			src, err := openDRM(machine(t, name))
			require.NoError(t, err)
			assert.Equal(t, want, values(t, src))
			require.NoError(t, src.Close())
		})
	}
}

func TestDRMChanges(t *testing.T) {
	root := machine(t, "amdgpu.txt")
	src, err := openDRM(root)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(src.Name(), "DRM: amdgpu"), src.Name())
	devices, err := src.Devices()
	require.NoError(t, err)

	// Each question about one device is a new look.
	info := filepath.Join(root, "proc/2000/fdinfo/9")
	for _, mib := range []alloc.Bytes{1, 2} {
		require.NoError(t, os.WriteFile(info, fmt.Appendf(nil, "drm-pdev:\t%s\ndrm-client-id:\t30\ndrm-resident-vram:\t%d MiB\n", devices[0].BusID, mib), 0o644))
		memory, err := MemoryOf(src, devices[0], Target{PID: 2000})
		require.NoError(t, err)
		assert.Equal(t, mib*alloc.MiB, memory)
	}
	_, err = MemoryOf(src, devices[0], Target{PID: 2001})
	require.ErrorIs(t, err, ErrUnknown)
	memory, err := MemoryOf(src, devices[0], Target{PID: 1000})
	require.NoError(t, err)
	assert.Zero(t, memory)

	// A size that cannot be read, a client without a number, and a client that the driver lists without a place.
	for _, text := range []string{"drm-client-id: 30\ndrm-resident-vram: 5 pages", "drm-resident-vram: 5 MiB", "drm-client-id: 30\ndrm-resident-vram: 18446744073709551615 KiB"} {
		require.NoError(t, os.WriteFile(info, []byte("drm-pdev: "+devices[0].BusID+"\n"+text+"\n"), 0o644))
		_, err = MemoryOf(src, devices[0], Target{PID: 2000})
		require.ErrorIs(t, err, ErrUnknown, text)
	}
	require.NoError(t, os.Remove(info)) // the process closed it just now
	memory, err = MemoryOf(src, devices[0], Target{PID: 2000})
	require.NoError(t, err)
	assert.Zero(t, memory)

	require.NoError(t, os.RemoveAll(filepath.Join(root, "sys/class/drm/card2")))
	readings := ReadAll(src, append(devices, Device{UUID: "GPU-none"}))
	require.ErrorIs(t, readings[0].Err, ErrLost)
	require.NoError(t, readings[1].Err)
	require.ErrorIs(t, readings[2].Err, ErrNoDevice)
}

// TestDRMOfOthers: what cannot be read is unknown.
func TestDRMOfOthers(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read all files")
	}
	root := machine(t, "amdgpu.txt")
	src, err := openDRM(root)
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(filepath.Join(root, "proc/2000/fd"), 0))
	t.Cleanup(func() { os.Chmod(filepath.Join(root, "proc/2000/fd"), 0o755) })
	_, err = MemoryOf(src, devices[0], Target{PID: 2000})
	require.ErrorIs(t, err, ErrUnknown)
	_, err = OthersMemory(src, devices[0], Target{PID: 1000})
	require.ErrorIs(t, err, ErrUnknown)
	_, err = MemoryOf(src, devices[0], Target{PID: 1000})
	require.NoError(t, err)
	assert.Contains(t, src.Name(), "other users")
}

func TestOpenFallsBackOnDRM(t *testing.T) {
	t.Setenv("PATH", "")
	if library, err := openLibrary(""); err == nil {
		library.Close()
		t.Skip("there is an NVIDIA driver here")
	}
	root := machine(t, "xe.txt")
	src, err := open(root)
	require.NoError(t, err)
	assert.Contains(t, src.Name(), "DRM: xe")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/module/nvidia"), 0o755))
	_, err = open(root)
	require.ErrorIs(t, err, ErrNotAvailable, "an NVIDIA driver that fails is not hidden")
	_, err = open(t.TempDir())
	require.ErrorIs(t, err, ErrNotAvailable)
	_, err = openDRM(t.TempDir())
	require.ErrorIs(t, err, ErrNotAvailable)
	require.ErrorContains(t, err, "no AMD or Intel GPU")
}

func TestOpenByName(t *testing.T) {
	t.Setenv("PATH", "")
	smi := script(t, "case $1 in *driver_version) echo 0, 570.1;; esac\n")
	root, none := machine(t, "xe.txt"), filepath.Join(t.TempDir(), "none")
	for _, names := range [][]string{{"drm:" + root}, {"nvml:" + none, "smi:" + none, "drm:" + root, "smi:" + smi}} {
		src, err := Open(names...)
		require.NoError(t, err)
		assert.Contains(t, src.Name(), "DRM: xe")
		require.NoError(t, src.Close())
	}
	src, err := Open("smi:" + smi)
	require.NoError(t, err)
	assert.Contains(t, src.Name(), "570.1")
	require.NoError(t, src.Close())

	_, err = Open("nvml:"+none, "smi:"+none, "drm:"+none)
	require.ErrorIs(t, err, ErrNotAvailable)
	for _, reason := range []string{none, "there is no " + none + " to run", "no AMD or Intel GPU is in " + none} {
		assert.ErrorContains(t, err, reason)
	}
	_, err = Open("smi", "DRM:"+root)
	require.EqualError(t, err, `nvml: there is no source "DRM:`+root+`": want nvml, smi or drm`)
	assert.NotErrorIs(t, err, ErrNotAvailable)
}

// TestDRMRecorded: a process's memory is recorded where the device's own is not told, and the series says so.
func TestDRMRecorded(t *testing.T) {
	root, self := machine(t, "xe.txt"), os.Getpid() // a recorder's target is a process that there is
	require.NoError(t, os.Rename(filepath.Join(root, "proc/77"), filepath.Join(root, "proc", strconv.Itoa(self))))
	src, err := openDRM(root)
	require.NoError(t, err)
	rec, err := NewRecorder(Config{Source: src, Target: Target{PID: self}, Interval: minInterval})
	require.NoError(t, err)
	require.NoError(t, rec.Start())
	time.Sleep(5 * minInterval)
	require.NoError(t, rec.Stop())
	recording := rec.Recording()
	used, own := recording.of(MemoryUsed)[0], recording.of(ProcessMemory)[0]
	assert.False(t, used.Known())
	assert.NotEmpty(t, used.Note)
	assert.True(t, own.Known())
	assert.EqualValues(t, 25016<<10, own.Max())
}
