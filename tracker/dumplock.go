package tracker

import (
	"errors"
)

var (
	errLocked  = errors.New("another has it locked")
	errNoLocks = errors.New("files cannot be locked here")
)
