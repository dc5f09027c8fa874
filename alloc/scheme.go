package alloc

// Pool is one of the two sets of segments.
type Pool uint8

// The pools.
const (
	SmallPool Pool = iota + 1 // requests up to 1 MiB
	LargePool                 // the others
)

// String returns "small" or "large".
func (p Pool) String() string {
	switch p {
	case SmallPool:
		return "small"
	case LargePool:
		return "large"
	}
	return "unknown"
}
