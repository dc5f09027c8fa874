//go:build amd64 || arm64

package attach

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// peer is a process that has a connection.
type peer struct {
	pid    uint32
	socket int   // -1 when it is closed
	life   int   // a pidfd: it can be read from when the process has ended; -1 before Linux 5.3
	before *peer // of the same process, before an exec
	page   int   // a file with what it lost: how many events, and when the first was; -1 if there is none
}

// accept takes a new connection, of this user's processes.
func (s *sockets) accept() {
	fd, _, err := unix.Accept4(s.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch err {
	case nil:
	case unix.EAGAIN, unix.ECONNABORTED, unix.EINTR:
		return
	default: // too many files are open
		s.missed(1, monotonic())
		_ = unix.EpollCtl(s.poll, unix.EPOLL_CTL_DEL, s.listener, nil)
		return
	}
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || who.Pid <= 0 || who.Uid != uint32(os.Geteuid()) && os.Geteuid() != 0 {
		unix.Close(fd)
		return
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
		if n, first := p.lost(); n > 0 && (fd == p.socket || p.socket < 0) {
			if count == 0 || first < since {
				since = first
			}
			count += n
		}
	}
	return count, since
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
	var buffer [wholeSize]byte
	var rights [64]byte
	n, with, _, _, err := unix.Recvmsg(p.socket, buffer[:], rights[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	p.take(rights[:max(0, with)])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return false
	case err != nil || n == 0:
		return s.hungUp(e, p)
	case e.read(buffer[:n]) != nil || e.phase > exited:
		return false
	}
	e.pid = p.pid // as this side counts them
	switch e.phase {
	case forked:
		e.args[0] = uint64(p.pid)
	case exited:
		e.args[0] = 0 // a thread: the end of a process is seen from here
	}
	return true
}

// take keeps the file that came with the first event.
func (p *peer) take(rights []byte) {
	messages, _ := unix.ParseSocketControlMessage(rights)
	for _, m := range messages {
		files, _ := unix.ParseUnixRights(&m)
		for _, fd := range files {
			if p.page < 0 {
				p.page = fd
			} else {
				unix.Close(fd)
			}
		}
	}
}

// lost reads the page of what was lost.
func (p *peer) lost() (count, since uint64) {
	var page [16]byte
	if p.page < 0 {
		return 0, 0
	}
	if n, err := unix.Pread(p.page, page[:], 0); err != nil || n < len(page) {
		return 0, 0
	}
	return binary.NativeEndian.Uint64(page[:]), binary.NativeEndian.Uint64(page[8:])
}

// hungUp is the end of a connection. The process has ended, or has begun another program, or
// has closed a file that is not its own.
func (s *sockets) hungUp(e *event, p *peer) bool {
	if p.life < 0 {
		s.hangUp(p)
		*e = event{pid: p.pid, phase: exited, args: [6]uint64{1}, time: monotonic()}
		return true
	}
	s.close1(&p.socket)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil || len(maps) == 0 || bytes.Contains(maps, []byte(s.dir+"/libcuda.so.1")) {
		return false // it is about to end, or tells in its page what it does without a connection
	}
	*e = event{pid: p.pid, phase: execed, time: monotonic()}
	return true
}

// ended is the end of a process, after all that it had to say.
func (s *sockets) ended(e *event, p *peer) bool {
	if p.socket >= 0 && s.receive(e, p) {
		s.ready = slices.Insert(s.ready, 0, p.life)
		return true
	}
	s.hangUp(p)
	*e = event{pid: p.pid, phase: exited, args: [6]uint64{1}, time: monotonic()}
	return true
}

// hangUp closes what there is of a process.
func (s *sockets) hangUp(p *peer) {
	if count, since := p.lost(); count > 0 {
		s.missed(count, since)
	}
	if p.page >= 0 {
		unix.Close(p.page)
		p.page = -1
	}
	s.close1(&p.socket)
	s.close1(&p.life)
}

func (s *sockets) close1(fd *int) {
	if *fd >= 0 {
		delete(s.peers, *fd)
		unix.Close(*fd)
	}
	*fd = -1
}
