//go:build amd64 || arm64

package attach

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// accept takes a new connection from a process of this user; root accepts all users. It reports
// whether there may be another.
func (s *sockets) accept(listener int) bool {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch err {
	case nil:
	case unix.EAGAIN:
		return false
	case unix.ECONNABORTED, unix.EINTR:
		return true
	default: // too many files are open
		s.missed(1, monotonic())
		_ = unix.EpollCtl(s.poll, unix.EPOLL_CTL_DEL, listener, nil)
		return false
	}
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || who.Pid <= 0 || who.Uid != uint32(os.Geteuid()) && os.Geteuid() != 0 {
		unix.Close(fd)
		return true
	}
	p := &peer{pid: uint32(who.Pid), socket: fd, life: -1, page: -1}
	for _, other := range s.peers {
		if other.pid == p.pid {
			p.before = other
		}
	}
	s.peers[fd] = p
	if life, err := unix.PidfdOpen(int(who.Pid), 0); err == nil {
		p.life = life
		s.peers[life] = p
		_ = s.look(life)
	}
	_ = s.look(fd)
	return true
}

// receive reads one event of a process, and reports whether there was one.
func (s *sockets) receive(e *event, p *peer) bool {
	if p.before != nil { // what it did before the exec
		if p.before.socket >= 0 && s.receive(e, p.before) {
			return true
		}
		s.hangUp(p.before)
		p.before = nil
	}
	var buffer [mostSize]byte
	var rights [64]byte
	n, with, _, _, err := unix.Recvmsg(p.socket, buffer[:], rights[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return false
	case err != nil || n == 0:
		return s.hungUp(e, p)
	}
	bad := e.read(buffer[:n]) != nil || e.phase >= copies
	if !p.known && !bad {
		p.known = bytes.Equal(buffer[offArgs:offArgs+len(s.token)], []byte(s.token))
		if !p.known { // anybody may find the socket
			s.hangUp(p)
		}
	}
	if bad || !p.known {
		for _, fd := range received(rights[:max(0, with)]) {
			unix.Close(fd)
		}
		return false
	}
	p.take(rights[:max(0, with)], e)
	e.pid = p.pid // as this side counts them
	switch e.phase {
	case forked:
		e.args[0] = uint64(p.pid)
	case exited:
		e.args[0] = 0 // a thread: the end of a process is seen from here
	}
	return true
}

// hungUp is the end of a connection. The process has ended, or has begun another program, or
// has closed a file that is not its own.
func (s *sockets) hungUp(e *event, p *peer) bool {
	if !p.known {
		s.hangUp(p)
		return false
	}
	if p.life < 0 {
		return s.exits(e, p)
	}
	s.close1(&p.socket)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil || len(maps) == 0 || bytes.Contains(maps, []byte(s.dir+"/libcuda.so.1")) {
		return false // it is about to end, or tells in its page what it does without a connection
	}
	*e = event{pid: p.pid, phase: execed, time: monotonic()}
	return true
}

// exits handles the end of a process. After an exec, an older connection of the process may still
// be open: the process has ended when its last connection has.
func (s *sockets) exits(e *event, p *peer) bool {
	s.acceptAll()
	s.hangUp(p)
	if s.succeeded(p) {
		return false
	}
	*e = event{pid: p.pid, phase: exited, args: [6]uint64{1}, time: monotonic()}
	return true
}

func (s *sockets) acceptAll() {
	for _, listener := range s.listeners {
		for listener >= 0 && s.accept(listener) {
		}
	}
}

// succeeded reports whether the same process has made another connection after an exec.
func (s *sockets) succeeded(p *peer) bool {
	for _, other := range s.peers {
		if other.before == p {
			return true
		}
	}
	return false
}

// ended handles the end of a process: no more events will come from it.
func (s *sockets) ended(e *event, p *peer) bool {
	if p.socket >= 0 && s.receive(e, p) {
		s.ready = slices.Insert(s.ready, 0, p.life)
		return true
	}
	return s.exits(e, p)
}
