//go:build unix

package host

import (
	"syscall"
	"time"
)

// processTime returns the processor time of all threads, in the program and in the kernel for it;
// -1 if unknown.
func processTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return -1
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
