//go:build unix

package userfile

import (
	"os"
	"syscall"
)

// removed reports whether an open file has no name any more. One that was renamed has.
func removed(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}
