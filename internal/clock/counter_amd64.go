package clock

// source is what Linux calls the counter.
const source = "tsc"

// counter reads the time stamp counter.
func counter() uint64
