//go:build !linux || !(amd64 || arm64)

package attach

import (
	"fmt"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// probes are not to be had here.
type probes struct{}

func newSockets(cfg Config, functions []function) (*probes, error) { return newProbes(cfg, functions) }

func newProbes(Config, []function) (*probes, error) {
	return nil, fmt.Errorf("it needs Linux on amd64 or arm64: this is %s on %s", runtime.GOOS, runtime.GOARCH)
}

func (*probes) watch(int) error                                       { return nil }
func (*probes) environ(env []string) []string                         { return env }
func (*probes) forget(int)                                            {}
func (*probes) code(int) (generation, since uint32, ok bool)          { return 0, 0, true }
func (*probes) unteach(int)                                           {}
func (*probes) runs(int, python.Layout) error                         { return nil }
func (*probes) runsOther(int)                                         {}
func (*probes) readSoonGone(*python.Processes, func(program, string)) {}
func (*probes) library(_, _ string) error                             { return nil }
func (*probes) next(*event) error                                     { return errFlushed }
func (*probes) flush() error                                          { return nil }
func (*probes) lost() (count, since uint64)                           { return 0, 0 }
func (*probes) interrupt()                                            {}
func (*probes) detach()                                               {}
func (*probes) close()                                                {}

func (*probes) teach(int, uint32, uint64, unwind.Step) {}

func monotonic() uint64 { return 0 }

// Nothing is unwound here.
var machine = unwind.AMD64
