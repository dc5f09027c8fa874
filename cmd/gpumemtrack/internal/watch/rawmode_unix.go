//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package watch

import (
	"os"

	"golang.org/x/sys/unix"
)

// isRaw reports whether a terminal gives a program each key at once, as full-screen
// programs have it, instead of whole lines.
func isRaw(tty *os.File) bool {
	mode, err := unix.IoctlGetTermios(int(tty.Fd()), getTermios)
	return err == nil && mode.Lflag&unix.ICANON == 0
}
