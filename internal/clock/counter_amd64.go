package clock

// source is Linux's name of the counter.
const source = "tsc"

// counter reads the time stamp counter.
func counter() uint64
