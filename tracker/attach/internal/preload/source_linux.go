//go:build amd64 || arm64

// Package preload is an event source for users without the privileges for probes: a shim library in front
// of libcuda, which programs load that are started with it. Each process has a connection, and writes its
// events into a ring buffer in shared memory.
package preload

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
)

// New listens for programs that will load the shim, which it builds in front of a driver's library:
// the first of paths that exists. headers has the C headers that the shim shares with the kernel's programs,
// each in a folder. A call waits at most waitMS milliseconds for a watcher that does not
// read; 0 is two seconds.
func New(paths []string, functions []event.Function, headers fs.FS, waitMS int) (*Source, error) {
	if slices.ContainsFunc(functions, func(f event.Function) bool { return f.Library != "" }) {
		return nil, errors.New("functions of a library cannot be watched by a library in front of libcuda: they need probes")
	}
	at := slices.IndexFunc(paths, func(path string) bool { _, err := os.Stat(path); return err == nil })
	if at < 0 {
		return nil, errors.New("no libcuda.so.1 was found: name its file in Config.Libraries, or with --library")
	}
	driver, err := filepath.Abs(paths[at])
	if err != nil {
		return nil, err
	}
	s := newSource()
	if s.Dir, err = buildShim(functions, driver, headers, cmp.Or(waitMS, 2000)); err != nil {
		return nil, err
	}
	if resolved, err := filepath.EvalSymlinks(s.Dir); err == nil {
		s.Dir = resolved // as the maps of a process have it
	}
	if err := s.listen(); err != nil {
		s.Close()
		return nil, fmt.Errorf("a socket for the shim library: %w", err)
	}
	return s, nil
}

func newSource() *Source {
	return &Source{
		listeners: [2]int{-1, -1}, epollFD: -1, wakeFD: -1, lastID: wakeID,
		connections: make(map[uint64]*connection), pidfds: make(map[uint64]*process), processes: make(map[uint32]*process),
	}
}

// listen listens at an abstract name, which is short and works in every mount namespace, and at a file,
// which works in every network namespace.
func (s *Source) listen() (err error) {
	removeStale(s.Dir)
	var secret [16]byte
	rand.Read(secret[:])
	s.Token = hex.EncodeToString(secret[:])
	s.Name = fmt.Sprintf("gpumemtrack-%d-%s", os.Getpid(), rand.Text()[:8])
	s.File = filepath.Join(s.Dir, s.Name)
	if s.epollFD, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	if s.listeners[0], err = listenAt("@" + s.Name); err != nil {
		return err
	}
	if s.listeners[1], err = listenAt(s.File); err != nil { // too long a path, or a file system without sockets
		s.File = ""
		return errors.Join(s.watchAs(0, s.listeners[0]), s.watchAs(wakeID, s.wakeFD))
	}
	_ = os.Chmod(s.File, 0o666) // the token authenticates: a program may change its user
	return errors.Join(s.watchAs(0, s.listeners[0]), s.watchAs(1, s.listeners[1]), s.watchAs(wakeID, s.wakeFD))
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

func (s *Source) Watch(pid int) error {
	if pid != os.Getpid() {
		return errors.New("a program that runs cannot be given another library: start it under the watcher")
	}
	return nil
}

func (*Source) Unwatch(int)                                            {}
func (*Source) CodeGeneration(int) (generation, since uint32, ok bool) { return 0, 0, true }
func (*Source) RemoveUnwindRules(int)                                  {}
func (*Source) SetPythonLayout(int, python.Layout) error               { return nil }
func (*Source) ClearPythonLayout(int)                                  {}
func (*Source) ProbeLibrary(_, _ string) error                         { return nil }

// ReadExecs does nothing: programs report their start themselves.
func (*Source) ReadExecs(func(event.Program, event.File), func(int)) {}

func (*Source) LoadUnwindRule(int, uint32, uint64, unwind.CompactRule) {}

// Next waits for an event. The error is os.ErrClosed after interrupt, and event.ErrFlushed when all
// that was there at a flush has been read; any other says why the ledgers may be inaccurate.
func (s *Source) Next(e *event.Event) error {
	for {
		if err := s.warning; err != nil {
			s.warning = nil
			return err
		}
		for len(s.ready) > 0 {
			if s.flushed() {
				return event.ErrFlushed
			}
			p := s.ready[0]
			s.ready, p.queued = s.ready[1:], false
			if s.receive(e, p) {
				s.enqueue(p) // there may be more
				return nil
			}
		}
		if err := s.wait(); err != nil {
			return err
		}
	}
}

// wait fills ready.
func (s *Source) wait() error {
	s.mu.Lock()
	flushing, closing := s.flushing, s.closing
	s.mu.Unlock()
	s.pollRings(flushing)
	timeout := -1
	switch {
	case flushing || closing || len(s.ready) > 0:
		timeout = 0
	case len(s.polled) > 0:
		timeout = PollMS
	}
	var some [64]unix.EpollEvent
	n, err := unix.EpollWait(s.epollFD, some[:], timeout)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("read events of the shim library: %w", err)
	}
	s.schedule(some[:max(0, n)])
	switch {
	case n == 0 && timeout == PollMS:
		s.stopPollingIdle()
		return nil
	case len(s.ready) > 0 || !flushing && !closing:
		return nil
	case closing:
		return os.ErrClosed
	}
	s.mu.Lock()
	s.flushing, s.left = false, 0
	s.mu.Unlock()
	return event.ErrFlushed
}

// schedule adds to ready what epoll reports.
func (s *Source) schedule(some []unix.EpollEvent) {
	isNew := false
	for _, it := range some {
		id := idOf(it)
		switch c, p := s.connections[id], s.pidfds[id]; {
		case id == wakeID:
			var count [8]byte
			_, _ = unix.Read(s.wakeFD, count[:]) // of an eventfd that is readable
		case id < wakeID || c != nil && c.of == nil:
			isNew = true
		case c != nil:
			c.readable = true
			s.poll(c.of)
			s.enqueue(c.of)
		case p != nil:
			s.end(p)
			isNew = true
		}
	}
	if isNew {
		s.greet()
	}
}

// flushed reports that all events of before a flush are read, to a reader that always has more to read.
func (s *Source) flushed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.flushing {
		return false
	}
	if s.left == 0 {
		s.greet() // a program of before the flush may not have been accepted
		s.left = maxQueued * (len(s.connections) + 1)
	}
	s.left--
	if s.left == 0 {
		s.flushing = false
	}
	return s.left == 0
}

// Flush makes next return event.ErrFlushed after all events of before the call.
func (s *Source) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return os.ErrClosed
	}
	s.flushing = true
	return s.wakeReader()
}

// Interrupt ends the wait for events.
func (s *Source) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	_ = s.wakeReader() // it fails only if wakeups are pending already
}

func (s *Source) wakeReader() error {
	_, err := unix.Write(s.wakeFD, []byte{0: 1, 7: 0})
	return err
}

// Detach does nothing: what processes have sent can still be read.
func (s *Source) Detach() {}

// Close closes all connections. The watched programs continue undisturbed. The reader must have ended.
func (s *Source) Close() {
	for _, c := range s.connections {
		s.closeConnection(c)
	}
	for _, p := range s.pidfds {
		s.end(p)
	}
	for _, fd := range []int{s.listeners[0], s.listeners[1], s.epollFD, s.wakeFD} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if s.listeners[1] >= 0 {
		os.Remove(s.File)
	}
	s.listeners, s.epollFD, s.wakeFD = [2]int{-1, -1}, -1, -1
}
