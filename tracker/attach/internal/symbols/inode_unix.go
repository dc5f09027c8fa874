//go:build unix

package symbols

import (
	"os"
	"syscall"
)

// inode returns a file's inode, as maps have it.
func inode(info os.FileInfo) uint64 {
	if its, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(its.Ino)
	}
	return 0
}
