// Package slab keeps many records of one type without a Go object for each, and
// shows them as they were at one instant while they go on changing.
//
// Records live in chunks that never move and are never given back. A record is
// named by an ID, which takes half the room of a pointer and is nothing to the
// Go collector.
//
// A View is what a reader uses. Whoever changes a record first calls Touch, which
// copies the record's chunk for the views that have still to read it. So a
// reader looks at one chunk at a time, and whoever changes records waits at most
// for one chunk to be read or copied, however many there are.
package slab

import "sync"

// ID names a record of a Slab. Zero names none.
type ID uint32

// ChunkLen is the number of records that a View reads at once.
const ChunkLen = 1 << 10

// Slab holds records of type T. The zero Slab is empty and ready to use. Its
// methods need the caller's lock, but for At of a record that nobody else changes.
type Slab[T any] struct {
	chunks []*chunk[T]
	unused ID // the first of the records given back, linked by next
	used   int
	views  []*View[T]
}

type chunk[T any] struct {
	records [ChunkLen]T
	next    [ChunkLen]ID
}

// At returns the record of an ID that Get gave. It does not move until Put. Call
// Touch before writing to it.
func (s *Slab[T]) At(id ID) *T { return &s.chunks[id/ChunkLen].records[id%ChunkLen] }

// Len returns the number of records in use.
func (s *Slab[T]) Len() int { return s.used }

// Bound returns a number that all IDs are below.
func (s *Slab[T]) Bound() ID { return ID(len(s.chunks) * ChunkLen) }

// Touch announces a change of a record.
func (s *Slab[T]) Touch(id ID) {
	if len(s.views) != 0 {
		s.keep(int(id / ChunkLen))
	}
}

// Get returns a zero record.
func (s *Slab[T]) Get() (ID, *T) {
	if s.unused == 0 {
		s.grow()
	}
	id := s.unused
	s.Touch(id)
	c := s.chunks[id/ChunkLen]
	s.unused = c.next[id%ChunkLen]
	s.used++
	return id, &c.records[id%ChunkLen]
}

// Put takes a record back and clears it.
func (s *Slab[T]) Put(id ID) {
	s.Touch(id)
	c := s.chunks[id/ChunkLen]
	var zero T
	c.records[id%ChunkLen] = zero
	c.next[id%ChunkLen] = s.unused
	s.unused = id
	s.used--
}

// Reset takes back all records. Views that have still to be read show them as they were.
func (s *Slab[T]) Reset() {
	for i, c := range s.chunks {
		for _, v := range s.views {
			if i >= v.next && i < len(v.kept) && v.kept[i] == nil {
				v.kept[i] = &c.records // which nobody changes any more
			}
		}
	}
	*s = Slab[T]{}
}

// grow adds a chunk of records, all unused.
func (s *Slab[T]) grow() {
	first := s.Bound()
	c := new(chunk[T])
	s.chunks = append(s.chunks, c)
	for i := range ID(ChunkLen - 1) {
		c.next[i] = first + i + 1
	}
	s.unused = first
	if first == 0 {
		s.unused = 1 // record 0 is never used: its ID means none
	}
}

// keep copies a chunk for the views that have still to read it.
func (s *Slab[T]) keep(i int) {
	for _, v := range s.views {
		if i >= v.next && i < len(v.kept) && v.kept[i] == nil {
			kept := s.chunks[i].records
			v.kept[i] = &kept
		}
	}
}

// View is a Slab at one instant. Read it once, and soon: until then, changes
// cost copies.
type View[T any] struct {
	slab *Slab[T]
	kept []*[ChunkLen]T // copies of the chunks that have changed since
	next int            // the chunks below it have been read
}

// View returns the slab as it is now.
func (s *Slab[T]) View() *View[T] {
	v := &View[T]{slab: s, kept: make([]*[ChunkLen]T, len(s.chunks))}
	s.views = append(s.views, v)
	return v
}

// Bound returns a number that all IDs of the view are below.
func (v *View[T]) Bound() ID { return ID(len(v.kept) * ChunkLen) }

// Read calls read with each chunk, as it was at the view's instant, and the ID of the
// chunk's first record. Records that were not in use are zero. It must be called once, without the lock: it
// holds lock, the slab's, while read runs, which must not keep the records.
func (v *View[T]) Read(lock sync.Locker, read func(first ID, records *[ChunkLen]T)) {
	for i := range v.kept {
		lock.Lock()
		records := v.kept[i]
		if records == nil {
			records = &v.slab.chunks[i].records
		}
		read(ID(i*ChunkLen), records)
		v.kept[i], v.next = nil, i+1
		lock.Unlock()
	}
	lock.Lock()
	defer lock.Unlock()
	v.slab.forget(v)
}

func (s *Slab[T]) forget(v *View[T]) {
	for i, other := range s.views {
		if other == v {
			last := len(s.views) - 1
			s.views[i], s.views[last] = s.views[last], nil
			s.views = s.views[:last]
			return
		}
	}
}
