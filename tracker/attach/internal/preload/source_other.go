//go:build !linux || !(amd64 || arm64)

package preload

import (
	"fmt"
	"io/fs"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// New returns an error: programs cannot be watched on this platform.
func New([]string, []event.Function, fs.FS, int) (event.Source, error) {
	return nil, fmt.Errorf("it needs Linux on amd64 or arm64: this is %s on %s", runtime.GOOS, runtime.GOARCH)
}
