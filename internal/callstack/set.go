package callstack

import (
	"bytes"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// interned is a sequence of words and the stack it stands for. It never changes.
type interned struct {
	id    ID
	cut   bool // of a stack: frames were left out, as the table was full
	whole bool // of a walk: it reached the goroutine's first frame
	words []uintptr

	offsets []uint32 // of a walk: how far the frame records lie from the first, which is Capture's
}

// store keeps sequences by numbers that begin with 1. None is ever dropped, so many share an object of the Go heap. at takes
// no lock; add needs the caller's. Make one with newStore.
type store struct {
	n       atomic.Uint32 // sequences held
	pages   atomic.Pointer[[]*page]
	words   []uintptr // what is left of a chunk
	offsets []uint32
}

const pageSize = 128

type page [pageSize]interned

func newStore() *store {
	s := new(store)
	s.pages.Store(new([]*page))
	return s
}

// at returns the sequence of a number that add gave.
func (s *store) at(number uint32) *interned {
	return &(*s.pages.Load())[(number-1)/pageSize][(number-1)%pageSize]
}

// next returns the number that add gives next.
func (s *store) next() uint32 { return s.n.Load() + 1 }

// add keeps a sequence, with copies of its words and offsets.
func (s *store) add(e interned, words []uintptr, offsets []uint32) (number uint32, kept *interned) {
	number = s.next()
	pages := *s.pages.Load()
	if int((number-1)/pageSize) == len(pages) {
		pages = append(pages, new(page)) // readers of the old slice never look past its length
		s.pages.Store(&pages)
	}
	kept = s.at(number)
	*kept = e
	kept.words, kept.offsets = keep(&s.words, words), keep(&s.offsets, offsets)
	s.n.Store(number)
	return number, kept
}

// keep copies values to the front of what is left of a chunk.
func keep[T any](left *[]T, values []T) []T {
	const chunk = 2048
	n := len(values)
	if n > len(*left) {
		*left = make([]T, max(n, chunk))
	}
	kept := (*left)[:n:n]
	*left = (*left)[n:]
	copy(kept, values)
	return kept
}

// set finds the sequences of a store by their words. find takes no lock and may run at any time; insert needs the caller's lock.
//
// It is split into shards, which grow one at a time, so that no insertion has much to do.
type set struct {
	in     *store
	n      atomic.Int64                          // sequences held
	shards [1 << shardBits]atomic.Pointer[shard] // nil while empty
}

// shard is a hash table with open addressing and linear probing, at most three quarters full. It is replaced when it grows.
// A slot has a tag, which is a part of the hash, and below it the sequence's number. So a search looks only at sequences with
// the right tag, and growing looks at none: each would be a miss in the processor's caches.
type shard struct {
	n     int
	shift int             // 32 less the bits of an index
	slots []atomic.Uint64 // 0 is empty
}

const (
	shardBits  = 8
	firstSlots = 8
)

// shard returns where the shard of a hash is. The high bits of hashWords are the good ones: the highest tell the shard, the
// next ones the tag.
func (s *set) shard(hash uint64) *atomic.Pointer[shard] { return &s.shards[hash>>(64-shardBits)] }

func tagOf(hash uint64) uint32 { return uint32(hash<<shardBits>>32) | 1 }

// slot returns where the search for a tag begins: its high bits tell it.
func (s *shard) slot(tag uint32) uint { return uint(tag >> (s.shift & 31)) }

func newShard(slots int) *shard {
	return &shard{shift: 32 - bits.TrailingZeros(uint(slots)), slots: make([]atomic.Uint64, slots)}
}

// find returns the entry with exactly these words, or nil. It may miss an entry that another goroutine is inserting.
func (s *set) find(hash uint64, words []uintptr) *interned {
	shard := s.shard(hash).Load()
	if shard == nil {
		return nil
	}
	mask, tag := uint(len(shard.slots)-1), tagOf(hash)
	for i := shard.slot(tag); ; i++ {
		found := shard.slots[i&mask].Load()
		if found == 0 {
			return nil
		}
		if uint32(found>>32) != tag {
			continue
		}
		if e := s.in.at(uint32(found)); equalWords(e.words, words) {
			return e
		}
	}
}

// insert adds a sequence of the store that find does not find.
func (s *set) insert(hash uint64, number uint32) {
	at, added := s.shard(hash), uint64(tagOf(hash))<<32|uint64(number)
	old := at.Load()
	switch {
	case old == nil:
		at.Store(newShard(firstSlots).with(added))
	case 4*(old.n+1) <= 3*len(old.slots):
		old.with(added)
	default:
		grown := newShard(2 * len(old.slots))
		for i := range old.slots {
			if found := old.slots[i].Load(); found != 0 {
				grown.with(found)
			}
		}
		at.Store(grown.with(added))
	}
	s.n.Add(1)
}

func (s *shard) with(added uint64) *shard {
	mask := uint(len(s.slots) - 1)
	i := s.slot(uint32(added >> 32))
	for s.slots[i&mask].Load() != 0 {
		i++
	}
	s.slots[i&mask].Store(added)
	s.n++
	return s
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
