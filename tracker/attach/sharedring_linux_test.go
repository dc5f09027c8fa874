//go:build amd64 || arm64

package attach

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/preload"
)

// TestInvalidRingContents: a process that knows the token writes nonsense. Its events count until then, and those of others
// all the time. The output says that something is missing.
func TestInvalidRingContents(t *testing.T) {
	const written, bytes, size = 64, 4096, 4096 + preload.RingBytes
	for name, lie := range map[string]func(memory []byte){
		"how much there is": func(memory []byte) { binary.NativeEndian.PutUint64(memory[written:], 1<<40) },
		"how long it is": func(memory []byte) {
			copy(memory[bytes+8+event.OffFrames:], strings.Repeat("\xff", 8))
			memory[written+1]++
		},
		"what it is": func(memory []byte) { memory[bytes+8+event.OffFrames] = 8; memory[written] += 16 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newPreload(t)
			c := start(t, w, buildC(t, "-DLINKED"), "leak", "2", "pause", "leak", "3")
			checked(t, w, c)
			s := w.events.(*preload.Source)
			file, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			require.NoError(t, err)
			defer unix.Close(file)
			require.NoError(t, unix.Ftruncate(file, size))
			_, err = unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			require.NoError(t, err)
			memory, err := unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(t, err)
			defer unix.Munmap(memory)
			fd := forge(t, os.Geteuid(), "@"+s.Name, s.Token, file)
			defer unix.Close(fd)
			binary.NativeEndian.PutUint64(memory[bytes:], event.OffFrames)
			copy(memory[bytes+8:], forged())
			binary.NativeEndian.PutUint64(memory[written:], 8+event.OffFrames)
			_, err = unix.Write(fd, []byte{0})
			require.NoError(t, err)
			own := func() map[alloc.Ptr]alloc.Bytes { w.Sync(); return ledgers(w, os.Getpid()) }
			require.Eventually(t, func() bool { return len(own()) == 1 }, time.Minute, time.Millisecond)
			require.Empty(t, w.Warnings())

			lie(memory)
			_, _ = unix.Write(fd, []byte{0}) // which wakes the watcher, if it has not read it and hung up
			require.Eventually(t, func() bool { w.Sync(); return w.lostEvents() == 1 }, time.Minute, time.Millisecond)
			n, err := unix.Read(fd, make([]byte, 1))
			assert.True(t, n == 0 || err == unix.ECONNRESET, "the watcher has hung up: %d %v", n, err)
			assert.Len(t, own(), 1)
			fmt.Fprintln(c.in)
			want := c.live(t)
			w.Sync()
			assert.Equal(t, want, ledgers(w, c.Process.Pid))
			assert.Contains(t, w.Warnings()[0], "events were lost")
		})
	}
}

// TestARingThatCouldShrink is refused: reading it could end the watcher.
func TestARingThatCouldShrink(t *testing.T) {
	w := newPreload(t)
	file, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(file)
	require.NoError(t, unix.Ftruncate(file, 4096+preload.RingBytes))
	s := w.events.(*preload.Source)
	unix.Close(forge(t, os.Geteuid(), "@"+s.Name, s.Token, file))
	require.Eventually(t, func() bool { w.Sync(); return w.lostEvents() == 1 }, time.Minute, time.Millisecond)
	assert.Empty(t, w.Sources())
}

// TestPreloadOfManyThreads: many times around the ring, which is full again and again.
func TestPreloadOfManyThreads(t *testing.T) {
	w := newPreload(t)
	c := start(t, w, buildC(t, "-DLINKED"), "many", "500")
	s := checked(t, w, c)
	assert.EqualValues(t, 200*501, s.Snapshot().Total.Count)
	assert.EqualValues(t, 200, s.Snapshot().Live.Count)
}

// TestAPauseInAProgram: the watcher sleeps meanwhile. It hears the next call without being asked.
func TestAPauseInAProgram(t *testing.T) {
	const pauses = 20
	w := newPreload(t)
	c := start(t, w, buildC(t, "-DLINKED"), strings.Fields("leak 1"+strings.Repeat(" pause leak 1", pauses))...)
	for n := range pauses + 1 {
		require.Eventually(t, func() bool { return len(ledgers(w, c.Process.Pid)) == n+1 }, time.Minute, time.Millisecond)
		time.Sleep(time.Duration(n) * preload.PollMS * time.Millisecond / 8) // the ring sleeps after one or two naps
		fmt.Fprintln(c.in)
	}
}

// TestProcessesThatAreKilledWhileTheyWrite: whatever of their threads was in the middle of it.
func TestProcessesThatAreKilledWhileTheyWrite(t *testing.T) {
	w := newPreload(t)
	for i := range 10 {
		c := start(t, w, buildC(t, "-DLINKED"), "many", "1000000")
		its := func() (s *Source) {
			w.Sync()
			for _, s := range w.Sources() {
				if s.Origin().PID == c.Process.Pid {
					return s
				}
			}
			return nil
		}
		require.Eventually(t, func() bool { s := its(); return s != nil && s.Snapshot().Total.Count > int64(1000*i) }, time.Minute, time.Millisecond)
		require.NoError(t, c.Process.Kill())
		c.Wait()
		require.Eventually(t, its().hasEnded, time.Minute, time.Millisecond)
		assert.LessOrEqual(t, len(its().addresses()), 200, "each thread has one at a time")
	}
	assert.Empty(t, w.Warnings())
}

// withoutRings has the programs that the test starts send their events: they cannot have a ring.
func withoutRings(t *testing.T, flags ...string) {
	t.Setenv("LD_PRELOAD", build(t, "noring.so", func(out, _ string) *exec.Cmd {
		return exec.Command(compiler(), append(flags, "-shared", "-fPIC", "-o", out, "testdata/noring.c")...)
	}))
}

// TestPreloadOfAProgramThatClosesAllFiles: what it opens then is its own. Its ring is in memory, and stays.
func TestPreloadOfAProgramThatClosesAllFiles(t *testing.T) {
	w := newPreload(t)
	c := start(t, w, buildC(t, "-DLINKED"), "leak", "1", "closeall", "leak", "2", "pause", "leak", "4000")
	checked(t, w, c)
	fmt.Fprintln(c.in)
	s := checked(t, w, c)
	assert.Equal(t, 7, c.end(t))
	require.Eventually(t, s.hasEnded, time.Minute, time.Millisecond)

	withoutRings(t)
	c = start(t, w, buildC(t, "-DLINKED"), "leak", "1", "closeall", "leak", "2")
	assert.Len(t, c.live(t), 3)
	assert.Equal(t, 7, c.end(t))
	require.Eventually(t, func() bool { w.Sync(); return w.lostEvents() > 0 }, time.Minute, time.Millisecond)
}

// TestPreloadOfUnreportedExec: the program has closed its connection, and the next one does not load the library. What the first had
// has ended; what it wrote last is read.
func TestPreloadOfUnreportedExec(t *testing.T) {
	w := newPreload(t)
	c := start(t, w, buildC(t, "-DLINKED"), "leak", "1", "closeall", "leak", "2", "pause", "leak", "100", "exec", "sleep", "100")
	checked(t, w, c)
	fmt.Fprintln(c.in)
	s := checked(t, w, c)
	assert.Len(t, s.addresses(), 103)
	require.NoError(t, c.in.Close()) // exec
	require.Eventually(t, func() bool { w.Sync(); return len(s.addresses()) == 0 }, time.Minute, time.Millisecond)
	assert.NotEqual(t, "client", s.Origin().Program)
	assert.EqualValues(t, 103, s.Snapshot().Total.Count)
	assert.Empty(t, w.Warnings())
	assert.False(t, s.hasEnded())
	require.NoError(t, c.Process.Kill())
	c.Wait()
	require.Eventually(t, s.hasEnded, time.Minute, time.Millisecond)
}

// TestPreloadWithoutAReader: a watcher that does not read costs the program two seconds once, and
// what is lost is said.
func TestPreloadWithoutAReader(t *testing.T) {
	w := newPreloadWaiting(t, 2000)
	w.mu.Lock()
	c := start(t, w, buildC(t, "-DLINKED"), "churn", "5000", "leak", "3")
	assert.Len(t, c.live(t), 3)
	w.mu.Unlock()
	c.end(t)
	w.Sync()
	assert.Positive(t, w.lostEvents())
	assert.Contains(t, w.Warnings()[0], "events were lost")
}
