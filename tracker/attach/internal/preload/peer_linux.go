//go:build amd64 || arm64

package preload

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// accept accepts a connection from a process of this user; root accepts all users. It reports whether
// there may be another.
func (s *Source) accept(listener int) bool {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch err {
	case nil:
	case unix.EAGAIN:
		return false
	case unix.ECONNABORTED, unix.EINTR:
		return true
	default: // too many files are open
		s.countLost(1, event.Now())
		_ = unix.EpollCtl(s.epollFD, unix.EPOLL_CTL_DEL, listener, nil)
		return false
	}
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || who.Pid <= 0 || who.Uid != uint32(os.Geteuid()) && os.Geteuid() != 0 {
		unix.Close(fd)
		return true
	}
	p := &peer{pid: uint32(who.Pid), socket: fd, pidfd: -1}
	for _, other := range s.peers {
		if other.pid == p.pid {
			p.previous = other
		}
	}
	s.peers[fd] = p
	if life, err := unix.PidfdOpen(int(who.Pid), 0); err == nil {
		p.pidfd = life
		s.peers[life] = p
		_ = s.watchFD(life)
	}
	_ = s.watchFD(fd)
	return true
}

// receive reads one event of a process, and reports whether there was one.
func (s *Source) receive(e *event.Event, p *peer) bool {
	if before := p.previous; before != nil { // events from before the exec
		before.readable = before.socket >= 0 && !before.disconnected
		if s.receive(e, before) {
			return true
		}
		if before.readable {
			return false
		}
		s.closePeer(before)
		p.previous = nil
	}
	for range maxWakes {
		switch {
		case p.socket < 0:
			return false
		case s.fromRing(e, p):
			return true
		case p.closed:
			p.closed = false
			return s.handleHangup(e, p)
		case !p.readable:
			return false
		case s.fromSocket(e, p):
			return true
		}
	}
	return false
}

// maxWakes is the maximum number of wakeup messages to read in a turn.
const maxWakes = 64

// fromRing reads an event from a process's ring buffer.
func (s *Source) fromRing(e *event.Event, p *peer) bool {
	for {
		record, err := p.ring.Next(s.buffer[:])
		if err == nil && record == nil {
			return false
		}
		if err != nil || !decodeFrom(e, p, record) {
			s.countLost(1, event.Now())
			s.closeConnection(p) // the pidfd still reports the end of the process
			return false
		}
		if e.Phase != event.CodeLoaded {
			return true
		}
		if p.mapsRead < e.Args[0] && s.fromSocket(e, p) { // the mappings were sent before the event
			return true
		}
	}
}

// fromSocket reads an event from a process's connection.
func (s *Source) fromSocket(e *event.Event, p *peer) bool {
	var rights [64]byte
	n, with, _, _, err := unix.Recvmsg(p.socket, s.buffer[:], rights[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err == unix.EAGAIN || err == unix.EINTR {
		p.readable = false
		return false
	}
	if err != nil || n == 0 {
		p.readable, p.closed = false, true
		return false
	}
	if !p.authenticated && n >= event.ShortSize {
		p.authenticated = bytes.Equal(s.buffer[event.OffArgs:event.OffArgs+len(s.Token)], []byte(s.Token))
	}
	if good := decodeFrom(e, p, s.buffer[:n]); good && p.authenticated {
		if p.receiveFiles(rights[:max(0, with)], e) != nil {
			s.countLost(1, event.Now())
			s.closeConnection(p)
		}
		if e.Phase == event.CodeLoaded {
			p.mapsRead++
		}
		return true
	}
	for _, fd := range receivedFDs(rights[:max(0, with)]) {
		unix.Close(fd)
	}
	if !p.authenticated { // other processes may find the socket
		s.closePeer(p)
	}
	return false
}

// decodeFrom parses a record of a process, and reports whether it is an event. The process ID is that of
// the connection, whatever the record says.
func decodeFrom(e *event.Event, p *peer, text []byte) bool {
	if e.Decode(text) != nil || e.Phase >= event.StackPart && e.Phase != event.PythonCode {
		return false
	}
	e.PID = p.pid
	switch e.Phase {
	case event.Forked: // the arguments were the token; the last one says which files came: see receiveFiles
		e.Args, e.LoadedDriver = [6]uint64{0: uint64(p.pid), 5: e.Args[5]}, true
	case event.Execed:
		e.Args, e.LoadedDriver = [6]uint64{5: e.Args[5]}, true
	case event.Exited:
		e.Args[0] = 0 // a thread: the pidfd reports the end of a process
	}
	return true
}

// handleHangup handles the end of a connection. The process has ended, has executed another program, or
// has closed file descriptors that it did not open.
func (s *Source) handleHangup(e *event.Event, p *peer) bool {
	if !p.authenticated {
		s.closePeer(p)
		return false
	}
	if p.pidfd < 0 {
		return s.handleExit(e, p)
	}
	if s.mayHaveShim(p) {
		p.disconnected = true // it is about to end, or continues without a connection
		_ = unix.EpollCtl(s.epollFD, unix.EPOLL_CTL_DEL, p.socket, nil)
		return false
	}
	s.closeConnection(p)
	*e = event.Event{PID: p.pid, Phase: event.Execed, Time: event.Now()}
	return true
}

// mayHaveShim reports whether a process still seems to run a program that has loaded the shim.
func (s *Source) mayHaveShim(p *peer) bool {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	return err != nil || len(maps) == 0 || bytes.Contains(maps, []byte(s.Dir+"/libcuda.so.1"))
}

// handleExit handles the end of a process. After an exec an older connection may still be open: the
// process has ended when its last connection has.
func (s *Source) handleExit(e *event.Event, p *peer) bool {
	s.acceptAll()
	s.closePeer(p)
	if s.hasSuccessor(p) {
		return false
	}
	*e = event.Event{PID: p.pid, Phase: event.Exited, Args: [6]uint64{1}, Time: event.Now()}
	return true
}

func (s *Source) acceptAll() {
	for _, listener := range s.listeners {
		for listener >= 0 && s.accept(listener) {
		}
	}
}

// hasSuccessor reports whether the process has made another connection after an exec.
func (s *Source) hasSuccessor(p *peer) bool {
	for _, other := range s.peers {
		if other.previous == p {
			return true
		}
	}
	return false
}

// drainExited reads the remaining events of a process that has exited.
func (s *Source) drainExited(e *event.Event, p *peer) bool {
	found := s.receive(e, p)
	if !found && !p.readable {
		return s.handleExit(e, p)
	}
	s.ready = slices.Insert(s.ready, 0, p.pidfd)
	return found
}
