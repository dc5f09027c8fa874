package host

import (
	"syscall"
	"time"
)

// processTime returns the processor time of all threads, of the program and of the kernel for it; -1
// if it is not known.
func processTime() time.Duration {
	self, err := syscall.GetCurrentProcess()
	if err != nil {
		return -1
	}
	var created, ended, kernel, user syscall.Filetime
	if syscall.GetProcessTimes(self, &created, &ended, &kernel, &user) != nil {
		return -1
	}
	return interval(kernel) + interval(user)
}

// interval is the time of a Filetime that is no date but a span, in units of 100 ns.
func interval(t syscall.Filetime) time.Duration {
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100
}
