//go:build !unix

package procfs

import "os"

// Inode is 0: there are no maps to compare with.
func Inode(os.FileInfo) uint64 { return 0 }
