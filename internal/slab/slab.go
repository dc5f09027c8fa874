// Package slab keeps many records of one type without a Go object for each, and
// shows them as they were at one instant while they go on changing.
//
// Records live in chunks that never move and are never freed. A record is
// named by an ID, which takes half the space of a pointer, and which the Go collector does not follow.
//
// A View is what a reader uses. It copies the records of one chunk at a time under
// the lock. Whoever changes a record first calls Touch, which copies the record's chunk
// for the views that have still to read it. So no caller waits for more than the copy
// of one chunk, however many records there are.
package slab

import (
	"slices"
	"sync"
)

// ID names a record of a Slab. Zero names none.
type ID uint32

// ChunkLen is the number of records that a View copies at once, and so bounds what is done
// while the lock is held.
const ChunkLen = 1 << 8

// Slab holds records of type T. The zero Slab is empty and ready to use. Its
// methods need the caller's lock, except At of a record that no other goroutine changes.
type Slab[T any] struct {
	chunks []*[ChunkLen]T
	bound  ID // the records from here on were never used
	unused stack
	views  []*View[T]
}

// stack holds the IDs of freed records. It is apart from the records, so that finding the next
// ID need not fetch one of them.
type stack struct {
	top   ID // 0 if the stack is empty, or the next ID is in pages
	pages []*[ChunkLen]ID
	n     uint // in pages
}

func (s *stack) push(id ID) {
	if s.top != 0 {
		s.pushDown(s.top)
	}
	s.top = id
}

// pop returns the number that was pushed last, or 0.
func (s *stack) pop() ID {
	if id := s.top; id != 0 {
		s.top = 0
		return id
	}
	return s.popUp()
}

func (s *stack) len() int { return int(s.n) + int(min(1, s.top)) }

func (s *stack) pushDown(id ID) {
	if s.n/ChunkLen == uint(len(s.pages)) {
		s.pages = append(s.pages, new([ChunkLen]ID))
	}
	s.pages[s.n/ChunkLen][s.n%ChunkLen] = id
	s.n++
}

func (s *stack) popUp() ID {
	if s.n == 0 {
		return 0
	}
	s.n--
	return s.pages[s.n/ChunkLen][s.n%ChunkLen]
}

// At returns the record of an ID that Get gave. It does not move until Put. Before you change a
// field that Views read, call Touch.
func (s *Slab[T]) At(id ID) *T { return &s.chunks[id/ChunkLen][id%ChunkLen] }

// Len returns the number of records in use.
func (s *Slab[T]) Len() int { return int(max(1, s.bound)) - 1 - s.unused.len() }

// Bound returns a number that is larger than all IDs.
func (s *Slab[T]) Bound() ID { return s.bound }

// Touch announces a change of a record.
func (s *Slab[T]) Touch(id ID) {
	if len(s.views) != 0 {
		s.keep(id)
	}
}

// Get returns a zero record.
func (s *Slab[T]) Get() (ID, *T) {
	id := s.unused.pop()
	if id == 0 {
		return s.first()
	}
	s.Touch(id)
	return id, s.At(id)
}

// first returns a record that was never used. No view has it, so nothing need be copied.
func (s *Slab[T]) first() (ID, *T) {
	id := max(1, s.bound) // record 0 is never used: its ID means none
	if int(id/ChunkLen) == len(s.chunks) {
		s.chunks = append(s.chunks, new([ChunkLen]T))
	}
	s.bound = id + 1
	return id, s.At(id)
}

// Put takes a record back and clears it.
func (s *Slab[T]) Put(id ID) {
	s.Touch(id)
	var zero T
	*s.At(id) = zero
	s.unused.push(id)
}

// Reset takes back all records. Views that have still to be read show them as they were.
func (s *Slab[T]) Reset() {
	for i, c := range s.chunks {
		for _, v := range s.views {
			if v.wants(ID(i * ChunkLen)) {
				v.kept[i] = c // which does not change any more
			}
		}
	}
	*s = Slab[T]{}
}

// keep copies the chunk of a record for the views that have still to read it.
func (s *Slab[T]) keep(id ID) {
	i := int(id / ChunkLen)
	var kept *[ChunkLen]T // one copy for all of them
	for _, v := range s.views {
		if !v.wants(id) {
			continue
		}
		if kept == nil {
			kept = new([ChunkLen]T)
			copy(kept[:], s.chunks[i][:min(ChunkLen, int(s.bound)-i*ChunkLen)])
		}
		v.kept[i] = kept
	}
}

// View is a Slab at one instant. Read it once, and soon: until then, changes
// cost copies.
type View[T any] struct {
	slab  *Slab[T]
	bound ID
	kept  map[int]*[ChunkLen]T // copies of the chunks that have changed since
	next  int                  // the chunks below it have been read
}

// View returns the slab as it is now.
func (s *Slab[T]) View() *View[T] {
	v := &View[T]{slab: s, bound: s.bound, kept: make(map[int]*[ChunkLen]T)}
	s.views = append(s.views, v)
	return v
}

// Bound returns a number that all IDs of the view are below.
func (v *View[T]) Bound() ID { return v.bound }

// wants reports whether the view has still to read a record's chunk, and no copy of it was kept.
func (v *View[T]) wants(id ID) bool {
	i := int(id / ChunkLen)
	return id < v.bound && i >= v.next && v.kept[i] == nil
}

// Read calls read with up to ChunkLen records at a time, as they were at the view's
// instant, and the ID of the first. Records that were not in use are zero. The
// lock is the slab's. Read must be called once, without it, and holds it while it copies;
// read is called without it, and must not keep the records.
func (v *View[T]) Read(lock sync.Locker, read func(first ID, records []T)) {
	var own []T
	for first := ID(0); first < v.bound; first += ChunkLen {
		n := min(ChunkLen, v.bound-first)
		own = slices.Grow(own[:0], int(n))
		lock.Lock()
		records := v.take(first, own[:n])
		lock.Unlock()
		read(first, records)
	}
	lock.Lock()
	defer lock.Unlock()
	v.slab.forget(v)
}

// take returns the records of a chunk, in own unless they were kept.
func (v *View[T]) take(first ID, own []T) []T {
	i := int(first / ChunkLen)
	kept := v.kept[i]
	delete(v.kept, i)
	v.next = i + 1
	if kept != nil {
		return kept[:len(own)]
	}
	copy(own, v.slab.chunks[i][:])
	return own
}

func (s *Slab[T]) forget(v *View[T]) {
	if i := slices.Index(s.views, v); i >= 0 {
		s.views = slices.Delete(s.views, i, i+1)
	}
}
