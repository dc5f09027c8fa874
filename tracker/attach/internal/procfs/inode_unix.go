//go:build unix

package procfs

import (
	"os"
	"syscall"
)

// Inode returns a file's inode, as maps have it.
func Inode(info os.FileInfo) uint64 {
	if its, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(its.Ino)
	}
	return 0
}
