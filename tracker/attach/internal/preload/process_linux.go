//go:build amd64 || arm64

package preload

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// process is a process that has loaded the shim. Each program that it executes opens a connection of its
// own, and the events of a program are read to their end before those of the next.
type process struct {
	pid      uint32
	started  uint64        // as the process reports it; 0 if unknown
	pidfd    int           // readable when the process has ended; -1 before Linux 5.3, and when ended is true
	pidfdID  uint64        // see Source.watchFD
	programs []*connection // oldest first, without those that have been read to their end
	latest   uint64        // began of the program that was read last
	previous *process      // an earlier process with the same number, which has ended and has not been read to its end

	ended  bool // all its connections have been accepted, and no more can come
	exited bool // its last event has been read: that it has ended
	queued bool // it is in Source.ready
	polled bool // it is in Source.polled
}

// current returns the connection that is read; nil if there is none.
func (p *process) current() *connection {
	if len(p.programs) == 0 {
		return nil
	}
	return p.programs[0]
}

// greet accepts the connections that were made, and assigns them to their processes by their first
// messages. When it returns, the order of the programs of each process is known, and connections that are
// made later are of later programs.
func (s *Source) greet() {
	for {
		some := s.firstMessages()
		if some == nil {
			return
		}
		slices.SortStableFunc(some, func(a, b *connection) int { return cmp.Compare(a.started, b.started) }) // a number may be used again
		for _, c := range some {
			s.introduce(c)
		}
	}
}

// firstMessages accepts the connections that were made, and reads their first messages. A program sends
// its own after those of the programs before it. So when one was read, theirs can be read, by whichever
// listener they come: firstMessages goes on until nothing is new, and then lacks none.
func (s *Source) firstMessages() (all []*connection) {
	for known := -1; known < len(all); {
		known = len(all)
		for i := range s.listeners {
			for s.listeners[i] >= 0 && s.accept(i) {
			}
		}
		s.strangers = slices.DeleteFunc(s.strangers, func(c *connection) bool {
			// What is peeked at stays in the socket, with its files: see fromSocket.
			n, _, err := unix.Recvfrom(c.socket, s.buffer[:event.ShortSize], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			switch {
			case err == unix.EAGAIN || err == unix.EINTR:
				return false
			case err != nil || n < event.ShortSize || !bytes.Equal(s.buffer[event.OffArgs:event.OffArgs+len(s.Token)], []byte(s.Token)):
				s.closeConnection(c) // other processes may find the socket
			default:
				c.began = binary.NativeEndian.Uint64(s.buffer[event.OffTime:])
				c.started = binary.NativeEndian.Uint64(s.buffer[event.OffArgs+8*startTimeArg:])
				all = append(all, c)
			}
			return true
		})
	}
	return all
}

// startTimeArg is the index of the argument of a program's first event that has the start time of its
// process, which an exec does not change. The arguments before it are the token.
const startTimeArg = 4

// accept accepts a connection from a process of this user; root accepts all users. It reports whether
// there may be another.
func (s *Source) accept(listener int) bool {
	fd, _, err := unix.Accept4(s.listeners[listener], unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch err {
	case nil:
	case unix.EAGAIN:
		return false
	case unix.ECONNABORTED, unix.EINTR:
		return true
	default: // too many files are open
		s.countLost(1, event.Now())
		_ = unix.EpollCtl(s.epollFD, unix.EPOLL_CTL_DEL, s.listeners[listener], nil)
		return false
	}
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || who.Pid <= 0 || who.Uid != uint32(os.Geteuid()) && os.Geteuid() != 0 {
		unix.Close(fd)
		return true
	}
	c := &connection{pid: uint32(who.Pid), socket: fd, listener: listener}
	c.id, _ = s.watchFD(fd)
	s.connections[c.id] = c
	s.strangers = append(s.strangers, c)
	return true
}

// introduce adds a connection to its process: behind the programs before it. Connections of one listener
// are accepted in the order in which they were made; those of two are ordered by the machine's clock.
func (s *Source) introduce(c *connection) {
	p := s.processes[c.pid]
	if p == nil || !p.is(c.started) {
		p = s.newProcess(c, p)
	}
	c.of = p
	i := len(p.programs)
	for i > 0 && p.programs[i-1].listener != c.listener && p.programs[i-1].began > c.began {
		i--
	}
	p.programs = slices.Insert(p.programs, i, c)
	byTime := func(a, b *connection) int { return cmp.Compare(a.began, b.began) }
	if c.began < p.latest || !slices.IsSortedFunc(p.programs, byTime) {
		s.warning = fmt.Errorf("process %d has executed several programs, whose order is uncertain: its clock was changed", p.pid)
	}
	c.readable = true
	s.poll(p)
	s.enqueue(p)
}

// is reports whether a process with the same number that started then is this process.
func (p *process) is(started uint64) bool {
	if started != 0 && p.started != 0 {
		return started == p.started
	}
	return !p.ended && (p.pidfd < 0 || !readableNow(p.pidfd)) // a number is not used again while its process lives
}

func readableNow(fd int) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0
}

// newProcess adds the process that made a connection. An earlier process with the same number has ended.
func (s *Source) newProcess(c *connection, earlier *process) *process {
	p := &process{pid: c.pid, started: c.started, pidfd: -1, previous: earlier}
	s.processes[c.pid] = p
	if earlier != nil {
		s.end(earlier)
	}
	// The process may have ended by now, and another may have its number: its socket knows. Linux 6.5 has it.
	pidfd, err := unix.GetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		pidfd, err = unix.PidfdOpen(int(c.pid), 0)
	}
	switch {
	case err == nil:
		p.pidfd = pidfd
		if p.pidfdID, err = s.watchFD(pidfd); err == nil {
			s.pidfds[p.pidfdID] = p
		}
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODATA):
		p.ended = true // greet has another turn
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		s.warning = fmt.Errorf("process %d: %w: its end is not distinguished from an exec", p.pid, err)
	}
	return p
}

// end records that a process has ended. The caller calls greet before what the process left is read.
func (s *Source) end(p *process) {
	p.ended = true
	if p.pidfd >= 0 {
		delete(s.pidfds, p.pidfdID)
		unix.Close(p.pidfd)
	}
	p.pidfd = -1
	s.enqueue(p)
}

// enqueue adds a process to those that may have something to read.
func (s *Source) enqueue(p *process) {
	if !p.queued {
		p.queued = true
		s.ready = append(s.ready, p)
	}
}

// receive reads one event of a process, and reports whether there was one.
func (s *Source) receive(e *event.Event, p *process) bool {
	if p.previous != nil {
		if s.receive(e, p.previous) {
			return true
		}
		p.previous = nil
	}
	for c := p.current(); c != nil; c = p.current() {
		over := p.ended || len(p.programs) > 1 // the program has ended: it writes nothing more
		if over {
			c.readable = c.socket >= 0 && !c.disconnected // its last messages may not have been reported
		}
		p.latest = c.began
		switch {
		case s.fromProgram(e, c, over):
			return true
		case !over || c.readable:
			return false
		}
		s.closeConnection(c)
		p.programs = p.programs[1:]
	}
	if !p.ended || p.exited {
		return false
	}
	p.exited = true
	if s.processes[p.pid] == p {
		delete(s.processes, p.pid)
	}
	*e = event.Event{PID: p.pid, Phase: event.Exited, Args: [6]uint64{1}, Time: event.Now()}
	return true
}

// fromProgram reads an event of a program, and reports whether there was one.
func (s *Source) fromProgram(e *event.Event, c *connection, over bool) bool {
	for range maxWakes {
		switch {
		case c.socket < 0:
			return false
		case s.fromRing(e, c):
			return true
		case c.closed && !over:
			c.closed = false
			return s.handleHangup(e, c)
		case !c.readable:
			return false
		case s.fromSocket(e, c):
			return true
		}
	}
	return false
}

// maxWakes is the maximum number of wakeup messages to read in a turn.
const maxWakes = 64

// handleHangup handles the end of a connection after which there is none. The process is about to end,
// has executed another program, or has closed file descriptors that it did not open.
func (s *Source) handleHangup(e *event.Event, c *connection) bool {
	p := c.of
	if p.pidfd < 0 {
		s.end(p)
		s.greet()
		return false
	}
	if s.mayHaveShim(p) {
		c.disconnected = true // it is about to end, or continues without a connection
		_ = unix.EpollCtl(s.epollFD, unix.EPOLL_CTL_DEL, c.socket, nil)
		return false
	}
	s.closeConnection(c)
	p.programs = p.programs[1:]
	*e = event.Event{PID: p.pid, Phase: event.Execed, Time: event.Now()}
	return true
}

// mayHaveShim reports whether a process still seems to run a program that has loaded the shim.
func (s *Source) mayHaveShim(p *process) bool {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	return err != nil || len(maps) == 0 || bytes.Contains(maps, []byte(s.Dir+"/libcuda.so.1"))
}

// poll adds a process to those whose ring buffers are polled.
func (s *Source) poll(p *process) {
	if !p.polled {
		p.polled = true
		s.polled = append(s.polled, p)
	}
}

// pollRings adds to ready each process whose ring buffer has events, and each that has closed its
// connection and then executed another program, which nothing else reports.
func (s *Source) pollRings(flushing bool) {
	s.stopPolling(func(p *process) bool {
		c := p.current()
		if c == nil || c.socket < 0 {
			return true
		}
		if c.disconnected && (flushing || time.Since(c.checkedAt) > recheckInterval) {
			c.checkedAt, c.closed = time.Now(), !s.mayHaveShim(p)
		}
		if c.closed || !c.ring.Empty() {
			s.enqueue(p)
		}
		return false
	})
}

// recheckInterval is how often the mappings of a process without a connection are checked.
const recheckInterval = 100 * time.Millisecond

// stopPollingIdle makes processes that wrote nothing during a poll interval wake the reader instead.
func (s *Source) stopPollingIdle() {
	s.stopPolling(func(p *process) bool {
		c := p.current()
		return c == nil || c.socket < 0 || !c.disconnected && c.ring.RequestWake()
	})
}

// stopPolling removes from polled the processes that of selects.
func (s *Source) stopPolling(of func(*process) bool) {
	s.polled = slices.DeleteFunc(s.polled, func(p *process) bool {
		p.polled = !of(p)
		return !p.polled
	})
}
