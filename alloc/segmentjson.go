package alloc

import (
	"encoding/json"
	"fmt"
)

// segmentJSON and blockJSON are the JSON forms of a Segment and a Block.
type segmentJSON struct {
	Ptr        Ptr         `json:"address"`
	Size       Bytes       `json:"bytes"`
	Pool       Pool        `json:"pool"`
	Stream     Stream      `json:"stream,omitempty"`
	Expandable bool        `json:"expandable,omitempty"`
	Private    string      `json:"private_pool,omitempty"`
	Blocks     []blockJSON `json:"blocks"`
}

type blockJSON struct {
	Ptr       Ptr        `json:"address"`
	Size      Bytes      `json:"bytes"`
	Requested Bytes      `json:"requested_bytes,omitempty"`
	State     BlockState `json:"state"`
}

// MarshalJSON writes the segment with its blocks.
func (s Segment) MarshalJSON() ([]byte, error) {
	out := segmentJSON{s.Ptr, s.Size, s.Pool, s.Stream, s.Expandable, s.Private, make([]blockJSON, len(s.blocks))}
	for i, b := range s.blocks {
		out.Blocks[i] = blockJSON(b)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. Blocks that do not tile the
// segment are an error.
func (s *Segment) UnmarshalJSON(text []byte) error {
	var in segmentJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	blocks := make([]Block, len(in.Blocks))
	for i, b := range in.Blocks {
		blocks[i] = Block(b)
	}
	read, err := Segment{Ptr: in.Ptr, Size: in.Size, Pool: in.Pool, Stream: in.Stream, Expandable: in.Expandable, Private: in.Private}.With(blocks)
	if err != nil {
		return err
	}
	*s = read
	return nil
}

// With returns the segment with these blocks, which it keeps: for a source that is no
// Cache, such as a file. Blocks that do not tile the segment in address order are an
// error.
func (s Segment) With(blocks []Block) (Segment, error) {
	if s.Size <= 0 {
		return Segment{}, fmt.Errorf("segment %v: %d bytes: want more than 0", s.Ptr, int64(s.Size))
	}
	next := s.Ptr
	for i, b := range blocks {
		if b.Ptr != next || b.Size <= 0 || next+Ptr(b.Size) < next || b.Requested < 0 || b.Requested > b.Size {
			return Segment{}, fmt.Errorf("segment %v: block %d, %v of %v, does not follow the one before it at %v", s.Ptr, i, b.Ptr, b.Size, next)
		}
		next += Ptr(b.Size)
	}
	if next != s.Ptr+Ptr(s.Size) {
		return Segment{}, fmt.Errorf("segment %v: its blocks end at %v, the segment at %v", s.Ptr, next, s.Ptr+Ptr(s.Size))
	}
	s.blocks = blocks
	return s, nil
}

// MarshalText writes the pool's name.
func (p Pool) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a name that MarshalText wrote.
func (p *Pool) UnmarshalText(text []byte) error {
	for _, pool := range []Pool{SmallPool, LargePool} {
		if string(text) == pool.String() {
			*p = pool
			return nil
		}
	}
	return fmt.Errorf("parse pool %q: want %v or %v", text, SmallPool, LargePool)
}

// MarshalText writes the state's name.
func (s BlockState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a name that MarshalText wrote.
func (s *BlockState) UnmarshalText(text []byte) error {
	for _, state := range []BlockState{Inactive, Allocated, Pending} {
		if string(text) == state.String() {
			*s = state
			return nil
		}
	}
	return fmt.Errorf("parse block state %q: want %v, %v or %v", text, Inactive, Allocated, Pending)
}
