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
	cut   bool // of a stack: frames were left out, as the table was full
	whole bool // of a walk: it reached the goroutine's first frame
	words []uintptr

	offsets []uint32 // of a walk: how far the frame records lie from the first, which is Capture's
}

// set finds interned sequences by their words. find takes no lock and may run at any time; insert needs the caller's lock.
//
// It is split into shards, which grow one at a time, so that no insertion has much to do.
type set struct {
	n      atomic.Int64                          // sequences held
	shards [1 << shardBits]atomic.Pointer[shard] // nil while empty
}

// shard is a hash table with open addressing and linear probing, at most three quarters full. It is replaced when it grows.
type shard struct {
	n     int
	shift int // 64 less the bits of an index
	slots []atomic.Pointer[interned]
}

const (
	shardBits  = 8
	firstSlots = 8
)

// shard returns where the shard of a hash is. The high bits of hashWords are the good ones: the highest tell the shard, the
// next ones the slot.
func (s *set) shard(hash uint64) *atomic.Pointer[shard] { return &s.shards[hash>>(64-shardBits)] }

func (s *shard) slot(hash uint64) uint { return uint(hash << shardBits >> (s.shift & 63)) }

func newShard(slots int) *shard {
	return &shard{shift: 64 - bits.TrailingZeros(uint(slots)), slots: make([]atomic.Pointer[interned], slots)}
}

// find returns the entry with exactly these words, or nil. It may miss an entry that another goroutine is inserting.
func (s *set) find(hash uint64, words []uintptr) *interned {
	shard := s.shard(hash).Load()
	if shard == nil {
		return nil
	}
	mask := uint(len(shard.slots) - 1)
	for i := shard.slot(hash); ; i++ {
		e := shard.slots[i&mask].Load()
		if e == nil || e.hash == hash && equalWords(e.words, words) {
			return e
		}
	}
}

// insert adds a sequence that find does not find.
func (s *set) insert(e *interned) {
	at := s.shard(e.hash)
	old := at.Load()
	switch {
	case old == nil:
		at.Store(newShard(firstSlots).with(e))
	case 4*(old.n+1) <= 3*len(old.slots):
		old.with(e)
	default:
		grown := newShard(2 * len(old.slots))
		for i := range old.slots {
			if e := old.slots[i].Load(); e != nil {
				grown.with(e)
			}
		}
		at.Store(grown.with(e))
	}
	s.n.Add(1)
}

func (s *shard) with(e *interned) *shard {
	mask := uint(len(s.slots) - 1)
	i := s.slot(e.hash)
	for s.slots[i&mask].Load() != nil {
		i++
	}
	s.slots[i&mask].Store(e)
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
