//go:build !linux || !(amd64 || arm64)

package probes

import (
	"fmt"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// Ways of attaching, which do not exist on this platform.
const (
	Newest = iota
	Before6_6
	Before5_15
)

// New returns an error: there are no probes on this platform.
func New([]event.Function, int, int) (event.Source, error) {
	return nil, fmt.Errorf("it needs Linux on amd64 or arm64: this is %s on %s", runtime.GOOS, runtime.GOARCH)
}
