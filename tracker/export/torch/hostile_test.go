package torch

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// allocates returns the bytes that f allocates, given back or not: more than it
// holds at any time.
func allocates(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// repeated is a gzip of a text that goes on for some MiB.
func repeated(t *testing.T, begin, pattern string, mib int) []byte {
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	require.NoError(t, err)
	_, err = io.WriteString(zip, begin)
	require.NoError(t, err)
	part := strings.Repeat(pattern, 1<<20/len(pattern))
	for range mib {
		_, err = io.WriteString(zip, part)
		require.NoError(t, err)
	}
	require.NoError(t, errors.Join(zip.Close()))
	return b.Bytes()
}

const mib = 1 << 20

// TestHostileFilesCostLittle: files of some kilobytes that unpack to 64 MiB, or that
// name a part of theirs again and again.
func TestHostileFilesCostLittle(t *testing.T) {
	key := func(s string) string { return fmt.Sprintf("\x8c%c%s", len(s), s) }
	segment := "}\x94(" + key("device") + "K\x00" + key("address") + "K\x00" + key("blocks") + "]("
	block := "}(" + key("size") + "K\x01" + key("state") + key("active_allocated")
	for name, test := range map[string]struct {
		file  []byte
		want  string
		bytes uint64
	}{
		"lists":              {repeated(t, "\x80\x04", "]", 64), "the first", 16 * mib},
		"lists in lists":     {repeated(t, "\x80\x04", "](", 64), "lie within each other", 16 * mib},
		"marks":              {repeated(t, "\x80\x04", "(", 64), "lie within each other", 16 * mib},
		"dicts":              {repeated(t, "\x80\x04](", "}", 64), "the first", 16 * mib},
		"values":             {repeated(t, "\x80\x04(", "N", 64), "values wait for a list or dict", 128 * mib},
		"a long list":        {repeated(t, "\x80\x04]", "("+strings.Repeat("N", 1022)+"e", 64), "takes more than", 512 * mib},
		"memos":              {repeated(t, "\x80\x04N", "\x94", 64), "takes more than", 512 * mib},
		"far memos":          {[]byte("\x80\x04Nr\xff\xff\xff\xff" + strings.Repeat("p99999999999999\n", 1000) + "."), "the file holds", 16 * mib},
		"a long string":      {[]byte("\x80\x04X\x00\x00\x00\x01aaa"), "the file is torn", 1 * mib},
		"keys":               {repeated(t, "\x80\x04", "}(\x8c\x01aNu", 64), "", 0},
		"segments, repeated": {[]byte("\x80\x04](" + segment + strings.Repeat(block+"u", 2000) + "eu" + strings.Repeat("h\x00", 20_000) + "e."), "takes more than", 64 * mib},
		"JSON lists":         {repeated(t, `{"segments":`, "[", 64), "read PyTorch snapshot: at byte 10", 64 * mib},
		"JSON values":        {repeated(t, `{"segments":[0`, ",0", 64), "takes more than", 1024 * mib}, // most of it given back at once,
	} {
		t.Run(name, func(t *testing.T) {
			if test.bytes == 0 {
				test.bytes = 512 * mib
			}
			got := allocates(func() {
				_, _, err := Read(bytes.NewReader(test.file))
				require.Error(t, err)
				assert.ErrorContains(t, err, test.want)
			})
			assert.Less(t, got, test.bytes)
		})
	}
}

// TestSizesThatDoNotAddUp: sums of sizes fit an int64, or the file is refused. An error may have asked for anything.
func TestSizesThatDoNotAddUp(t *testing.T) {
	block := `{"device":0,"address":%d,"total_size":4611686018427387904,"blocks":[{"size":4611686018427387904,"requested_size":1,"state":"inactive"}]}`
	for text, want := range map[string]string{
		`{"segments":[` + fmt.Sprintf(block, 512) + "," + fmt.Sprintf(block, int64(1<<62+512)) + `]}`:          "segment 1, block 0: size is 4611686018427387904: with it, the sizes come to more than any device has",
		`{"segments":[],"device_traces":[[{"action":"segment_alloc","addr":512,"size":9223372036854775807}]]}`: "event segment_alloc: size is 9223372036854775807",
		`{"segments":[],"device_traces":[[{"action":"oom","device_free":0,"size":9223372036854775807}]]}`:      "",
	} {
		_, err := read(strings.NewReader(text))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.Error(t, err, text)
		assert.ErrorContains(t, err, want)
	}
}

// TestErrorsAreShort, however long a number of the file is.
func TestErrorsAreShort(t *testing.T) {
	nines := strings.Repeat("9", 100_000)
	for _, text := range []string{"(dS'segments'\nI" + nines + "\ns.", "(dS'segments'\nF" + nines + "e\ns.", "(dS'segments'\ng" + nines + "\ns.", `{"segments":` + nines + "e999999999}"} {
		_, err := read(strings.NewReader(text))
		require.Error(t, err)
		assert.Less(t, len(err.Error()), 200)
	}
}

// TestManyBlocks holds what a block takes on its way from the file into a dump: 262 bytes when this was
// written, of which the dump keeps 88.
func TestManyBlocks(t *testing.T) {
	const blocks, most = 100_000, 300 // bytes of each
	key := func(s string) string { return fmt.Sprintf("\x8c%c%s", len(s), s) }
	var b bytes.Buffer
	b.WriteString("\x80\x04}(" + key("segments") + "](}(" + key("device") + "K\x00" + key("address") + "K\x00" + key("blocks") + "](")
	for range blocks {
		b.WriteString("}\x94(" + key("size") + "M\x00\x02" + key("requested_size") + "M\x00\x01" + key("state") + key("active_allocated") + key("frames") + "Nu")
	}
	b.WriteString("eueu.")
	got := allocates(func() {
		c, err := read(&b)
		require.NoError(t, err)
		assert.Equal(t, mem.Tally{Count: blocks, Bytes: blocks * 256}, c.Dump.Snapshot.Live)
	})
	assert.Less(t, got, uint64(blocks*most))
}

// TestAStackIsReadOnce: many blocks of many kinds share a stack of many frames.
func TestAStackIsReadOnce(t *testing.T) {
	const frames, blocks = 60_000, 30_000
	key := func(s string) string { return fmt.Sprintf("\x8c%c%s", len(s), s) }
	var b bytes.Buffer
	b.WriteString("\x80\x04}(" + key("segments") + "](}(" + key("device") + "K\x00" + key("address") + "K\x00" + key("blocks") + "](")
	for i := range blocks {
		b.WriteString("}(" + key("size") + "K\x01" + key("state") + key("active_allocated") + key("gpumemtrack") + "}(" + key("kind") + key(fmt.Sprint(i)) + "u" + key("frames"))
		if i == 0 {
			b.WriteString("](}\x94(" + key("name") + key("main.main") + "u" + strings.Repeat("h\x00", frames-1) + "e\x94")
		} else {
			b.WriteString("h\x01")
		}
		b.WriteString("u")
	}
	b.WriteString("eueu.")
	size := b.Len()
	got := allocates(func() {
		c, err := read(&b)
		require.NoError(t, err)
		u := c.Usage
		require.Len(t, u.Rows, blocks)
		assert.Equal(t, mem.Frame{Function: "main.main"}, u.Rows[0].CallSite)
		assert.True(t, len(u.Rows[0].Stack) == maxFrames, "the innermost frames")
		assert.True(t, &u.Rows[0].Stack[0] == &u.Rows[blocks-1].Stack[0])
	})
	assert.Less(t, got, uint64(size)*bounded.PerByte+64*mib)
}
