package gpumemtest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

func TestMain(m *testing.M) { VerifyTestMain(m) }

// fake is a test whose end the test of it chooses.
type fake struct {
	testing.TB
	out      bytes.Buffer
	errors   []string
	cleanups []func()
	skipped  bool
}

func (f *fake) Helper()           {}
func (f *fake) Output() io.Writer { return &f.out }
func (f *fake) Failed() bool      { return len(f.errors) > 0 }
func (f *fake) Skipped() bool     { return f.skipped }
func (f *fake) Cleanup(c func())  { f.cleanups = append(f.cleanups, c) }

func (f *fake) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

// Fatalf ends a test, as Skip would.
func (f *fake) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(f)
}

// run runs a test to its end.
func (f *fake) run(test func()) *fake {
	defer func() {
		if r := recover(); r != nil && r != f {
			panic(r)
		}
		for _, cleanup := range slices.Backward(f.cleanups) {
			cleanup()
		}
	}()
	test()
	return f
}

func keep(tr *tracker.MemTracker, n int) {
	if _, err := tr.Alloc(alloc.Shape{n}, alloc.Uint8, tracker.Activation); err != nil {
		panic(err)
	}
}

func TestNewFailsATestThatLeaks(t *testing.T) {
	f := &fake{}
	f.run(func() {
		tr := New(f, Config{})
		tr.Track()
		keep(tr, 1000)
		tr.Track()
	})
	require.Len(t, f.errors, 1)
	assert.Contains(t, f.errors[0], "device memory was not freed: 1 buffer, 1000 B")
	assert.Contains(t, f.errors[0], "gpumemtest.keep")
	assert.Contains(t, f.out.String(), "1 * (1000,)", "the report is in the log")
}

func TestNewFailsATestAboveItsPeak(t *testing.T) {
	for limit, fails := range map[alloc.Bytes]int{0: 0, 1000: 0, 999: 1} {
		f := &fake{}
		f.run(func() {
			tr := New(f, Config{MaxPeak: limit})
			b, err := tr.Alloc(alloc.Shape{1000}, alloc.Uint8, tracker.Activation)
			require.NoError(t, err)
			require.NoError(t, b.Free())
		})
		require.Len(t, f.errors, fails, "%v", f.errors)
	}
}

func TestNewAsksOnlyTestsThatCameToTheirEnd(t *testing.T) {
	f := &fake{}
	f.run(func() {
		keep(New(f, Config{}), 1)
		f.Errorf("no")
	})
	assert.Equal(t, []string{"no"}, f.errors)
	f = &fake{skipped: true}
	f.run(func() { keep(New(f, Config{}), 1) })
	assert.Empty(t, f.errors)
}

func TestConfig(t *testing.T) {
	f := &fake{}
	f.run(func() {
		tr := New(f, Config{Memory: alloc.GiB, Ignore: []leaks.Option{leaks.IgnoreKinds(tracker.Activation)}})
		keep(tr, 1)
		_, err := tr.Alloc(alloc.Shape{1 << 30}, alloc.Uint8, tracker.Input)
		require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	})
	assert.Empty(t, f.errors)

	var report bytes.Buffer
	device, err := sim.New(sim.Config{Name: "mine"})
	require.NoError(t, err)
	f = &fake{}
	f.run(func() { New(f, Config{Tracker: tracker.Config{Device: device, Report: &report}}) })
	assert.Empty(t, f.errors)
	assert.Contains(t, report.String(), "mine")
	_, err = device.MemInfo()
	require.NoError(t, err, "the test closes its own device")
	require.NoError(t, device.Close())

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for want, cfg := range map[string]Config{
		"set one of them": {Memory: alloc.GiB, Tracker: tracker.Config{Device: device}},
		"want 2.0 MiB to": {Memory: 1},
		"set Config.Dir":  {Tracker: tracker.Config{Dir: filepath.Join(file, "none")}},
	} {
		f := &fake{}
		f.run(func() { New(f, cfg) })
		require.Len(t, f.errors, 1)
		assert.Contains(t, f.errors[0], want)
	}
}

// TestNoFile also looks at what the other tests have left.
func TestNoFile(t *testing.T) {
	New(t, Config{}).Track()
	tracker.Track()
	files, err := filepath.Glob("*gpu_mem_track*")
	require.NoError(t, err)
	assert.Empty(t, files)
}

func TestVerifyTestMain(t *testing.T) {
	was := tracker.Default()
	defer tracker.SetDefault(was)
	main := func(run func() int, opts ...leaks.Option) (code int, text string) {
		var out strings.Builder
		code = verify(run, &out, opts)
		return code, out.String()
	}
	code, text := main(func() int { return 0 })
	assert.Zero(t, code, text)
	assert.Empty(t, text)

	leak := func() int {
		_, err := tracker.Alloc(alloc.Shape{7}, alloc.Float32, tracker.Activation)
		require.NoError(t, err)
		return 0
	}
	code, text = main(leak)
	assert.Equal(t, 1, code)
	assert.Contains(t, text, "1 buffer, 28 B: 1 * Activation (7,) float32, allocated by")
	assert.Contains(t, text, "gpumemtest_test.go")
	code, text = main(leak, leaks.IgnoreKinds(tracker.Activation))
	assert.Zero(t, code, text)

	code, text = main(func() int { leak(); return 3 })
	assert.Equal(t, 3, code, "the tests' own failure")
	assert.Empty(t, text)

	code, text = main(func() int { require.NoError(t, tracker.Default().Close()); return 0 })
	assert.Zero(t, code, text)
}
