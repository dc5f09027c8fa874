// Package memring reads what another process writes into memory that both have. It trusts nothing that is there, and never waits.
//
// The memory is a file without a name: a head, and then the bytes of the ring. A record is its length, 8 bytes, and as many bytes
// as that says, a multiple of 8; it goes on at the beginning where the ring ends. The writer counts the bytes that it has ever
// written, and the reader those that it has read. So half of a record is never read, whenever the writer is killed.
package memring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bytes is the room for records.
const Bytes = 1 << 20

// Words of the head. The writer's own are far from those of the reader.
const (
	atLost    = 0 // records that were dropped, and when the first was
	atSince   = 8
	atWritten = 64
	atRead    = 128
	atWakeAt  = 192 // the writer wakes the reader once it has written so much
	head      = 4096
)

// Ring is the reader's end, for one goroutine at a time. A nil Ring has no records.
type Ring struct {
	memory  []byte
	written uint64 // when that was last looked at
	read    uint64
	wakeAt  uint64
}

// Open maps the file that a writer made. The error says why it may not be one: if the file became smaller later, reading it
// would end this process. A file with nothing but a head counts what is dropped. The caller closes fd.
func Open(fd int) (*Ring, error) {
	var kind unix.Statfs_t
	var info unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err = errors.Join(err, unix.Fstatfs(fd, &kind), unix.Fstat(fd, &info)); err != nil {
		return nil, fmt.Errorf("the ring of a process: %w", err)
	}
	// Not of huge pages: there may be none left when one is first read.
	if seals&unix.F_SEAL_SHRINK == 0 || kind.Type != unix.TMPFS_MAGIC || info.Size != head && info.Size != head+Bytes {
		return nil, fmt.Errorf("the ring of a process is a file of %d bytes with seals %#x in a file system %#x", info.Size, seals, kind.Type)
	}
	memory, err := unix.Mmap(fd, 0, int(info.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("the ring of a process: %w", err)
	}
	return &Ring{memory: memory}, nil
}

// errBroken is the error of a ring in which somebody else has written.
var errBroken = errors.New("what a process tells in its ring cannot be read")

// Next copies the next record. It is nil if there is none, and the writer will then wake the reader when the ring is half full.
// After an error the ring is of no use.
func (r *Ring) Next(to []byte) (record []byte, err error) {
	if r == nil {
		return nil, nil
	}
	if r.read == r.written {
		if r.written = r.word(atWritten).Load(); r.read == r.written {
			r.wake(r.read + Bytes/2)
			return nil, nil
		}
	}
	var length [8]byte
	there := r.written - r.read // the writer may say anything
	if there < uint64(len(length)) || there > uint64(len(r.memory)-head) {
		return nil, errBroken
	}
	r.copy(length[:], r.read)
	n := binary.NativeEndian.Uint64(length[:])
	if n > there-uint64(len(length)) || n > uint64(len(to)) || n%8 != 0 {
		return nil, errBroken
	}
	r.copy(to[:n], r.read+uint64(len(length)))
	r.read += uint64(len(length)) + n
	r.word(atRead).Store(r.read)
	return to[:n], nil
}

// Sleep has the writer wake the reader at the next record. It is false if there is one already.
func (r *Ring) Sleep() bool {
	if r == nil {
		return true
	}
	r.wake(r.read + 1)
	return r.Empty()
}

// Empty reports whether there is no record.
func (r *Ring) Empty() bool { return r == nil || r.word(atWritten).Load() == r.read }

// Lost returns how many records the writer dropped, and when the first was, by its clock.
func (r *Ring) Lost() (count, since uint64) {
	if r == nil {
		return 0, 0
	}
	return r.word(atLost).Load(), r.word(atSince).Load()
}

// Close gives the memory back. The writer's stays.
func (r *Ring) Close() {
	if r != nil {
		_ = unix.Munmap(r.memory)
	}
}

func (r *Ring) wake(at uint64) {
	if r.wakeAt != at {
		r.wakeAt = at
		r.word(atWakeAt).Store(at)
	}
}

func (r *Ring) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&r.memory[at])) }

// copy takes bytes from a place on, counted from the first that was ever written.
func (r *Ring) copy(to []byte, from uint64) {
	n := copy(to, r.memory[head+from%Bytes:])
	copy(to[n:], r.memory[head:])
}
