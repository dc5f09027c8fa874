package alloc

// id names a block record. Records refer to each other by id and not by
// pointer: that halves them, and the Go collector need not look inside.
type id uint32

// none is no block.
const none id = 0

// BlockState says whose a block is.
type BlockState uint8

// The states.
const (
	Inactive  BlockState = iota + 1 // cached, ready for reuse
	Allocated                       // in a caller's hands
)

// String returns "inactive" or "allocated".
func (s BlockState) String() string {
	switch s {
	case Inactive:
		return "inactive"
	case Allocated:
		return "allocated"
	}
	return "unknown"
}

// block is a piece of a segment.
type block struct {
	ptr         Ptr
	size        Bytes
	slack       uint32 // of an allocated block: size - requested, at most 1 MiB + 512
	prev, next  id     // neighbours in the segment, by address
	left, right id     // of an inactive block: links of its pool
	pool        Pool
	state       BlockState
}

func (b *block) end() Ptr { return b.ptr + Ptr(b.size) }

func (b *block) requested() Bytes {
	if b.state != Allocated {
		return 0
	}
	return b.size - Bytes(b.slack)
}

const blocksPerChunk = 1 << 10

// slab holds the block records. They do not move while they are in use.
type slab struct {
	chunks []*[blocksPerChunk]block
	unused id // first of the records given back, linked by next
	used   int
}

func (s *slab) at(i id) *block { return &s.chunks[i/blocksPerChunk][i%blocksPerChunk] }

// get returns a record with nothing in it.
func (s *slab) get() (id, *block) {
	if s.unused == none {
		s.grow()
	}
	i := s.unused
	b := s.at(i)
	s.unused = b.next
	*b = block{}
	s.used++
	return i, b
}

func (s *slab) put(i id) {
	*s.at(i) = block{next: s.unused}
	s.unused = i
	s.used--
}

// grow adds a chunk of records, all unused.
func (s *slab) grow() {
	first := id(len(s.chunks) * blocksPerChunk)
	chunk := new([blocksPerChunk]block)
	s.chunks = append(s.chunks, chunk)
	for i := range chunk {
		chunk[i].next = first + id(i) + 1
	}
	chunk[blocksPerChunk-1].next = s.unused
	s.unused = first
	if first == none {
		s.unused = first + 1 // record 0 is never used: its id means none
	}
}
