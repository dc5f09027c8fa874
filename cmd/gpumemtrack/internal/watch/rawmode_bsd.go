//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package watch

import (
	"golang.org/x/sys/unix"
)

const getTermios = unix.TIOCGETA
