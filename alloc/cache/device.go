package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// reuseChecker is a Device that can check what a Cache hands out, as a simulated one can.
type reuseChecker interface {
	// CheckReuse returns a function that New keeps, and that the Cache calls for each
	// block that it hands out, with the stream that it is for. The Cache holds its lock
	// then: the function must not call it. Nil means no check.
	CheckReuse() func(p alloc.Ptr, n alloc.Bytes, s alloc.Stream)
}
