//go:build unix

package symbols

import (
	"os"
	"syscall"
)

// inode returns a file's inode, by which the maps tell files apart.
func inode(info os.FileInfo) uint64 {
	if its, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(its.Ino)
	}
	return 0
}
