//go:build !linux

package smalldisk

import (
	"errors"
)

func mount(string, int) (unmount func() error, err error) { return nil, errors.ErrUnsupported }
