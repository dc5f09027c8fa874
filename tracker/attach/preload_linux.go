//go:build amd64 || arm64

package attach

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

func newSockets(cfg Config, functions []function) (*sockets, error) {
	if len(cfg.pairs) > 0 {
		return nil, errors.New("functions of a library cannot be watched by a library in front of libcuda: they need probes")
	}
	driver, err := driverFile(cfg)
	if err != nil {
		return nil, err
	}
	s := &sockets{listeners: [2]int{-1, -1}, poll: -1, wake: -1, peers: make(map[int]*peer)}
	if s.dir, err = buildShim(functions, driver); err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(s.dir); err == nil {
		s.dir = real // as the maps of a process have it
	}
	var secret [16]byte
	rand.Read(secret[:])
	s.token = hex.EncodeToString(secret[:])
	s.name = fmt.Sprintf("gpumemtrack-%d-%s", os.Getpid(), rand.Text()[:8])
	s.file = filepath.Join(s.dir, s.name)
	if err := s.listen(); err != nil {
		s.close()
		return nil, fmt.Errorf("a socket for the shim library: %w", err)
	}
	return s, nil
}

// listen waits for processes by an abstract name, which is short and reaches every folder, and by a file, which
// another network namespace has too.
func (s *sockets) listen() (err error) {
	removeStale(s.dir)
	if s.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if s.listeners[0], err = listenAt("@" + s.name); err != nil {
		return err
	}
	if s.listeners[1], err = listenAt(s.file); err != nil { // too long a path, or a disk without sockets
		s.file = ""
		return errors.Join(s.look(s.listeners[0]), s.look(s.wake))
	}
	_ = os.Chmod(s.file, 0o666) // the token is the key: a program may change its user
	return errors.Join(s.look(s.listeners[0]), s.look(s.listeners[1]), s.look(s.wake))
}

func listenAt(name string) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, 1024)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// removeStale removes the socket files of watchers that were killed.
func removeStale(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "gpumemtrack-*"))
	for _, file := range files {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(file), "gpumemtrack-%d-", &pid); err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			os.Remove(file)
		}
	}
}

func (s *sockets) watch(pid int) error {
	if pid != os.Getpid() {
		return errors.New("a program that runs cannot be given another library: start it under the watcher")
	}
	return nil
}

func (*sockets) forget(int)                                   {}
func (*sockets) code(int) (generation, since uint32, ok bool) { return 0, 0, true }
func (*sockets) unteach(int)                                  {}
func (*sockets) runs(int, python.Layout) error                { return nil }
func (*sockets) runsOther(int)                                {}
func (*sockets) library(_, _ string) error                    { return nil }

// readSoonGone notes who learns what processes say of their functions of Python. Programs that begin tell of it themselves.
func (s *sockets) readSoonGone(of *python.Processes, _ func(program, string)) { s.pythons = of }

func (*sockets) teach(int, uint32, uint64, unwind.Step) {}

// next waits for an event. The error is os.ErrClosed after interrupt, and errFlushed when all
// that was there at a flush has been read.
func (s *sockets) next(e *event) error {
	for {
		for len(s.ready) > 0 {
			if s.flushed() {
				return errFlushed
			}
			fd := s.ready[0]
			s.ready = s.ready[1:]
			p := s.peers[fd]
			switch {
			case slices.Contains(s.listeners[:], fd):
				s.accept(fd)
			case p == nil:
			case fd == p.socket && s.receive(e, p):
				s.ready = append(s.ready, fd) // there may be more
				return nil
			case fd == p.life && s.ended(e, p):
				return nil
			}
		}
		if err := s.wait(); err != nil {
			return err
		}
	}
}

// wait fills ready. Processes that have ended come last: they may have left something to read.
func (s *sockets) wait() error {
	s.mu.Lock()
	flushing, closing := s.flushing, s.closing
	s.mu.Unlock()
	s.lookAtRings(flushing)
	timeout := -1
	switch {
	case flushing || closing || len(s.ready) > 0:
		timeout = 0
	case len(s.awake) > 0:
		timeout = nap
	}
	var some [64]unix.EpollEvent
	n, err := unix.EpollWait(s.poll, some[:], timeout)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("read events of the shim library: %w", err)
	}
	s.take(some[:max(0, n)])
	switch {
	case n == 0 && timeout == nap:
		s.letSleep()
		return nil
	case len(s.ready) > 0 || !flushing && !closing:
		return nil
	case closing:
		return os.ErrClosed
	}
	s.mu.Lock()
	s.flushing, s.left = false, 0
	s.mu.Unlock()
	return errFlushed
}

// take gives turns to those that epoll reports.
func (s *sockets) take(some []unix.EpollEvent) {
	var ends []int
	for _, it := range some {
		fd := int(it.Fd)
		p := s.peers[fd]
		switch {
		case fd == s.wake:
			var count [8]byte
			unix.Read(s.wake, count[:])
		case p == nil:
			s.ready = append(s.ready, fd)
		case p.life == fd:
			p.signals = p.socket >= 0 && !p.deaf
			ends = append(ends, fd)
		default:
			p.signals = true
			if !p.awake {
				p.awake = true
				s.awake = append(s.awake, p)
			}
			if !slices.Contains(s.ready, fd) {
				s.ready = append(s.ready, fd)
			}
		}
	}
	s.ready = append(s.ready, ends...)
}

// lookAtRings gives a turn to each process that has written something, and to each that has closed its connection and then begun another
// program, which nothing else tells of.
func (s *sockets) lookAtRings(flushing bool) {
	s.awake = slices.DeleteFunc(s.awake, func(p *peer) bool {
		if p.deaf && p.socket >= 0 && (flushing || time.Since(p.looked) > lookAgain) {
			p.looked, p.ends = time.Now(), !s.mayHaveShim(p)
		}
		if p.ends || !p.ring.Empty() {
			s.ready = append(s.ready, p.socket)
		}
		return p.socket < 0
	})
}

// lookAgain is how often the mappings are read of a process that has closed its connection.
const lookAgain = 100 * time.Millisecond

// letSleep has the processes that wrote nothing for a nap wake the reader.
func (s *sockets) letSleep() {
	s.awake = slices.DeleteFunc(s.awake, func(p *peer) bool {
		p.awake = p.socket >= 0 && (p.deaf || !p.ring.Sleep())
		return !p.awake
	})
}

// flushed reports, to a reader that always has more to read, that what there was at the flush
// is read.
func (s *sockets) flushed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.flushing {
		return false
	}
	if s.left == 0 {
		s.left = maxQueued * (len(s.peers) + 1)
	}
	s.left--
	if s.left == 0 {
		s.flushing = false
	}
	return s.left == 0
}

// flush has next return errFlushed when it has read what there is now.
func (s *sockets) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return os.ErrClosed
	}
	s.flushing = true
	return s.rouse()
}

// interrupt ends the wait for events.
func (s *sockets) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	_ = s.rouse() // it fails only if the reader has enough to wake for
}

func (s *sockets) rouse() error {
	_, err := unix.Write(s.wake, []byte{0: 1, 7: 0})
	return err
}

// detach takes no new processes; what the others have sent can still be read.
func (s *sockets) detach() {}

// close ends all connections. The watched programs go on undisturbed. The reader must have ended.
func (s *sockets) close() {
	for _, p := range s.peers {
		s.hangUp(p)
	}
	for _, fd := range []int{s.listeners[0], s.listeners[1], s.poll, s.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if s.listeners[1] >= 0 {
		os.Remove(s.file)
	}
	s.listeners, s.poll, s.wake = [2]int{-1, -1}, -1, -1
}
