package nvml

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/goroutines"
)

func TestMain(m *testing.M) {
	os.Unsetenv("CUDA_VISIBLE_DEVICES") // of who runs the tests
	goroutines.CheckMain(m)
}

func start(t *testing.T, cfg Config) *Recorder {
	t.Helper()
	r, err := NewRecorder(cfg)
	require.NoError(t, err)
	require.NoError(t, r.Start())
	return r
}

func TestRecorderSamplesAtItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		r := start(t, Config{Source: f})
		assert.Equal(t, "recorder, devices: 1, started", fmt.Sprint(r))
		time.Sleep(900 * time.Millisecond) // of the bubble's clock
		f.set(0, 300*alloc.MiB, nil)
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, r.Stop())

		s := r.Recording().of(MemoryUsed)[0]
		assert.Equal(t, 7, s.Len(), "at 0, 0.2 ... 1.0 and at the end")
		assert.Equal(t, 1100*time.Millisecond, s.Duration())
		assert.Equal(t, float64(100*alloc.MiB), s.Min())
		assert.Equal(t, float64(300*alloc.MiB), s.Max())
		assert.InDelta(t, float64(5*100+2*300)/7*(1<<20), s.Mean(), 1)
	})
}

func TestRecorderRecordsWhileAFunctionRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		r, err := NewRecorder(Config{Source: newFake(2), Interval: time.Second})
		require.NoError(t, err)
		assert.ErrorIs(t, r.Record(t.Context(), func(context.Context) error {
			time.Sleep(3500 * time.Millisecond)
			return boom
		}), boom)
		rec := r.Recording()
		require.Len(t, rec.Series, 2)
		assert.Equal(t, 5, rec.Series[1].Len())
		assert.Equal(t, time.Second, rec.Interval)
	})
}

func TestRecorderCanBeReadWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Config{Source: newFake(1)})
		defer r.Stop()
		time.Sleep(time.Second)
		synctest.Wait()
		before := r.Recording()
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 6, before.Series[0].Len(), "a copy does not grow")
		assert.Equal(t, 11, r.Recording().Series[0].Len())
	})
}

func TestRecorderIsUsedOnce(t *testing.T) {
	r := start(t, Config{Source: newFake(1)})
	require.NoError(t, r.Stop())
	require.NoError(t, r.Stop())
	assert.ErrorContains(t, r.Start(), "make a new one")

	never, err := NewRecorder(Config{Source: newFake(1), Files: []string{t.TempDir() + "/"}})
	require.NoError(t, err)
	require.NoError(t, never.Stop())
}

func TestAFailingQueryIsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2)
		r := start(t, Config{Source: f})
		time.Sleep(500 * time.Millisecond)
		f.set(0, 0, errFlaky)
		time.Sleep(400 * time.Millisecond)
		f.set(0, 200*alloc.MiB, nil)
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, r.Stop())

		rec := r.Recording()
		assert.Equal(t, 2, rec.Failures)
		s := rec.Series[0]
		assert.Equal(t, 2, s.Gaps())
		var kinds []bool
		for _, v := range s.Points() {
			kinds = append(kinds, math.IsNaN(v))
		}
		assert.Equal(t, []bool{false, false, false, true, true, false, false}, kinds)
		assert.Equal(t, float64(100*alloc.MiB), s.Min(), "a gap is no zero")
		assert.Equal(t, errFlaky.Error(), s.Note, "why")
		assert.Zero(t, rec.Series[1].Gaps(), "the other device")
	})
}

func TestADeviceThatKeepsFailingIsAskedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.set(0, 0, errFlaky)
		r := start(t, Config{Source: f, Interval: 100 * time.Millisecond})
		time.Sleep(10500 * time.Millisecond)
		synctest.Wait()
		read, _ := f.counts()
		assert.Equal(t, patience+9, read, "1 s at full rate, then one a second")
		f.set(0, 1, nil)
		time.Sleep(2 * time.Second)
		require.NoError(t, r.Stop())
		assert.Greater(t, r.Recording().Series[0].Len(), 10, "it comes back")
	})
}

// What holds up the driver longer than the interval is not asked without a pause:
// the program that is watched has it half of the time at least.
func TestASlowSourceIsGivenARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.takes = 50 * time.Millisecond
		r := start(t, Config{Source: f, Interval: minInterval})
		time.Sleep(time.Second)
		require.NoError(t, r.Stop())
		read, _ := f.counts()
		assert.InDelta(t, 11, read, 1)
	})
}

func TestALostDeviceEndsItsSeriesNotTheRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(2)
		file := filepath.Join(t.TempDir(), "lost.jsonl")
		r := start(t, Config{Source: f, Files: []string{file}})
		time.Sleep(500 * time.Millisecond)
		f.set(0, 0, &callError{function: "nvmlDeviceGetMemoryInfo_v2", code: codeLost})
		time.Sleep(time.Second)
		require.NoError(t, r.Stop())

		read, err := ReadFile(file)
		require.NoError(t, err)
		for _, rec := range []Recording{r.Recording(), read} {
			assert.True(t, rec.Series[0].Ended)
			assert.Equal(t, 3, rec.Series[0].Len())
			assert.Contains(t, rec.Series[0].Note, "it fell off the bus; reset it")
			assert.False(t, rec.Series[1].Ended)
			assert.Equal(t, 9, rec.Series[1].Len())
		}
		assert.Equal(t, 1, r.Recording().Failures)
	})
}

func TestProcessListsAreAskedForOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.processes = func(Device) (map[int]alloc.Bytes, error) {
			return map[int]alloc.Bytes{os.Getpid(): 42 * alloc.MiB, 1: alloc.GiB}, nil
		}
		r := start(t, Config{Source: f, Interval: minInterval, Target: self})
		time.Sleep(3*time.Second + time.Millisecond)
		require.NoError(t, r.Stop())
		read, listed := f.counts()
		assert.Equal(t, 302, read)
		assert.Equal(t, 4, listed)
		s := r.Recording().of(ProcessMemory)[0]
		assert.Equal(t, 4, s.Len())
		assert.Zero(t, s.Gaps())
		assert.Equal(t, float64(42*alloc.MiB), s.Max())
	})
}

// A program that was just started is asked for when memory moves, once.
func TestAFreshProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		var held atomic.Int64
		f.processes = func(Device) (map[int]alloc.Bytes, error) {
			return map[int]alloc.Bytes{os.Getpid(): alloc.Bytes(held.Load())}, nil
		}
		r := start(t, Config{Source: f, Target: self, Fresh: true})
		time.Sleep(500 * time.Millisecond)
		_, listed := f.counts()
		assert.Zero(t, listed)
		early := r.Recording().of(ProcessMemory)[0]
		assert.Contains(t, early.String(), "unknown: pid ")
		assert.Contains(t, early.Note, "not asked for in so short a time")

		held.Store(int64(200 * alloc.MiB))
		f.set(0, 300*alloc.MiB, nil)
		time.Sleep(400 * time.Millisecond)
		require.NoError(t, r.Stop())
		_, listed = f.counts()
		assert.Equal(t, 1, listed)
		s := r.Recording().of(ProcessMemory)[0]
		assert.Equal(t, float64(200*alloc.MiB), s.Max())
		assert.Empty(t, s.Note)
	})
}

func TestAFreshProcessWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.processes = func(Device) (map[int]alloc.Bytes, error) { return map[int]alloc.Bytes{os.Getpid(): 0}, nil }
		r := start(t, Config{Source: f, Target: self, Fresh: true})
		time.Sleep(2500 * time.Millisecond)
		require.NoError(t, r.Stop())
		_, listed := f.counts()
		assert.Equal(t, 2, listed, "after one second and after two")
		assert.Zero(t, r.Recording().of(ProcessMemory)[0].Max())
	})
}

func TestAnUnknownProcessIsNoZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1)
		f.processes = func(Device) (map[int]alloc.Bytes, error) { return map[int]alloc.Bytes{os.Getpid(): -1}, nil }
		file := filepath.Join(t.TempDir(), "unknown.csv")
		r := start(t, Config{Source: f, Target: self, Files: []string{file}})
		time.Sleep(3 * time.Second)
		require.NoError(t, r.Stop())
		read, err := ReadFile(file)
		require.NoError(t, err)
		for _, rec := range []Recording{r.Recording(), read} {
			process, device := rec.of(ProcessMemory)[0], rec.of(MemoryUsed)[0]
			assert.Zero(t, process.Len())
			assert.Positive(t, process.Gaps())
			assert.True(t, math.IsNaN(process.Max()))
			assert.Contains(t, process.String(), "unknown: pid ")
			assert.Contains(t, process.String(), errNoValue.Error())
			assert.Contains(t, device.Note, "all processes together, since pid")
			assert.Positive(t, device.Len())
		}
	})
}

func TestRecorderRefuses(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there.jsonl")
	require.NoError(t, os.WriteFile(there, []byte("keep me"), 0o644))
	tests := []struct {
		name string
		cfg  Config
		says string
	}{
		{"too short an interval", Config{Interval: time.Millisecond}, "the shortest is 10ms"},
		{"a negative pid", Config{Target: Target{PID: -3}}, "a process number is positive"},
		{"a process that is not", Config{Target: Target{PID: 1 << 30}}, "no process 1073741824"},
		{"a device that is not", Config{Devices: []string{"7"}}, "GPU 7: no such GPU: they are numbered 0 to 1"},
		{"a UUID that is not", Config{Devices: []string{"GPU-abc"}}, `UUID "GPU-abc": no such GPU`},
		{"a file that exists", Config{Files: []string{there}}, "exists: choose another name"},
		{"a format that is not", Config{Files: []string{filepath.Join(dir, "a.xlsx")}}, "written as .jsonl or .csv"},
		{"a directory that is not", Config{Files: []string{filepath.Join(dir, "no", "such") + "/"}}, "no such file or directory"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.cfg.Source = newFake(2)
			_, err := NewRecorder(test.cfg)
			assert.ErrorContains(t, err, test.says)
			if valid := test.cfg.Validate(); test.cfg.Files == nil {
				assert.EqualError(t, valid, err.Error())
			} else {
				assert.NoError(t, valid, "files are not looked at")
			}
		})
	}
	kept, err := os.ReadFile(there)
	require.NoError(t, err)
	assert.Equal(t, "keep me", string(kept))
	r, err := NewRecorder(Config{Source: newFake(1), Files: []string{there}, Overwrite: true})
	require.NoError(t, err)
	require.NoError(t, r.Stop())
}

// A recorder of a validated Config does not ask for the devices again.
func TestValidateKeepsTheDevices(t *testing.T) {
	source := newFake(2)
	cfg := Config{Source: source, Devices: []string{"1"}}
	require.NoError(t, cfg.Validate())
	source.devices = nil
	r, err := NewRecorder(cfg)
	require.NoError(t, err)
	require.NoError(t, r.Stop())
	assert.Equal(t, []Device{newFake(2).devices[1]}, r.Recording().Devices)
	cfg.Source = nil
	require.NoError(t, cfg.Validate(), "without a source there is nothing to ask")
}

func TestNoVisibleDevice(t *testing.T) {
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID") // a CUDA that answers here does not know the fake's GPUs
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	_, err := NewRecorder(Config{Source: newFake(2)})
	assert.ErrorContains(t, err, "CUDA_VISIBLE_DEVICES leaves none of 2 GPUs")
	_, err = NewRecorder(Config{Source: newFake(0)})
	assert.ErrorIs(t, err, ErrNotAvailable)
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	r, err := NewRecorder(Config{Source: newFake(2)})
	require.NoError(t, err)
	require.NoError(t, r.Stop())
	assert.Equal(t, 1, r.Recording().Devices[0].Index)
}

// A disk that fills up stops the file and not the recording.
func TestAFailedWriteIsToldByStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "full.jsonl")
		r, err := NewRecorder(Config{Source: newFake(1), Files: []string{file}})
		require.NoError(t, err)
		require.NoError(t, r.Start())
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		require.NoError(t, r.files[0].f.Close())
		time.Sleep(450 * time.Millisecond)
		assert.ErrorContains(t, r.Stop(), "the rest is in memory only")
		assert.Equal(t, 6, r.Recording().Series[0].Len())
		read, err := ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, 3, read.Series[0].Len())
	})
}

func TestAutomaticNames(t *testing.T) {
	dir := t.TempDir()
	r, err := NewRecorder(Config{Source: newFake(1), Files: []string{dir + "/"}, Target: self})
	require.NoError(t, err)
	r2, err := NewRecorder(Config{Source: newFake(2), Files: []string{dir + "/"}})
	require.NoError(t, err)
	require.NoError(t, errors.Join(r.Stop(), r2.Stop()))
	names := slices.Concat(r.Files(), r2.Files())
	assert.Regexp(t, `\d\d-\w\w\w-\d\d-\d\d-\d\d-\d\d-pid\d+-gpu0-gpumem\.jsonl$`, names[0])
	assert.Regexp(t, `\d\d-\d\d-\d\d-2gpus-gpumem\.jsonl$`, names[1])

	now := time.Date(2026, time.November, 21, 3, 30, 5, 0, time.UTC)
	first := autoName(dir, now, 7, r.Recording().Devices)
	assert.Equal(t, filepath.Join(dir, "21-Nov-26-03-30-05-pid7-gpu0-gpumem.jsonl"), first)
	require.NoError(t, os.WriteFile(first, nil, 0o644))
	assert.Equal(t, filepath.Join(dir, "21-Nov-26-03-30-05-pid7-gpu0-gpumem-2.jsonl"), autoName(dir, now, 7, r.Recording().Devices))
}
