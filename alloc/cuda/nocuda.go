//go:build !cuda || !cgo

package cuda

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Device is an open CUDA device. In this build, without the tag cuda, there is none.
type Device struct {
	alloc.Device
	alloc.Synchronizer
	alloc.Copier
	alloc.Timer
	io.Closer
}

// Open is ErrNotBuilt in this build.
func Open(ordinal int) (*Device, error) {
	return nil, fmt.Errorf("open CUDA device %d: %w", ordinal, ErrNotBuilt)
}
