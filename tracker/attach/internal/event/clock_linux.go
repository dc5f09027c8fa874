package event

import "golang.org/x/sys/unix"

// Now returns the clock of the events, in ns.
func Now() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // this clock always exists
	return uint64(now.Nano())
}
