//go:build amd64 || arm64

package preload

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// listening is a source without a shim: this process connects to it, as a process does that executes
// one program after another.
func listening(t *testing.T) *Source {
	t.Helper()
	s := newSource()
	s.Dir = t.TempDir()
	require.NoError(t, s.listen())
	t.Cleanup(s.Close)
	return s
}

// connect connects as the n-th program of a process that started at a time, which calls a function.
func connect(t *testing.T, s *Source, listener int, n, began, started uint64) (fd int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: []string{"@" + s.Name, s.File}[listener]}))
	first := make([]byte, event.ShortSize)
	put := func(at int, value uint64) { binary.NativeEndian.PutUint64(first[at:], value) }
	put(event.OffTime, began)
	put(event.OffWhat, uint64(event.Execed)<<32)
	copy(first[event.OffArgs:], s.Token)
	put(event.OffArgs+8*startTimeArg, started)
	_, err = unix.Write(fd, first)
	require.NoError(t, err)
	call := make([]byte, event.ShortSize)
	binary.NativeEndian.PutUint64(call[event.OffWhat:], uint64(event.AtEntry)<<32)
	binary.NativeEndian.PutUint64(call[event.OffArgs:], n)
	_, err = unix.Write(fd, call)
	require.NoError(t, err)
	return fd
}

// events reads until a flush is done, and returns the numbers of the calls, -1 for the first event of
// a program, and -2 for the end of a process.
func events(t *testing.T, s *Source) (all []int, warnings []error) {
	t.Helper()
	require.NoError(t, s.Flush())
	for {
		var e event.Event
		switch err := s.Next(&e); {
		case errors.Is(err, event.ErrFlushed):
			return all, warnings
		case err != nil:
			warnings = append(warnings, err)
		case e.LoadedDriver:
			all = append(all, -1)
		case e.Phase == event.Exited:
			all = append(all, -2)
		case e.Phase == event.AtEntry:
			assert.EqualValues(t, os.Getpid(), e.PID)
			all = append(all, int(e.Args[0]))
		}
	}
}

// TestProgramsAreReadInOrder: however far the reader is, by whichever listener they come, and whether or
// not something keeps the connection of an earlier one open.
func TestProgramsAreReadInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		s := listening(t)
		var got, want []int
		last := -1
		for n := range 100 {
			next := connect(t, s, r.IntN(2), uint64(n), uint64(1000+n), 7)
			if last >= 0 && r.IntN(2) == 0 {
				unix.Close(last)
			}
			last = next
			want = append(want, -1, n)
			if r.IntN(8) == 0 {
				some, warnings := events(t, s)
				got = append(got, some...)
				assert.Empty(t, warnings)
			}
		}
		some, warnings := events(t, s)
		assert.Empty(t, warnings)
		assert.Equal(t, want, append(got, some...))
	}
}

// TestProgramsAreReadInOrderMeanwhile: the reader is never where the process is.
func TestProgramsAreReadInOrderMeanwhile(t *testing.T) {
	s := listening(t)
	const programs = 300
	done := make(chan []int)
	go func() {
		var got []int
		for len(got) < programs {
			var e event.Event
			if assert.NoError(t, s.Next(&e)); e.Phase == event.AtEntry {
				got = append(got, int(e.Args[0]))
			}
		}
		done <- got
	}()
	var want []int
	r := rand.New(rand.NewPCG(1, 2))
	for n := range programs {
		fd := connect(t, s, r.IntN(2), uint64(n), event.Now(), 7)
		want = append(want, n)
		unix.Close(fd)
	}
	assert.Equal(t, want, <-done)
}

// TestReusedProcessNumber: a process with another start is another process, and the one before it has ended.
func TestReusedProcessNumber(t *testing.T) {
	s := listening(t)
	connect(t, s, 0, 0, 1000, 7)
	connect(t, s, 1, 1, 1001, 7)
	connect(t, s, 0, 2, 1002, 9)
	got, warnings := events(t, s)
	assert.Equal(t, []int{-1, 0, -1, 1, -2, -1, 2}, got)
	assert.Empty(t, warnings)
	connect(t, s, 0, 3, 1003, 0) // unknown: this process lives
	got, _ = events(t, s)
	assert.Equal(t, []int{-1, 3}, got)
}

// TestChangedClock: what cannot be known is said.
func TestChangedClock(t *testing.T) {
	s := listening(t)
	connect(t, s, 0, 0, 1000, 7)
	connect(t, s, 0, 1, 900, 7)
	got, warnings := events(t, s)
	assert.Equal(t, []int{-1, 0, -1, 1}, got, "one listener's connections have an order")
	require.Len(t, warnings, 1)
	assert.ErrorContains(t, warnings[0], "whose order is uncertain")
	connect(t, s, 1, 2, 800, 7)
	got, warnings = events(t, s)
	assert.Equal(t, []int{-1, 2}, got)
	assert.Len(t, warnings, 1)
}

// TestStrangers: who does not know the token is hung up on.
func TestStrangers(t *testing.T) {
	s := listening(t)
	silent, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(silent)
	require.NoError(t, unix.Connect(silent, &unix.SockaddrUnix{Name: "@" + s.Name}))
	connect(t, s, 0, 0, 1000, 7)
	got, _ := events(t, s)
	assert.Equal(t, []int{-1, 0}, got)
	assert.Len(t, s.strangers, 1)
	_, err = unix.Write(silent, []byte("hello"))
	require.NoError(t, err)
	got, _ = events(t, s)
	assert.Empty(t, got)
	n, err := unix.Read(silent, make([]byte, 1))
	assert.True(t, n == 0 || err == unix.ECONNRESET, "%d %v", n, err)
	assert.Empty(t, s.strangers)
}

// TestMappingsBehindAWakeMessage: mappings that were sent are read before the next event of the ring buffer, whatever
// else is in the socket, and whether or not epoll has reported it.
func TestMappingsBehindAWakeMessage(t *testing.T) {
	for wakes := range 3 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		r, w := opened(t)
		s, c := newSource(), &connection{pid: 1, socket: pair[0], ring: r}
		record := func(phase event.Phase) []byte {
			b := make([]byte, event.ShortSize)
			binary.NativeEndian.PutUint64(b[event.OffWhat:], uint64(phase)<<32)
			binary.NativeEndian.PutUint64(b[event.OffArgs:], 1)
			return b
		}
		for range wakes {
			_, err = unix.Write(pair[1], []byte{0})
			require.NoError(t, err)
		}
		_, err = unix.Write(pair[1], record(event.CodeLoaded))
		require.NoError(t, err)
		require.True(t, w.write(record(event.CodeLoaded)) && w.write(record(event.AtEntry)))
		w.word(atWritten).Store(w.written)
		for _, want := range []event.Phase{event.CodeLoaded, event.AtEntry} {
			var e event.Event
			assert.True(t, s.fromRing(&e, c))
			assert.Equal(t, want, e.Phase, "%d messages that wake", wakes)
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
	}
}

// TestMappingsAheadOfTheirRecord: mappings that the socket has before the ring buffer has the calls of the code before
// are not for those calls. Where they did not come, none are known: calls would have names of code that is gone.
func TestMappingsAheadOfTheirRecord(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	r, w := opened(t)
	s, c := newSource(), &connection{pid: 1, socket: pair[0], ring: r}
	record := func(phase event.Phase, number uint64) []byte {
		b := make([]byte, event.ShortSize)
		binary.NativeEndian.PutUint64(b[event.OffWhat:], uint64(phase)<<32)
		binary.NativeEndian.PutUint64(b[event.OffArgs:], number)
		return b
	}
	send := func(maps string, number uint64) {
		file, err := unix.MemfdCreate("maps", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		defer unix.Close(file)
		_, err = unix.Write(file, []byte(maps))
		require.NoError(t, err)
		b := record(event.CodeLoaded, number)
		binary.NativeEndian.PutUint64(b[event.OffArgs+40:], sendsMaps)
		require.NoError(t, unix.Sendmsg(pair[1], b, unix.UnixRights(file), nil, 0))
	}
	var e event.Event
	assert.False(t, s.fromRing(&e, c))
	send("7f0000000000-7f0000001000 r-xp 00000000 08:01 11 /lib/a.so\n", 1)
	send("7f0000000000-7f0000001000 r-xp 00000000 08:01 12 /lib/b.so\n", 2)
	for range 2 {
		assert.False(t, s.fromSocket(&e, c), "a call of before may come")
	}
	want := []struct {
		phase  event.Phase
		number uint64
		path   string
	}{
		{event.AtEntry, 0, ""}, {event.CodeLoaded, 1, "/lib/a.so"}, {event.AtEntry, 0, ""}, {event.CodeLoaded, 2, "/lib/b.so"},
		{event.CodeLoaded, 0, ""}, {event.CodeLoaded, 2, ""}, {event.CodeLoaded, 3, ""}, {event.CodeLoaded, math.MaxUint64, ""},
	}
	for _, each := range want {
		require.True(t, w.write(record(each.phase, each.number)))
	}
	w.word(atWritten).Store(w.written)
	for _, each := range want {
		require.True(t, s.fromRing(&e, c))
		assert.Equal(t, each.phase, e.Phase)
		if each.phase != event.CodeLoaded {
			continue
		}
		require.NotNil(t, e.Start)
		path := ""
		if len(e.Start.All) > 0 {
			path = e.Start.All[0].Path
		}
		assert.Equal(t, each.path, path, "record %d", each.number)
	}
	for range 2 * maxUnordered {
		send("", 3)
		assert.False(t, s.fromSocket(&e, c))
	}
	assert.LessOrEqual(t, len(c.maps), maxUnordered)
}
