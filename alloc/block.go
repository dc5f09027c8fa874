package alloc

// BlockState is the state of a block.
type BlockState uint8

// The states.
const (
	Inactive  BlockState = iota + 1 // cached, ready for reuse
	Allocated                       // in a caller's hands
	Pending                         // freed, but work on another stream may still use it
)

// String returns "inactive", "allocated" or "pending".
func (s BlockState) String() string {
	switch s {
	case Inactive:
		return "inactive"
	case Allocated:
		return "allocated"
	case Pending:
		return "pending"
	}
	return "unknown"
}
