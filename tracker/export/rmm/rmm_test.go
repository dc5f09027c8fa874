package rmm_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/rmm"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

const header = "Thread,Time,Action,Pointer,Size,Stream\n"

func read(t *testing.T, text string) *snapshot.Dump {
	t.Helper()
	d, usage, err := rmm.Read(strings.NewReader(text))
	require.NoError(t, err)
	sum := mem.Tally{}
	for _, row := range usage.Rows {
		sum = sum.Add(row.Live)
	}
	live := d.Snapshot.Live
	for _, other := range d.Others {
		live = live.Add(other.Snapshot.Live)
	}
	assert.Equal(t, live, sum)
	return d
}

// TestFile: threads, streams and a failure.
func TestFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "rmm.csv"))
	require.NoError(t, err)
	d := read(t, string(text))
	s := d.Snapshot
	assert.Equal(t, mem.Tally{Count: 1, Bytes: 64 * alloc.MiB}, s.Live)
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 65 * alloc.MiB}, s.Peak)
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 65 * alloc.MiB}, s.Total)
	assert.Equal(t, "1970-01-01 10:11:02.102201 +0000 UTC", s.Time.String())
	require.NotNil(t, d.OOM)
	assert.Equal(t, 32*alloc.GiB, d.OOM.Requested)
	assert.Equal(t, "thread 12101", d.OOM.CallSites[0].Frame.String())
	var said []string
	for e := range d.Events() {
		said = append(said, e.String())
	}
	assert.Equal(t, []string{
		"alloc 1.0 MiB at 0x7f3c20000000, thread 12101", "alloc 64.0 MiB at 0x7f3c20100000, thread 12101", "free 1.0 MiB at 0x7f3c20000000, thread 12101", "oom 32.0 GiB, thread 12101",
	}, said)

	var b bytes.Buffer // it is a dump as any other
	require.NoError(t, d.WriteJSON(&b))
	again, err := snapshot.ReadDump(&b)
	require.NoError(t, err)
	assert.Equal(t, s.Live, again.Snapshot.Live)
	at, err := rewind.At(d, 2)
	require.NoError(t, err)
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 65 * alloc.MiB}, at.Live)
	_, err = replay.Run(d, replay.Config{})
	require.NoError(t, err)
	x, err := replay.Explain(d, "oom")
	require.NoError(t, err)
	assert.NotContains(t, x.String(), "expandable_segments", "settings of PyTorch's allocator")
	assert.Contains(t, x.String(), "what would have helped is unknown: a log of RMM does not have")
}

// TestForms reads the forms of different releases, and logs that are not whole.
func TestForms(t *testing.T) {
	for name, test := range map[string]struct {
		text        string
		live, total mem.Tally
		failed      bool
	}{
		"no header, among others": {"INFO a, b\n1979932,14:21:19.998533,allocate,0x30a000000,256,0x2\nINFO x\n1980043,14:21:32.661875,free,0x30a000000,256,0x2\n", mem.Tally{}, mem.Tally{Count: 1, Bytes: 256}, false},
		"streams without 0x":      {header + "2342727,15:47:02.841961,allocate,0x10012400000,1048576,0\n", mem.Tally{Count: 1, Bytes: alloc.MiB}, mem.Tally{Count: 1, Bytes: alloc.MiB}, false},
		"epoch, deallocate":       {header + "1,1634567890.123456,allocate,0x1000,1024,0x7f8a38001020\n1,1634567890.2,allocate,0x2000,2048,0x7f8a38001020\n1,1634567890.3,deallocate,0x1000,1024,0x7f8a38001020\n", mem.Tally{Count: 1, Bytes: 2048}, mem.Tally{Count: 2, Bytes: 3072}, false},
		"a failure, and on":       {header + "1,10:00:00.1,allocate failure,0x0,1024,0x0\n1,10:00:00.2,allocate,0x1000,512,0x0\n", mem.Tally{Count: 1, Bytes: 512}, mem.Tally{Count: 1, Bytes: 512}, false},
		"a failure of 2022":       {header + "1,10:00:00.2,allocate,0x1000,512,0x0\n1,10:00:00.1,allocate failure,,1024,0x0\n", mem.Tally{Count: 1, Bytes: 512}, mem.Tally{Count: 1, Bytes: 512}, true},
		"from before the log":     {header + "1,10:00:00.2,free,0x1000,512,0x0\n1,10:00:00.3,allocate,0x2000,16,0x0\n", mem.Tally{Count: 1, Bytes: 16}, mem.Tally{Count: 2, Bytes: 528}, false},
		"a free that is lost":     {header + "1,10:00:00.2,allocate,0x1000,512,0x0\n1,10:00:00.3,allocate,0x1000,16,0x0\n", mem.Tally{Count: 1, Bytes: 16}, mem.Tally{Count: 2, Bytes: 528}, false},
		"a torn last line":        {header + "1,10:00:00.2,allocate,0x1000,512,0x0\n1,10:00:00.3,allocate,0x2000,16", mem.Tally{Count: 1, Bytes: 512}, mem.Tally{Count: 1, Bytes: 512}, false},
		"0.14": {"Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location\n" +
			"Alloc,0,0x7fae06600000,0,80,0,0,1,1.10549,1.1074,0.00191666,/a/driver.py:683\nFree,0,0x7fae06600000,0,0,0,0,0,1.10798,1.10921,0.00122238,/a/utils.py:678\nAlloc,0,0x7fae06600000,0,90,0,0,1,2.1,2.2,0.1,/a/driver.py:683\n",
			mem.Tally{Count: 1, Bytes: 90}, mem.Tally{Count: 2, Bytes: 170}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := read(t, test.text)
			assert.Equal(t, test.live, d.Snapshot.Live)
			assert.Equal(t, test.total, d.Snapshot.Total)
			assert.Equal(t, test.failed, d.OOM != nil)
		})
	}
	_, _, err := rmm.Read(strings.NewReader("hello\n1,2,3,4,5,6\n"))
	require.ErrorIs(t, err, rmm.ErrNoEvent)
}

// TestMidnight: times of day go on.
func TestMidnight(t *testing.T) {
	d := read(t, header+"1,23:59:59.0,allocate,0x1000,1,0x0\n1,00:00:01.0,allocate,0x2000,1,0x0\n")
	var times []time.Time
	for e := range d.Events() {
		times = append(times, e.Time)
	}
	assert.Equal(t, 2*time.Second, times[1].Sub(times[0]))
}

// TestDevicesAndLines: the format up to 0.14 has devices and lines of code.
func TestDevicesAndLines(t *testing.T) {
	d := read(t, "Alloc,0,0x1000,0,80,0,0,1,1.1,1.2,0.1,/a/b.py:1\nAlloc,3,0x1000,0,90,0,0,1,1.1,1.2,0.1,/a/c.py:2\n")
	assert.Equal(t, 3, d.Snapshot.Ordinal, "the device with the most memory")
	require.Len(t, d.Others, 1)
	for site := range d.Snapshot.CallSites() {
		assert.Equal(t, "c.py:2", site.CallSite.String())
	}
}

// TestRandomLogs holds the levels of random logs to a plain account.
func TestRandomLogs(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var b strings.Builder
		b.WriteString(header)
		live, level, peak := make(map[int]int), 0, 0
		for i := range 200 {
			at := fmt.Sprintf("10:00:%02d.%06d", i/10, i)
			if ptr := random.IntN(20) + 1; live[ptr] == 0 {
				size := random.IntN(1<<20) + 1
				fmt.Fprintf(&b, "%d,%s,allocate,%#x,%d,%#x\n", random.IntN(3), at, ptr<<20, size, random.IntN(3))
				live[ptr] = size
				level += size
				peak = max(peak, level)
			} else {
				fmt.Fprintf(&b, "1,%s,free,%#x,%d,0x0\n", at, ptr<<20, live[ptr])
				level -= live[ptr]
				live[ptr] = 0
			}
		}
		s := read(t, b.String()).Snapshot
		assert.EqualValues(t, level, s.Live.Bytes)
		assert.EqualValues(t, peak, s.Peak.Bytes)
	}
}

// FuzzRead: what is read is a dump that can be written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(header + "12101,10:11:02.100001,allocate,0x7f3c20000000,1048576,0x0\n12101,10:11:02.101201,free,0x7f3c20000000,1048576,0x0\n12101,10:11:02.102201,allocate failure,0x0,34359738368,0x0\n"))
	f.Add([]byte("Alloc,0,0x7fae06600000,0,80,0,0,1,1.10549,1.1074,0.00191666,/a/driver.py:683\nFree,0,0x7fae06600000,0,0,0,0,0,1.10798,1.10921,0.00122238,/a/utils.py:678\n"))
	f.Add([]byte("1,1634567890.123456,allocate,0x1000,1024,0x7f8a38001020\n1,00:00:00,allocate,0xffffffffffffffff," + strings.Repeat("9", 400) + ",0x0\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, _, err := rmm.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		require.NoError(t, d.WriteJSON(&b))
		_, err = snapshot.ReadDump(&b)
		require.NoError(t, err)
		if s := d.Snapshot; s.Peak.Bytes < s.Live.Bytes || s.Live.Bytes < 0 {
			t.Errorf("live %v, peak %v", s.Live, s.Peak)
		}
	})
}
