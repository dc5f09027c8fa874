package unwind

import "golang.org/x/sys/unix"

// Native is this machine. It has the highest address of programs: the kernel puts their first stacks, with
// AT_RANDOM, at
// the top.
var Native = func() *Machine {
	const random = 25 // AT_RANDOM
	values, _ := unix.Auxv()
	for _, v := range values {
		if v[0] == random && v[1] != 0 {
			return ARM64.Below(uint64(v[1]))
		}
	}
	return ARM64
}()
