package host

import (
	"syscall"
	"time"
)

// processTime returns the processor time of all threads, in the program and in the kernel for it;
// -1 if unknown.
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

// interval converts a Filetime that is a duration, not a date, in units of 100 ns.
func interval(t syscall.Filetime) time.Duration {
	return time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime)) * 100
}
