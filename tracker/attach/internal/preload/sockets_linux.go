//go:build amd64 || arm64

package preload

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// Source is the event source of programs that have loaded the shim. Each program has a connection, and
// writes events into a ring buffer in shared memory; if it cannot have one, it sends them. One goroutine
// reads them.
type Source struct {
	shim
	listeners       [2]int // an abstract name in the network namespace, and a file; -1 if missing
	epollFD, wakeFD int
	lastID          uint64 // see watchFD
	connections     map[uint64]*connection
	pidfds          map[uint64]*process
	processes       map[uint32]*process // the latest with each number
	strangers       []*connection       // whose first message has not been read, in the order in which they were accepted
	ready           []*process          // that may have something to read
	polled          []*process          // whose ring buffers are polled; the others wake the reader
	buffer          [max(event.MostSize, python.LargestCopy)]byte
	unordered       event.Event // see mapsFor

	count, since uint64 // lost events
	warning      error  // of which the reader has not been told

	mu                sync.Mutex
	flushing, closing bool
	left              int // reads until a flush is done
}

// maxQueued is more than the events that a connection and its ring buffer can hold.
const maxQueued = 1 << 14

// PollMS is the poll interval in milliseconds, for processes that keep writing into their ring buffers.
const PollMS = 10

// connection is the connection of one program of a process.
type connection struct {
	pid      uint32
	socket   int    // -1 when it is closed
	id       uint64 // see Source.watchFD
	listener int    // index in Source.listeners
	of       *process
	began    uint64 // time of its first message by its clock
	started  uint64 // start time of its process, which an exec does not change; 0 if unknown
	ring     *ring  // nil if it has none

	readable     bool                 // the connection may have something to read
	closed       bool                 // the connection has ended
	disconnected bool                 // it has closed the connection and continues: it cannot wake the reader
	mapsRead     uint64               // number of messages with new mappings that were read
	maps         []*event.StartRecord // of the last of them, for which the record in the ring buffer was not read; the last has the number mapsRead
	checkedAt    time.Time            // when its mappings were read last, since it is disconnected
}

// What epoll reports has a number that is never used again. A file descriptor is, as soon as it is
// closed: a report of the one before it may still be waiting.
const wakeID = 2 // the listeners have their indexes

// watchFD adds a file descriptor to those that the reader waits for, and returns its number.
func (s *Source) watchFD(fd int) (id uint64, err error) {
	s.lastID++
	return s.lastID, s.watchAs(s.lastID, fd)
}

func (s *Source) watchAs(id uint64, fd int) error {
	return unix.EpollCtl(s.epollFD, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(id), Pad: int32(id >> 32)})
}

// idOf returns the number of what epoll reports.
func idOf(e unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// countLost counts lost events.
func (s *Source) countLost(n, since uint64) {
	if s.count == 0 || since < s.since {
		s.since = since
	}
	s.count += n
}

// Lost returns the lost events, including those that processes report.
func (s *Source) Lost() (count, since uint64) {
	count, since = s.count, s.since
	for _, c := range s.connections {
		if n, first := c.ring.Lost(); n > 0 {
			if count == 0 || first < since {
				since = first
			}
			count += n
		}
	}
	return count, since
}

// fromRing reads an event from a program's ring buffer.
func (s *Source) fromRing(e *event.Event, c *connection) bool {
	record, err := c.ring.Next(s.buffer[:])
	if err == nil && record == nil {
		return false
	}
	if err != nil || !decodeFrom(e, c, record) {
		s.countLost(1, event.Now())
		s.closeConnection(c) // its process is still watched
		return false
	}
	if e.Phase == event.CodeLoaded {
		e.Start = s.mapsFor(c, e.Args[0])
	}
	return true
}

// mapsFor returns the mappings for the events behind a record in the ring buffer, which has the number of
// their message; none if they did not come. Messages are read ahead of records: events before the record
// may be of code that these mappings no longer have.
func (s *Source) mapsFor(c *connection, number uint64) *event.StartRecord {
	c.readable = c.readable || c.socket >= 0
	for range maxWakes { // they may be behind messages that only wake
		if c.mapsRead >= number || !c.readable {
			break
		}
		if s.fromSocket(&s.unordered, c) {
			s.countLost(1, event.Now()) // a program with a ring buffer sends no other event
		}
	}
	behind := c.mapsRead - number // messages that came after
	if number == 0 || number > c.mapsRead || behind >= uint64(len(c.maps)) {
		return new(event.StartRecord)
	}
	at := len(c.maps) - 1 - int(behind)
	its := c.maps[at]
	c.maps = slices.Delete(c.maps, 0, at+1)
	return its
}

// maxUnordered is how many messages with mappings a connection keeps.
const maxUnordered = 64

// keepMaps keeps mappings until their record in the ring buffer is read.
func (c *connection) keepMaps(its *event.StartRecord) {
	if len(c.maps) == maxUnordered {
		c.maps = slices.Delete(c.maps, 0, 1)
	}
	c.maps = append(c.maps, its)
}

// fromSocket reads an event from a program's connection.
func (s *Source) fromSocket(e *event.Event, c *connection) bool {
	var rights [64]byte
	n, with, _, _, err := unix.Recvmsg(c.socket, s.buffer[:], rights[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err == unix.EAGAIN || err == unix.EINTR {
		c.readable = false
		return false
	}
	if err != nil || n == 0 {
		c.readable, c.closed = false, true
		return false
	}
	if good := decodeFrom(e, c, s.buffer[:n]); good {
		if c.receiveFiles(rights[:max(0, with)], e) != nil {
			s.countLost(1, event.Now())
			s.closeConnection(c)
		}
		if e.Phase != event.CodeLoaded {
			return true
		}
		c.mapsRead++
		if e.Start == nil { // the program could not copy them
			e.Start = new(event.StartRecord)
		}
		if c.ring == nil {
			return true
		}
		c.keepMaps(e.Start)
		return false
	}
	for _, fd := range receivedFDs(rights[:max(0, with)]) {
		unix.Close(fd)
	}
	return false
}

// decodeFrom parses a record of a process, and reports whether it is an event. The process ID is that of
// the connection, whatever the record says.
func decodeFrom(e *event.Event, c *connection, text []byte) bool {
	if e.Decode(text) != nil || e.Phase >= event.StackPart && e.Phase != event.PythonCode {
		return false
	}
	e.PID = c.pid
	switch e.Phase {
	case event.Forked: // the arguments were the token; the last one says which files came: see receiveFiles
		e.Args, e.LoadedDriver = [6]uint64{0: uint64(c.pid), 5: e.Args[5]}, true
	case event.Execed:
		e.Args, e.LoadedDriver = [6]uint64{5: e.Args[5]}, true
	case event.Exited:
		e.Args[0] = 0 // a thread: the pidfd reports the end of a process
	}
	return true
}

// The files that a process sends with an event, in this order: a bit of the event's last argument
// says whether each is there.
const (
	SendsRing    = 1 << iota // see ring
	sendsProgram             // the program's file
	sendsMaps                // a copy of its mappings
)

// receiveFiles takes the files that came with an event. After an error nothing of the program can be
// read.
func (c *connection) receiveFiles(rights []byte, e *event.Event) (err error) {
	files := receivedFDs(rights)
	next := func(bit uint64) int {
		if e.Args[5]&bit == 0 || len(files) == 0 {
			return -1
		}
		fd := files[0]
		files = files[1:]
		return fd
	}
	memory, program, maps := next(SendsRing), next(sendsProgram), next(sendsMaps)
	if memory >= 0 && c.ring == nil {
		c.ring, err = openRing(memory)
	}
	if maps >= 0 {
		e.Start = c.startRecord(program, maps)
	}
	for _, fd := range append(files, memory, program, maps) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return err
}

func receivedFDs(rights []byte) (files []int) {
	messages, _ := unix.ParseSocketControlMessage(rights)
	for _, m := range messages {
		some, _ := unix.ParseUnixRights(&m)
		files = append(files, some...)
	}
	return files
}

// maxMaps is the maximum size of the text of mappings. A process with a thousand libraries has 0.5 MB.
const maxMaps = 16 << 20

// startRecord returns the start record that a process sent. The process may have ended by now.
func (c *connection) startRecord(program, maps int) *event.StartRecord {
	b := event.StartRecord{Origin: event.OriginOf(int(c.pid))}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", program)); program >= 0 && err == nil {
		b.Origin.Program = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	var info unix.Stat_t
	if unix.Fstat(maps, &info) != nil || info.Size > maxMaps {
		return &b
	}
	text := make([]byte, info.Size)
	n, _ := unix.Pread(maps, text, 0)
	b.All = procfs.ParseMaps(text[:max(0, n)])
	return &b
}

// closeConnection closes a connection and its ring buffer.
func (s *Source) closeConnection(c *connection) {
	if c.socket < 0 {
		return
	}
	if count, since := c.ring.Lost(); count > 0 {
		s.countLost(count, since)
	}
	c.ring.Close()
	unix.Close(c.socket)
	delete(s.connections, c.id)
	c.ring, c.readable, c.socket = nil, false, -1
}
