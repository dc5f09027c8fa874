// Package gpumemtest is for tests of programs that allocate GPU memory. New gives a test a tracker on a simulated GPU, and
// fails the test if it does not free what it allocated, or if its peak was above a limit:
//
//	func TestStep(t *testing.T) {
//		tr := gpumemtest.New(t, gpumemtest.Config{MaxPeak: 24 * alloc.MiB})
//		...
//	}
//
// VerifyTestMain does it once for all tests of a package. The package needs no GPU and writes no file.
package gpumemtest

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// Config configures the tracker that New makes. Its zero value works.
type Config struct {
	// Memory is the size of the simulated GPU; 0 means 24 GiB.
	Memory alloc.Bytes
	// MaxPeak fails the test if more requested bytes were live at one moment; 0 means no limit. The failure lists what
	// was live at the peak.
	MaxPeak alloc.Bytes
	// Ignore leaves out what may be live at the end of the test, such as leaks.IgnoreSection("load").
	Ignore []leaks.Option
	// Tracker has the tracker's other settings. If it has a Device, that takes the place of the simulated GPU, and
	// the test closes it. If it has no Report, the log of the test gets the report.
	Tracker tracker.Config
}

// New returns a tracker that the test closes at its end. If buffers are live then, the test fails, and lists them by call
// stack. A test that has failed already, or was skipped, is not checked, because it may have ended early.
func New(t testing.TB, cfg Config) *tracker.MemTracker {
	t.Helper()
	settings := cfg.Tracker
	if settings.Device == nil {
		device, err := sim.New(sim.Config{Memory: cfg.Memory})
		if err != nil {
			t.Fatalf("gpumemtest: %v", err)
		}
		t.Cleanup(func() { device.Close() })
		settings.Device = device
	} else if cfg.Memory != 0 {
		t.Fatalf("gpumemtest: Memory is %v, but Tracker.Device is not simulated here: set one of them", cfg.Memory)
	}
	if settings.Report == nil {
		settings.Report = t.Output()
	}
	tr, err := tracker.New(settings)
	if err != nil {
		t.Fatalf("gpumemtest: %v", err)
	}
	t.Cleanup(func() {
		t.Helper()
		if !t.Failed() && !t.Skipped() {
			tracker.VerifyNoLeaks(t, tr, cfg.Ignore...)
			if cfg.MaxPeak != 0 {
				tracker.LimitPeak(t, tr, cfg.MaxPeak)
			}
		}
		if err := tr.Close(); err != nil {
			t.Errorf("gpumemtest: %v", err)
		}
	})
	return tr
}

// VerifyTestMain runs the tests of a package, and ends the program. It fails if all tests pass and buffers of any tracker
// that is not closed are live after them:
//
//	func TestMain(m *testing.M) { gpumemtest.VerifyTestMain(m) }
//
// Meanwhile tracker.Default is on a simulated GPU and has no report.
func VerifyTestMain(m *testing.M, opts ...leaks.Option) {
	os.Exit(verify(m.Run, os.Stderr, opts))
}

// verify runs the tests and returns the exit code.
func verify(run func() int, out io.Writer, opts []leaks.Option) int {
	device, err := sim.New(sim.Config{})
	if err != nil {
		fmt.Fprintln(out, "gpumemtest:", err)
		return 1
	}
	defer device.Close()
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	if err != nil {
		fmt.Fprintln(out, "gpumemtest:", err)
		return 1
	}
	defer tr.Close()
	tracker.SetDefault(tr)
	defer tracker.SetDefault(nil)

	if code := run(); code != 0 {
		return code
	}
	var found []leaks.Leak
	if d := tracker.DumpAll(); d != nil { // nil if the tests have closed the default tracker too
		for _, each := range append(d.Others, d) {
			found = append(found, leaks.Live(each.Snapshot, opts...)...)
		}
	}
	if len(found) == 0 {
		return 0
	}
	fmt.Fprintln(out, "gpumemtest: device memory was not freed after all tests:")
	for _, leak := range found {
		fmt.Fprintln(out, leak)
	}
	return 1
}
