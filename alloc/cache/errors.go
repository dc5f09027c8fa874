package cache

import (
	"errors"
)

// ErrBrokenDriver is the error of a driver that returned an invalid or overlapping address: no
// address, or memory that it had given already. That memory is left alone.
var ErrBrokenDriver = errors.New("the driver returned an invalid or overlapping address")
