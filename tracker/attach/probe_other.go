//go:build !linux || !(amd64 || arm64)

package attach

import (
	"fmt"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// probes do not exist on this platform.
type probes struct{}

func newSockets(cfg Config, functions []function) (*probes, error) { return newProbes(cfg, functions) }

func newProbes(Config, []function) (*probes, error) {
	return nil, fmt.Errorf("it needs Linux on amd64 or arm64: this is %s on %s", runtime.GOOS, runtime.GOARCH)
}

func (*probes) watch(int) error                                        { return nil }
func (*probes) environ(env []string) []string                          { return env }
func (*probes) unwatch(int)                                            {}
func (*probes) codeGeneration(int) (generation, since uint32, ok bool) { return 0, 0, true }
func (*probes) removeUnwindRules(int)                                  {}
func (*probes) setPythonLayout(int, python.Layout) error               { return nil }
func (*probes) clearPythonLayout(int)                                  {}
func (*probes) readExecs(*python.Processes, func(program, string))     {}
func (*probes) probeLibrary(_, _ string) error                         { return nil }
func (*probes) next(*event) error                                      { return errFlushed }
func (*probes) flush() error                                           { return nil }
func (*probes) lost() (count, since uint64)                            { return 0, 0 }
func (*probes) interrupt()                                             {}
func (*probes) detach()                                                {}
func (*probes) close()                                                 {}

func (*probes) loadUnwindRule(int, uint32, uint64, unwind.CompactRule) {}

func monotonic() uint64 { return 0 }

// machine is unused: nothing is unwound on this platform.
var machine = unwind.AMD64
