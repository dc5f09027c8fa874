//go:build amd64 || arm64

package preload

import (
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// Source is the event source of programs that have loaded the shim. Each process has a connection, and
// writes events into a ring buffer in shared memory; if it cannot have one, it sends them. One goroutine
// reads them.
type Source struct {
	shim
	listeners       [2]int // an abstract name in the network namespace, and a file; -1 if missing
	epollFD, wakeFD int
	peers           map[int]*peer // by the descriptors of the connection and of the pidfd
	ready           []int         // descriptors that may have something to read
	polled          []*peer       // whose ring buffers are polled; the others wake the reader
	buffer          [max(event.MostSize, python.LargestCopy)]byte

	count, since uint64 // lost events

	mu                sync.Mutex
	flushing, closing bool
	left              int // reads until a flush is done
}

// maxQueued is more than the events that a connection and its ring buffer can hold.
const maxQueued = 1 << 14

// PollMS is the poll interval in milliseconds, for processes that keep writing into their ring buffers.
const PollMS = 10

// peer is a process with a connection.
type peer struct {
	pid           uint32
	socket        int   // -1 when it is closed
	pidfd         int   // readable when the process has ended; -1 before Linux 5.3
	previous      *peer // the connection of the same process before an exec
	ring          *ring // nil if it has none
	authenticated bool  // it has sent the token

	readable     bool      // the connection may have something to read
	closed       bool      // the connection has ended
	disconnected bool      // it has closed the connection and continues: it cannot wake the reader
	polled       bool      // it is in Source.polled
	mapsRead     uint64    // number of messages with new mappings that were read
	checkedAt    time.Time // when its mappings were read last, since it is disconnected
}

// watchFD adds a file descriptor to those that the reader waits for.
func (s *Source) watchFD(fd int) error {
	return unix.EpollCtl(s.epollFD, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

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
	for fd, p := range s.peers {
		if n, first := p.ring.Lost(); n > 0 && fd == p.socket {
			if count == 0 || first < since {
				since = first
			}
			count += n
		}
	}
	return count, since
}

// The files that a process sends with an event, in this order: a bit of the event's last argument
// says whether each is there.
const (
	SendsRing    = 1 << iota // see ring
	sendsProgram             // the program's file
	sendsMaps                // a copy of its mappings
)

// receiveFiles takes the files that came with an event. After an error nothing of the process can be
// read.
func (p *peer) receiveFiles(rights []byte, e *event.Event) (err error) {
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
	if memory >= 0 && p.ring == nil {
		p.ring, err = openRing(memory)
	}
	if maps >= 0 {
		e.Start = p.startRecord(program, maps)
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

// event.StartRecord returns the start record that a process sent. The process may have ended by now.
func (p *peer) startRecord(program, maps int) *event.StartRecord {
	b := event.StartRecord{Origin: event.OriginOf(int(p.pid))}
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

// closePeer closes all descriptors of a process.
func (s *Source) closePeer(p *peer) {
	s.closeConnection(p)
	s.closeFD(&p.pidfd)
}

// closeConnection closes a process's connection and ring buffer.
func (s *Source) closeConnection(p *peer) {
	if count, since := p.ring.Lost(); count > 0 {
		s.countLost(count, since)
	}
	p.ring.Close()
	p.ring, p.readable = nil, false
	s.closeFD(&p.socket)
}

func (s *Source) closeFD(fd *int) {
	if *fd >= 0 {
		delete(s.peers, *fd)
		unix.Close(*fd)
	}
	*fd = -1
}
