//go:build amd64 || arm64

package preload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring buffer in memory that is shared with a process is a memfd: a head, and then the bytes of the ring
// buffer. A record is a length of 8 bytes,
// and as many bytes, a multiple of 8; it wraps around at the end. The writer counts all bytes that it has
// written, and the reader all that it has read. So a part of a record is never read, whenever the writer
// is killed.

// RingBytes is the capacity for records, in bytes.
const RingBytes = 1 << 20

// Byte offsets of the words of the head. The writer's are on other cache lines than the reader's.
const (
	atLost    = 0 // number of dropped records, and the time of the first
	atSince   = 8
	atWritten = 64
	atRead    = 128
	atWakeAt  = 192 // the writer wakes the reader when atWritten reaches it
	head      = 4096
)

// ring is the reader's end, which does not trust the contents and never waits. One goroutine at a time may
// use it. A nil ring has no records.
type ring struct {
	memory  []byte
	written uint64 // atWritten when it was read last
	read    uint64
	wakeAt  uint64
}

// openRing maps the file that a writer made. The error says why it is not acceptable: reading a file that was
// truncated later would kill this process. A file with a head only counts dropped records. The caller
// closes fd.
func openRing(fd int) (*ring, error) {
	var kind unix.Statfs_t
	var info unix.Stat_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err = errors.Join(err, unix.Fstatfs(fd, &kind), unix.Fstat(fd, &info)); err != nil {
		return nil, fmt.Errorf("the ring of a process: %w", err)
	}
	// Not on hugetlbfs: the first access of a page may fail.
	if seals&unix.F_SEAL_SHRINK == 0 || kind.Type != unix.TMPFS_MAGIC || info.Size != head && info.Size != head+RingBytes {
		return nil, fmt.Errorf("the ring of a process is a file of %d bytes with seals %#x in a file system %#x", info.Size, seals, kind.Type)
	}
	memory, err := unix.Mmap(fd, 0, int(info.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("the ring of a process: %w", err)
	}
	return &ring{memory: memory}, nil
}

// errBroken is the error of invalid contents.
var errBroken = errors.New("what a process tells in its ring cannot be read")

// Next copies the next record. It is nil if there is none; the writer then wakes the reader when the ring
// buffer is half full. After an error the ring is unusable.
func (r *ring) Next(to []byte) (record []byte, err error) {
	if r == nil {
		return nil, nil
	}
	if r.read == r.written {
		if r.written = r.word(atWritten).Load(); r.read == r.written {
			r.wake(r.read + RingBytes/2)
			return nil, nil
		}
	}
	var length [8]byte
	there := r.written - r.read // the writer may have written anything
	if there < uint64(len(length)) || there > uint64(len(r.memory)-head) {
		return nil, errBroken
	}
	r.copyOut(length[:], r.read)
	n := binary.NativeEndian.Uint64(length[:])
	if n > there-uint64(len(length)) || n > uint64(len(to)) || n%8 != 0 {
		return nil, errBroken
	}
	r.copyOut(to[:n], r.read+uint64(len(length)))
	r.read += uint64(len(length)) + n
	r.word(atRead).Store(r.read)
	return to[:n], nil
}

// RequestWake makes the writer wake the reader at the next record. It is false if there is one already.
func (r *ring) RequestWake() bool {
	if r == nil {
		return true
	}
	r.wake(r.read + 1)
	return r.Empty()
}

// Empty reports whether there is no record.
func (r *ring) Empty() bool { return r == nil || r.word(atWritten).Load() == r.read }

// Lost returns the number of records that the writer dropped, and the time of the first by its clock.
func (r *ring) Lost() (count, since uint64) {
	if r == nil {
		return 0, 0
	}
	return r.word(atLost).Load(), r.word(atSince).Load()
}

// Close unmaps the memory. The writer's mapping stays.
func (r *ring) Close() {
	if r != nil {
		_ = unix.Munmap(r.memory)
	}
}

func (r *ring) wake(at uint64) {
	if r.wakeAt != at {
		r.wakeAt = at
		r.word(atWakeAt).Store(at)
	}
}

func (r *ring) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&r.memory[at])) }

// copyOut copies bytes from an offset on, counted from the first that was ever written.
func (r *ring) copyOut(to []byte, from uint64) {
	n := copy(to, r.memory[head+from%RingBytes:])
	copy(to[n:], r.memory[head:])
}
