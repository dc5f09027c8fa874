//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package watch

import (
	"os"

	"golang.org/x/sys/unix"
)

// isRaw reports whether a terminal passes on each key at once, as full-screen programs need,
// instead of whole lines.
func isRaw(tty *os.File) bool {
	mode, err := unix.IoctlGetTermios(int(tty.Fd()), getTermios)
	return err == nil && mode.Lflag&unix.ICANON == 0
}
