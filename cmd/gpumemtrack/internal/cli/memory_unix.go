//go:build unix

package cli

import (
	"math"
	"syscall"
)

// addressSpace returns how much address space the program may take, as ulimit -v sets it; 0 means
// without limit.
func addressSpace() int64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_AS, &limit) != nil || uint64(limit.Cur) > math.MaxInt64/2 {
		return 0
	}
	return int64(limit.Cur)
}
