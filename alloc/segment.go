package alloc

import "fmt"

// Segment is one allocation of a cache from its driver, as it was at one
// instant. Its JSON is as docs/snapshot.schema.json describes it.
type Segment struct {
	Ptr    Ptr    `json:"address"`
	Size   Bytes  `json:"bytes"`
	Pool   string `json:"pool"`             // of "small" requests, up to 1 MiB, or of "large" ones
	Stream Stream `json:"stream,omitempty"` // the stream that its blocks are for
	// Expandable says that the segment is the mapped part of a range of addresses, so it can grow.
	Expandable bool `json:"expandable,omitempty"`
	// Private names the private pool of the segment, such as the pool of a CUDA graph in a
	// recording of PyTorch. Only requests of that pool get its memory, and emptying the cache
	// leaves it alone. The default pool is "". Package alloc/cache has only the default pool.
	Private string  `json:"private_pool,omitempty"`
	Blocks  []Block `json:"blocks"` // in address order; they tile the segment
}

// Block is a piece of a Segment.
type Block struct {
	Ptr       Ptr        `json:"address"`
	Size      Bytes      `json:"bytes"`
	Requested Bytes      `json:"requested_bytes,omitempty"` // 0 for an inactive block
	State     BlockState `json:"state"`
}

// Check returns an error if the blocks do not tile the segment in address order, or the pool is another than "small"
// and "large". It is for segments that do not come from a cache, such as those read from a file.
func (s Segment) Check() error {
	if s.Size <= 0 {
		return fmt.Errorf("segment %v: %d bytes: want more than 0", s.Ptr, int64(s.Size))
	}
	if s.Pool != "small" && s.Pool != "large" {
		return fmt.Errorf("segment %v: pool %q: want \"small\" or \"large\"", s.Ptr, s.Pool)
	}
	next := s.Ptr
	for i, b := range s.Blocks {
		if b.Ptr != next || b.Size <= 0 || next+Ptr(b.Size) < next || b.Requested < 0 || b.Requested > b.Size {
			return fmt.Errorf("segment %v: block %d, %v of %v, does not follow the one before it at %v", s.Ptr, i, b.Ptr, b.Size, next)
		}
		next += Ptr(b.Size)
	}
	if next != s.Ptr+Ptr(s.Size) {
		return fmt.Errorf("segment %v: its blocks end at %v, the segment at %v", s.Ptr, next, s.Ptr+Ptr(s.Size))
	}
	return nil
}

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

// MarshalText writes the state's name.
func (s BlockState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *BlockState) UnmarshalText(text []byte) error {
	for _, *s = range []BlockState{Inactive, Allocated, Pending} {
		if string(text) == s.String() {
			return nil
		}
	}
	return fmt.Errorf("parse block state %q: want %v, %v or %v", text, Inactive, Allocated, Pending)
}
