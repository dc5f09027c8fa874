package clock

// source is Linux's name of the counter.
const source = "arch_sys_counter"

// counter reads the virtual counter.
func counter() uint64
