//go:build !linux || !(amd64 || arm64)

package attach

import (
	"fmt"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

func newProbes(Config, []event.Function) (event.Source, error) {
	return nil, fmt.Errorf("it needs Linux on amd64 or arm64: this is %s on %s", runtime.GOOS, runtime.GOARCH)
}
