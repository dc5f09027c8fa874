//go:build amd64 || arm64

package attach

import (
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/memring"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// sockets are the events of programs that have loaded the shim. Each process has a connection, and leaves events in a ring in
// memory; where it cannot have one, it sends them. One goroutine reads them.
type sockets struct {
	preload
	listeners  [2]int // an abstract name in the network namespace, and a file; -1 if missing
	poll, wake int
	peers      map[int]*peer // by the descriptors of the connection and of the pidfd
	ready      []int         // who has a turn: those that may have something to read
	awake      []*peer       // whose rings are looked at again and again; the others wake the reader
	room       [max(mostSize, python.LargestCopy)]byte
	pythons    *python.Processes

	count, since uint64 // lost

	mu                sync.Mutex
	flushing, closing bool
	left              int // looks until a flush has seen all that there was
}

// maxQueued is more than the events that a connection and its ring have room for.
const maxQueued = 1 << 14

// nap is for how many milliseconds an event may wait until it is read, if the program goes on to write into its ring.
const nap = 10

// peer is a process that has a connection.
type peer struct {
	pid    uint32
	socket int           // -1 when it is closed
	life   int           // a pidfd: it can be read from when the process has ended; -1 before Linux 5.3
	before *peer         // the connection of the same process before an exec
	ring   *memring.Ring // nil if it has none
	known  bool          // it has shown the token

	signals bool      // there may be something to read from the connection
	ends    bool      // there will be no more
	deaf    bool      // it has closed the connection and goes on: it can wake nobody
	awake   bool      // it is in sockets.awake
	mapped  uint64    // how many messages with new mappings were read
	looked  time.Time // when its mappings were, since it is deaf
}

// look makes the reader wait for a file descriptor too.
func (s *sockets) look(fd int) error {
	return unix.EpollCtl(s.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// missed counts events that are lost for good.
func (s *sockets) missed(n, since uint64) {
	if s.count == 0 || since < s.since {
		s.since = since
	}
	s.count += n
}

// lost adds what the processes say that they lost.
func (s *sockets) lost() (count, since uint64) {
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
	givesRing    = 1 << iota // see package memring
	givesProgram             // the program's file
	givesMaps                // a copy of its mappings
)

// take reads the files that came with an event. The error says that nothing of the process can be read.
func (p *peer) take(rights []byte, e *event) (err error) {
	files := received(rights)
	next := func(bit uint64) int {
		if e.args[5]&bit == 0 || len(files) == 0 {
			return -1
		}
		fd := files[0]
		files = files[1:]
		return fd
	}
	memory, program, maps := next(givesRing), next(givesProgram), next(givesMaps)
	if memory >= 0 && p.ring == nil {
		p.ring, err = memring.Open(memory)
	}
	if maps >= 0 {
		e.program = p.told(program, maps)
	}
	for _, fd := range append(files, memory, program, maps) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return err
}

func received(rights []byte) (files []int) {
	messages, _ := unix.ParseSocketControlMessage(rights)
	for _, m := range messages {
		some, _ := unix.ParseUnixRights(&m)
		files = append(files, some...)
	}
	return files
}

// maxMaps is the most text of mappings that is read: a process with a thousand libraries has half a megabyte.
const maxMaps = 16 << 20

// told returns what a process says of its program: it may have ended by now.
func (p *peer) told(program, maps int) *birth {
	b := birth{origin: originOf(int(p.pid))}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", program)); program >= 0 && err == nil {
		b.origin.Program = path.Base(strings.TrimSuffix(exe, " (deleted)"))
	}
	var info unix.Stat_t
	if unix.Fstat(maps, &info) != nil || info.Size > maxMaps {
		return &b
	}
	text := make([]byte, info.Size)
	n, _ := unix.Pread(maps, text, 0)
	b.All = symbols.ParseMaps(text[:max(0, n)])
	return &b
}

// hangUp closes what there is of a process.
func (s *sockets) hangUp(p *peer) {
	s.shut(p)
	s.close1(&p.life)
}

// shut closes the connection of a process and its ring.
func (s *sockets) shut(p *peer) {
	if count, since := p.ring.Lost(); count > 0 {
		s.missed(count, since)
	}
	p.ring.Close()
	p.ring, p.signals = nil, false
	s.close1(&p.socket)
}

func (s *sockets) close1(fd *int) {
	if *fd >= 0 {
		delete(s.peers, *fd)
		unix.Close(*fd)
	}
	*fd = -1
}
