//go:build amd64 || arm64

package probes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// mappings reads the kernel's records of mapped code (PERF_RECORD_MMAP2) from a ring buffer of each processor.
type mappings struct {
	rings []*mapRing
	stop  chan struct{}
	done  chan struct{}
}

// openMappings begins to record.
func openMappings() (*mappings, error) {
	cpus, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	m := &mappings{stop: make(chan struct{}), done: make(chan struct{})}
	for _, cpu := range cpus {
		r, err := newMapRing(cpu)
		if err != nil {
			m.closeRings()
			return nil, fmt.Errorf("read what processes map: %w", explain(err))
		}
		m.rings = append(m.rings, r)
	}
	return m, nil
}

// read reads the records until close. A record of an earlier moment may come later, if it is of another
// processor.
func (m *mappings) read(mapped func(event.Mapping), missed func()) {
	defer close(m.done)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		lost := false
		for _, r := range m.rings {
			lost = r.read(mapped) || lost
		}
		if lost {
			missed()
		}
		select {
		case <-m.stop:
			return
		case <-ticker.C:
		}
	}
}

// close ends read.
func (m *mappings) close() {
	close(m.stop)
	<-m.done
	m.closeRings()
}

func (m *mappings) closeRings() {
	for _, r := range m.rings {
		r.close()
	}
}

// onlineCPUs reads a list such as "0-3,8".
func onlineCPUs() (all []int, err error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("the list of processors: %w", err)
		}
		for cpu := from; cpu <= to; cpu++ {
			all = append(all, cpu)
		}
	}
	return all, nil
}

// mapRing is the ring buffer of one processor. Its first page has the positions, and the others the records.
type mapRing struct {
	fd     int
	memory []byte
	page   *unix.PerfEventMmapPage
	data   []byte // its size is a power of two
	record []byte // reused
}

const mapRingPages = 16 // beside the first; some 600 records of 4-KiB pages

func newMapRing(cpu int) (*mapRing, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample_type: unix.PERF_SAMPLE_TIME, Bits: unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitWatermark,
		Clockid: unix.CLOCK_MONOTONIC, Wakeup: 1 << 30, // never: the rings are polled
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	size := os.Getpagesize()
	memory, err := unix.Mmap(fd, 0, (1+mapRingPages)*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &mapRing{fd: fd, memory: memory, page: (*unix.PerfEventMmapPage)(unsafe.Pointer(&memory[0])), data: memory[size:]}, nil
}

func (r *mapRing) close() {
	_ = unix.Munmap(r.memory)
	unix.Close(r.fd)
}

// read reads all records that there are, and reports whether some were lost.
func (r *mapRing) read(mapped func(event.Mapping)) (lost bool) {
	const header = 8
	head, tail := atomic.LoadUint64(&r.page.Data_head), r.page.Data_tail
	for tail < head {
		r.copy(tail, header)
		kind, size := binary.NativeEndian.Uint32(r.record), binary.NativeEndian.Uint16(r.record[6:])
		if size < header || uint64(size) > head-tail {
			tail, lost = head, true // never by this kernel
			break
		}
		r.copy(tail, int(size))
		switch kind {
		case unix.PERF_RECORD_MMAP2:
			if m, ok := parseMapping(r.record); ok {
				mapped(m)
			}
		case unix.PERF_RECORD_LOST:
			lost = true
		}
		tail += uint64(size)
	}
	atomic.StoreUint64(&r.page.Data_tail, tail)
	return lost
}

// copy copies a record, which may wrap around.
func (r *mapRing) copy(at uint64, size int) {
	r.record = r.record[:0]
	from := int(at % uint64(len(r.data)))
	r.record = append(r.record, r.data[from:min(len(r.data), from+size)]...)
	r.record = append(r.record, r.data[:size-len(r.record)]...)
}

// parseMapping parses a record of a file's mapping: after the header its process, thread, address, length,
// offset, device, inode and its generation, protection and flags, then the path, and the time.
func parseMapping(b []byte) (m event.Mapping, ok bool) {
	const path, most = 72, 8
	if len(b) < path+2*most {
		return m, false
	}
	name, _, _ := bytes.Cut(b[path:len(b)-most], []byte{0})
	m = event.Mapping{PID: int(binary.NativeEndian.Uint32(b[8:])), Path: string(name), Time: binary.NativeEndian.Uint64(b[len(b)-most:])}
	return m, strings.HasPrefix(m.Path, "/") && !strings.HasPrefix(m.Path, "//")
}
