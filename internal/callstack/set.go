package callstack

import (
	"bytes"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// interned is a sequence of words and the stack it stands for. It never changes.
type interned struct {
	hash  uint64
	id    ID
	words []uintptr

	// The rest is of walks only; see predict.
	whole   bool     // the walk reached the goroutine's first frame
	offsets []uint32 // how far the frame records lie from the first, which is Capture's
}

// set finds interned sequences by their words: open addressing with linear probing, at most three quarters full. find takes
// no lock and may run at any time; insert needs the caller's lock.
type set struct {
	slots atomic.Pointer[slots] // replaced as a whole when it grows
	n     int                   // sequences held
}

type slots struct {
	shift int // 64 less the bits of an index: the high bits of hashWords are the good ones
	table []atomic.Pointer[interned]
}

const firstSlots = 64

func (s *set) init() { s.slots.Store(newSlots(firstSlots)) }

func newSlots(n int) *slots {
	return &slots{shift: 64 - bits.TrailingZeros(uint(n)), table: make([]atomic.Pointer[interned], n)}
}

// find returns what holds exactly these words, or nil. While another goroutine inserts it may miss what is being inserted.
func (s *set) find(hash uint64, words []uintptr) *interned {
	slots := s.slots.Load()
	mask := uint(len(slots.table) - 1)
	for i := uint(hash >> (slots.shift & 63)); ; i++ {
		e := slots.table[i&mask].Load()
		if e == nil || e.hash == hash && equalWords(e.words, words) {
			return e
		}
	}
}

// insert adds a sequence that find does not find.
func (s *set) insert(e *interned) {
	old := s.slots.Load()
	s.n++
	if 4*s.n <= 3*len(old.table) {
		old.place(e)
		return
	}
	grown := newSlots(2 * len(old.table))
	for i := range old.table {
		if e := old.table[i].Load(); e != nil {
			grown.place(e)
		}
	}
	grown.place(e)
	s.slots.Store(grown)
}

func (s *slots) place(e *interned) {
	mask := uint(len(s.table) - 1)
	i := uint(e.hash >> (s.shift & 63))
	for s.table[i&mask].Load() != nil {
		i++
	}
	s.table[i&mask].Store(e)
}

// multiplier is 2^64 divided by the golden ratio, made odd (Knuth, The Art of Computer Programming, volume 3, section 6.4).
const multiplier = 0x9E3779B97F4A7C15

// hashWords mixes words as walk does on its way: a multiplication a word, short enough to hide behind the load of the next
// frame. Only the high bits depend on all bits of all words.
func hashWords(words []uintptr) uint64 {
	var h uint64
	for _, w := range words {
		h = (h ^ uint64(w)) * multiplier
	}
	return h
}

// equalWords compares as bytes, which the standard library does with vector instructions.
func equalWords(a, b []uintptr) bool {
	return bytes.Equal(asBytes(a), asBytes(b))
}

func asBytes(words []uintptr) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*int(unsafe.Sizeof(uintptr(0))))
}
