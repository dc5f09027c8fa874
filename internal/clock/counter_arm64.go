package clock

// source is what Linux calls the counter.
const source = "arch_sys_counter"

// counter reads the virtual counter.
func counter() uint64
