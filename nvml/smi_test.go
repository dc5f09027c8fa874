package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// fakeSMI answers as nvidia-smi does, by the query.
func fakeSMI(answers map[string]string) func(args ...string) ([]byte, error) {
	return func(args ...string) ([]byte, error) {
		for prefix, text := range answers {
			if strings.HasPrefix(args[0], prefix) {
				if strings.HasPrefix(text, "error: ") {
					return nil, errors.New(text)
				}
				return []byte(text), nil
			}
		}
		return nil, errors.New("unexpected query " + args[0])
	}
}

const smiIdentities = `0, GPU-a, NVIDIA H200, 00000000:1B:00.0
Unable to determine the device handle for GPU1: 0000:2B:00.0: Unknown Error
2, GPU-c, "NVIDIA GB10, with a comma", 00000000:3B:00.0
3, GPU-d, NVIDIA RTX 4090, 00000000:4B:00.0
`

func openFakeSMI(t *testing.T, answers map[string]string) *smi {
	t.Helper()
	all := map[string]string{
		"--query-gpu=driver_version": "570.86.10\n570.86.10\n", "--query-gpu=memory.reserved": "600\n",
		"--query-gpu=index,uuid": smiIdentities,
	}
	for k, v := range answers {
		all[k] = v
	}
	s, err := newSMI("nvidia-smi", fakeSMI(all))
	require.NoError(t, err)
	return s
}

func TestSMIDevices(t *testing.T) {
	s := openFakeSMI(t, nil)
	devices, err := s.Devices()
	require.NoError(t, err)
	require.Len(t, devices, 3)
	assert.Equal(t, Device{Index: 2, UUID: "GPU-c", Name: "NVIDIA GB10, with a comma", BusID: "00000000:3B:00.0"}, devices[1])
	assert.Equal(t, "nvidia-smi, driver 570.86.10", s.Name())
}

// 120345 MiB is what grep -Eo "[0-9]{1,5}" made two numbers of; and a row that
// is missing shifts no other device's values.
func TestSMIReadings(t *testing.T) {
	s := openFakeSMI(t, map[string]string{
		"--query-gpu=uuid,": "GPU-d, 24564, 4000, 20000, 93, 70.50, 61, [N/A], 1980, 2619, 1980, 1545, 564\n" +
			"GPU-a, 143771, 120345, 22862, 0, 700.00, 40, [Not Supported], 1, 2, 3, 4, 600\n" +
			"GPU-c: an unreadable row\n",
	})
	devices, err := s.Devices()
	require.NoError(t, err)
	readings := make([]Reading, len(devices))
	s.Read(devices, AllQuantities, readings)

	used, ok := readings[0].Bytes(MemoryUsed)
	assert.True(t, ok)
	assert.Equal(t, 120345*alloc.MiB, used)
	_, ok = readings[0].Value(FanSpeed)
	assert.False(t, ok)
	power, _ := readings[0].Value(Power)
	assert.Equal(t, 700.0, power)
	assert.ErrorIs(t, readings[1].Err, errNoRow)
	reserved, _ := readings[2].Bytes(DriverReserved)
	assert.Equal(t, 564*alloc.MiB, reserved)
	clock, _ := readings[2].Value(ClockVideo)
	assert.Equal(t, 1545.0, clock)
}

func TestSMIMemoryNotSupported(t *testing.T) {
	s := openFakeSMI(t, map[string]string{"--query-gpu=uuid,memory.used": "GPU-a, [N/A]\nGPU-c, [GPU is lost]\n"})
	devices, _ := s.Devices()
	readings := make([]Reading, 2)
	s.Read(devices[:2], SetOf(MemoryUsed), readings)
	if runtime.GOOS == "linux" {
		assert.Equal(t, OfHost, readings[0].Scope)
		assert.Positive(t, readings[0].values[MemoryUsed])
	}
	assert.ErrorIs(t, readings[1].Err, ErrLost)
}

func TestSMIOfAnOldDriverHasNoReserve(t *testing.T) {
	s := openFakeSMI(t, map[string]string{
		"--query-gpu=memory.reserved": `error: Field "memory.reserved" is not a valid field to query.`,
		"--query-gpu=uuid,":           "GPU-a, 100, 1, 99, 0, 0, 0, 0, 0, 0, 0, 0\n",
	})
	readings := make([]Reading, 1)
	s.Read([]Device{{UUID: "GPU-a"}}, AllQuantities, readings)
	require.NoError(t, readings[0].Err)
	_, ok := readings[0].Value(DriverReserved)
	assert.False(t, ok)
}

func TestSMIProcesses(t *testing.T) {
	s := openFakeSMI(t, map[string]string{
		"--query-compute-apps": "GPU-a, 120, 120345\nGPU-d, 120, 7\nGPU-a, 1203, [N/A]\nGPU-a, [Insufficient Permissions], 1\n",
	})
	list, err := s.Processes(Device{UUID: "GPU-a"})
	require.NoError(t, err)
	assert.Equal(t, []Process{{120, 120345 * alloc.MiB}, {1203, -1}}, list)
}

func TestSMIThatFails(t *testing.T) {
	_, err := newSMI("nvidia-smi", fakeSMI(map[string]string{"--query-gpu": "error: it cannot communicate with the driver"}))
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.ErrorContains(t, err, "cannot communicate")

	s := openFakeSMI(t, map[string]string{"--query-gpu=uuid,": "error: exit status 15"})
	readings := make([]Reading, 2)
	s.Read([]Device{{UUID: "GPU-a"}, {UUID: "GPU-d"}}, SetOf(MemoryUsed), readings)
	assert.ErrorContains(t, readings[0].Err, "exit status 15")
	assert.ErrorContains(t, readings[1].Err, "exit status 15")
	_, err = parseSMI([]byte("\"open"))
	assert.NoError(t, err, "a quote that is not closed is a name like another")
}

func TestSMIProgram(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell script")
	}
	script := filepath.Join(t.TempDir(), "nvidia-smi")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"+
		"case $1 in *driver_version) echo 570.1;; *index*) echo '0, GPU-a, Fake, 0:1';; *) echo 'No devices were found'; exit 6;; esac\n"), 0o755))
	src, err := OpenSMI(script)
	require.NoError(t, err)
	devices, err := src.Devices()
	require.NoError(t, err)
	assert.Equal(t, "Fake[0]", devices[0].String())
	_, err = src.Processes(devices[0])
	assert.ErrorContains(t, err, "exit status 6: No devices were found")
	assert.NoError(t, src.Close())

	t.Setenv("PATH", t.TempDir())
	_, err = OpenSMI("")
	assert.ErrorContains(t, err, "there is no nvidia-smi to run")
	if library, err := OpenLibrary(""); err == nil {
		assert.NoError(t, library.Close())
		t.Skip("a driver answers on this machine: Open has its library")
	}
	_, err = Open()
	assert.ErrorIs(t, err, ErrNotAvailable)
	assert.NotContains(t, err.Error(), "\n")
}
