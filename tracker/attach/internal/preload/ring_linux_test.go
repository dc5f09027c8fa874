//go:build amd64 || arm64

package preload

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// file makes the file of a writer.
func ringFile(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, size))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	return fd
}

// writer is the other end, with a mapping of its own.
type writer struct {
	memory  []byte
	written uint64
}

func opened(t testing.TB) (*ring, *writer) {
	t.Helper()
	fd := ringFile(t, head+RingBytes, sealed)
	memory, err := unix.Mmap(fd, 0, head+RingBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(memory) })
	r, err := openRing(fd)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r, &writer{memory: memory}
}

func (w *writer) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&w.memory[at])) }

// write adds a record if it fits.
func (w *writer) write(record []byte) bool {
	text := append(binary.NativeEndian.AppendUint64(nil, uint64(len(record))), record...)
	if w.written-w.word(atRead).Load()+uint64(len(text)) > RingBytes {
		return false
	}
	for i, b := range text {
		w.memory[head+(w.written+uint64(i))%RingBytes] = b
	}
	w.written += uint64(len(text))
	w.word(atWritten).Store(w.written)
	return true
}

// record returns a record with its number in each byte.
func record(n int) []byte {
	all := make([]byte, 8+8*(n%40))
	for i := range all {
		all[i] = byte(n)
	}
	return all
}

// TestRecordsComeInOrder: while one side writes, many times around the ring, and until it is full.
func TestRecordsComeInOrder(t *testing.T) {
	r, w := opened(t)
	const records = 100_000
	go func() {
		for n := 0; n < records; {
			if w.write(record(n)) {
				n++
			}
		}
	}()
	room := make([]byte, 400)
	for n := 0; n < records; {
		got, err := r.Next(room)
		require.NoError(t, err)
		if got != nil {
			require.Equal(t, record(n), got)
			n++
		}
	}
	assert.Greater(t, w.written, uint64(10*RingBytes))
	got, err := r.Next(room)
	assert.Empty(t, got)
	assert.NoError(t, err)
}

// TestWriterKnowsWhenToWake: at half of the ring if the reader looks again by itself, else at the next record.
func TestWriterKnowsWhenToWake(t *testing.T) {
	r, w := opened(t)
	room := make([]byte, 400)
	require.True(t, w.write(record(1)))
	assert.False(t, r.Empty())
	for range 2 {
		_, err := r.Next(room)
		require.NoError(t, err)
	}
	assert.Equal(t, w.written+RingBytes/2, w.word(atWakeAt).Load())
	assert.True(t, r.RequestWake())
	assert.Equal(t, w.written+1, w.word(atWakeAt).Load())
	require.True(t, w.write(record(2)))
	assert.False(t, r.RequestWake())
	w.word(atLost).Store(7)
	w.word(atSince).Store(9)
	count, since := r.Lost()
	assert.EqualValues(t, 7, count)
	assert.EqualValues(t, 9, since)
}

// TestInvalidContents: about how much it has written, or how long a record is.
func TestInvalidContents(t *testing.T) {
	for _, written := range []uint64{1, 7, RingBytes + 1, RingBytes + 8, 1 << 32, 1 << 63, ^uint64(0), ^uint64(7)} {
		r, w := opened(t)
		w.word(atWritten).Store(written)
		_, err := r.Next(make([]byte, 400))
		assert.ErrorIs(t, err, errBroken, "%#x", written)
	}
	for _, length := range []uint64{1, 12, 104, 408, RingBytes, 1 << 32, ^uint64(0), ^uint64(7)} {
		r, w := opened(t)
		require.True(t, w.write(make([]byte, 88)))
		w.word(head).Store(length)
		_, err := r.Next(make([]byte, 400))
		assert.ErrorIs(t, err, errBroken, "%#x", length)
	}
}

// TestARingOfAnything ends, whatever there is in it.
func TestARingOfAnything(t *testing.T) {
	r, w := opened(t)
	random, room := rand.New(rand.NewPCG(1, 2)), make([]byte, 400)
	for i := head; i < len(w.memory); i += 8 {
		w.word(i).Store(random.Uint64N(60) * 8)
	}
	for range 10_000 {
		w.word(atWritten).Store(w.word(atWritten).Load() + random.Uint64N(4096))
		for {
			got, err := r.Next(room)
			if err != nil {
				r.read = r.written
			}
			if got == nil {
				break
			}
		}
	}
}

// TestWhatIsNoRing is refused: above all what could become smaller.
func TestWhatIsNoRing(t *testing.T) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	files := map[string]int{
		"not sealed":   ringFile(t, head+RingBytes, unix.F_SEAL_GROW),
		"too small":    ringFile(t, head+RingBytes-1, sealed),
		"empty":        ringFile(t, 0, sealed),
		"too large":    ringFile(t, 1<<30, sealed),
		"not writable": ringFile(t, head+RingBytes, unix.F_SEAL_SHRINK|unix.F_SEAL_FUTURE_WRITE),
		"no memory":    null,
		"closed":       -1,
	}
	if fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB); err == nil {
		defer unix.Close(fd)
		files["huge pages"] = fd
	}
	for name, fd := range files {
		_, err := openRing(fd)
		assert.Error(t, err, name)
	}
	fd := ringFile(t, head, sealed)
	r, err := openRing(fd)
	require.NoError(t, err)
	defer r.Close()
	got, err := r.Next(nil)
	assert.Nil(t, got)
	assert.NoError(t, err)
	assert.True(t, r.RequestWake())
}

// TestNoRing has nothing.
func TestNoRing(t *testing.T) {
	var r *ring
	got, err := r.Next(nil)
	assert.Nil(t, got)
	assert.NoError(t, err)
	assert.True(t, r.Empty())
	assert.True(t, r.RequestWake())
	count, _ := r.Lost()
	assert.Zero(t, count)
	r.Close()
}
