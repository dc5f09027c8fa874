package nvml

import (
	"math"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func TestMemoryOfAProcess(t *testing.T) {
	const target = 40
	// 40 started 41, which started 42; 50 is somebody else's.
	here := map[int]int{1: 0, 40: 1, 41: 40, 42: 41, 50: 1}
	tests := []struct {
		name      string
		host      bool
		children  bool
		list      map[int]alloc.Bytes
		used      alloc.Bytes
		want      alloc.Bytes
		err       error
		errorSays string
	}{
		{"itself alone", true, false, map[int]alloc.Bytes{40: 5, 41: 7, 50: 9}, 0, 5, nil, ""},
		{"with its children", true, true, map[int]alloc.Bytes{40: 5, 41: 7, 42: 11, 50: 9}, 0, 23, nil, ""},
		{"its children alone", true, true, map[int]alloc.Bytes{42: 11, 50: 9}, 0, 11, nil, ""},
		{"no memory on this device", true, false, map[int]alloc.Bytes{50: 9}, 0, 0, nil, ""},
		{"nobody on an idle device", true, false, nil, 300 * alloc.MiB, 0, nil, ""},
		{"a list that hides all", true, false, nil, 2 * alloc.GiB, 0, errHidden, "the driver lists none, although 2.0 GiB are in use"},
		{"no value", true, false, map[int]alloc.Bytes{40: -1}, 0, 0, errNoValue, ""},
		{"no value of a child", true, true, map[int]alloc.Bytes{40: 5, 41: -1}, 0, 0, errNoValue, ""},
		{"no value of a stranger", true, false, map[int]alloc.Bytes{40: 5, 50: -1}, 0, 5, nil, ""},
		{"strangers that are not here", true, false, map[int]alloc.Bytes{900040: 5}, 0, 0, errHidden, "--pid=host"},
		{"found beside one that has just ended", true, false, map[int]alloc.Bytes{40: 5, 77: 1}, 0, 5, nil, ""},
		{"a container, nothing listed", false, false, nil, 0, 0, errHidden, "--pid=host"},
		{"a container, the host's numbers", false, false, map[int]alloc.Bytes{900040: 5}, 0, 0, errHidden, ""},
		{"a container, ours by chance", false, false, map[int]alloc.Bytes{40: 5, 900041: 1}, 0, 0, errHidden, ""},
		{"a container, numbers translated", false, true, map[int]alloc.Bytes{40: 5, 41: 7}, 0, 12, nil, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(1)
			f.processes = func(Device) (map[int]alloc.Bytes, error) { return test.list, nil }
			var r Reading
			r.Set(MemoryUsed, float64(test.used))
			w := newWatcher(Target{target, test.children}, processes{test.host, here})
			got, err := w.memory(f, f.devices[0], &r)
			if test.err == nil {
				require.NoError(t, err)
				assert.Equal(t, test.want, got)
				return
			}
			assert.ErrorIs(t, err, test.err)
			assert.ErrorContains(t, err, "pid 40")
			assert.ErrorContains(t, err, test.errorSays)
			assert.Zero(t, got)
		})
	}
}

// A process can end between the driver's answer and the look whether it is here:
// that hides nobody.
func TestAProcessThatHasJustEndedHidesNobody(t *testing.T) {
	f := newFake(1)
	lists := []map[int]alloc.Bytes{{77: 5}, {50: 9}}
	f.processes = func(Device) (map[int]alloc.Bytes, error) {
		list := lists[0]
		lists = lists[1:]
		return list, nil
	}
	w := newWatcher(Target{PID: 40}, processes{true, map[int]int{40: 1, 50: 1}})
	got, err := w.memory(f, f.devices[0], &Reading{})
	require.NoError(t, err)
	assert.Zero(t, got)
}

// Once the driver was seen to translate, a process that is not listed has
// nothing, and is not hidden.
func TestATranslatingDriverIsRemembered(t *testing.T) {
	f := newFake(1)
	list := map[int]alloc.Bytes{40: 5}
	f.processes = func(Device) (map[int]alloc.Bytes, error) { return list, nil }
	w := newWatcher(Target{PID: 40}, processes{false, map[int]int{40: 1}})
	_, err := w.memory(f, f.devices[0], &Reading{})
	require.NoError(t, err)
	list = nil
	got, err := w.memory(f, f.devices[0], &Reading{})
	require.NoError(t, err)
	assert.Zero(t, got)
}

func TestAnOrphanStaysInTheFamily(t *testing.T) {
	table := processes{true, map[int]int{1: 0, 40: 1, 41: 40, 42: 41}}
	w := newWatcher(Target{40, true}, table)
	assert.True(t, w.belongs(42))
	table.parents[42] = 1 // its parent, 41, is gone
	delete(table.parents, 41)
	assert.True(t, w.belongs(42))
	table.parents[43] = 1
	assert.False(t, w.belongs(43), "never seen with it")
	table.parents[60], table.parents[61] = 61, 60
	assert.False(t, w.belongs(60), "a table that changed while it was read")
}

func TestSystemProcesses(t *testing.T) {
	var table systemProcesses
	child := exec.Command("sleep", "60")
	require.NoError(t, child.Start())
	defer child.Wait()
	defer child.Process.Kill()
	ppid, started, ok := table.parent(child.Process.Pid)
	require.True(t, ok)
	assert.Equal(t, os.Getpid(), ppid)
	assert.Positive(t, started)
	assert.True(t, table.exists(child.Process.Pid))
	assert.True(t, newWatcher(Target{os.Getpid(), true}, table).belongs(child.Process.Pid))
	assert.False(t, table.exists(math.MaxInt32))
	_, _, ok = table.parent(math.MaxInt32)
	assert.False(t, ok)
}

func TestMemoryOfOthers(t *testing.T) {
	f := newFake(1)
	list := map[int]alloc.Bytes{os.Getpid(): 5, os.Getppid(): 7}
	f.processes = func(Device) (map[int]alloc.Bytes, error) { return list, nil }
	others, err := OthersMemory(f, f.devices[0], self)
	require.NoError(t, err)
	assert.Equal(t, alloc.Bytes(7), others)

	list[os.Getppid()] = -1
	_, err = OthersMemory(f, f.devices[0], self)
	assert.ErrorIs(t, err, errNoValue)
	list = map[int]alloc.Bytes{os.Getpid(): -1}
	_, err = OthersMemory(f, f.devices[0], self)
	assert.ErrorIs(t, err, errNoValue)
}

func TestMemoryOfThisProcess(t *testing.T) {
	f := newFake(1)
	f.processes = func(Device) (map[int]alloc.Bytes, error) { return map[int]alloc.Bytes{os.Getpid(): 3 * alloc.MiB}, nil }
	got, err := MemoryOf(f, f.devices[0], self)
	require.NoError(t, err)
	assert.Equal(t, 3*alloc.MiB, got)
}

func TestUtilizationThatNoSourceTells(t *testing.T) {
	_, err := UtilizationOf(&smi{}, Device{})
	require.ErrorIs(t, err, ErrUnknown)
}
