//go:build amd64 || arm64

package attach

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
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
	p := &peer{pid: uint32(who.Pid), socket: fd, life: -1}
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
	if before := p.before; before != nil { // what it did before the exec
		before.signals = before.socket >= 0 && !before.deaf
		if s.receive(e, before) {
			return true
		}
		if before.signals {
			return false
		}
		s.hangUp(before)
		p.before = nil
	}
	for range maxWakes {
		switch {
		case p.socket < 0:
			return false
		case s.fromRing(e, p):
			return true
		case p.ends:
			p.ends = false
			return s.hungUp(e, p)
		case !p.signals:
			return false
		case s.fromSocket(e, p):
			return true
		}
	}
	return false
}

// maxWakes is how many messages that only wake are read in a turn: others have theirs.
const maxWakes = 64

// fromRing reads an event from the ring of a process.
func (s *sockets) fromRing(e *event, p *peer) bool {
	for {
		record, err := p.ring.Next(s.room[:])
		if err == nil && record == nil {
			return false
		}
		if err == nil && s.learn(p, record) {
			continue
		}
		if err != nil || !e.of(p, record) {
			s.missed(1, monotonic())
			s.shut(p) // the end of the process is still seen
			return false
		}
		if e.phase != loaded {
			return true
		}
		if p.mapped < e.args[0] && s.fromSocket(e, p) { // the mappings were sent before
			return true
		}
	}
}

// fromSocket reads an event from the connection of a process.
func (s *sockets) fromSocket(e *event, p *peer) bool {
	var rights [64]byte
	n, with, _, _, err := unix.Recvmsg(p.socket, s.room[:], rights[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err == unix.EAGAIN || err == unix.EINTR {
		p.signals = false
		return false
	}
	if err != nil || n == 0 {
		p.signals, p.ends = false, true
		return false
	}
	if !p.known && n >= shortSize {
		p.known = bytes.Equal(s.room[offArgs:offArgs+len(s.token)], []byte(s.token))
	}
	if p.known && s.learn(p, s.room[:n]) {
		return false
	}
	if good := e.of(p, s.room[:n]); good && p.known {
		if p.take(rights[:max(0, with)], e) != nil {
			s.missed(1, monotonic())
			s.shut(p)
		}
		if e.phase == loaded {
			p.mapped++
		}
		return true
	}
	for _, fd := range received(rights[:max(0, with)]) {
		unix.Close(fd)
	}
	if !p.known { // anybody may find the socket
		s.hangUp(p)
	}
	return false
}

// learn keeps what a process says of a code object of Python, and reports whether it is that.
func (s *sockets) learn(p *peer, record []byte) bool {
	if len(record) < python.CopyText || phase(binary.NativeEndian.Uint64(record[offWhat:])>>32) != said {
		return false
	}
	s.pythons.Learn(int(p.pid), record)
	return true
}

// of decodes what a process says, and reports whether it is an event. Who speaks, this side knows.
func (e *event) of(p *peer, text []byte) bool {
	if e.read(text) != nil || e.phase >= copies {
		return false
	}
	e.pid = p.pid
	switch e.phase {
	case forked: // the arguments were the token, and the last one says which files came: see take
		e.args = [6]uint64{0: uint64(p.pid), 5: e.args[5]}
	case execed:
		e.args = [6]uint64{5: e.args[5]}
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
	if s.mayHaveShim(p) {
		p.deaf = true // it is about to end, or goes on without a connection
		_ = unix.EpollCtl(s.poll, unix.EPOLL_CTL_DEL, p.socket, nil)
		return false
	}
	s.shut(p)
	*e = event{pid: p.pid, phase: execed, time: monotonic()}
	return true
}

// mayHaveShim reports whether a process runs a program that has loaded the shim, as far as can be seen: the program that has greeted.
func (s *sockets) mayHaveShim(p *peer) bool {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	return err != nil || len(maps) == 0 || bytes.Contains(maps, []byte(s.dir+"/libcuda.so.1"))
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
	found := s.receive(e, p)
	if !found && !p.signals {
		return s.exits(e, p)
	}
	s.ready = slices.Insert(s.ready, 0, p.life)
	return found
}
