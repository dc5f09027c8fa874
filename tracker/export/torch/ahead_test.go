package torch

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
)

// inOrder reads a file without anything beside it.
func inOrder(t *testing.T, text string) string {
	s, err := readRaw(strings.NewReader(text), 0)
	if err != nil {
		return err.Error()
	}
	in := newSource(s)
	in.readOrigin()
	c, err := in.contents(nil)
	return textOf(t, c, err)
}

func textOf(t *testing.T, c *contents, err error) string {
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	require.NoError(t, c.Dump.WriteJSON(&b))
	fmt.Fprintf(&b, "%+v", c.Usage.Fill())
	return b.String()
}

// aheadOf reports whether the events of a file were used that are rebuilt while it is read, and what was read.
func aheadOf(t *testing.T, text string) (used bool, got string) {
	a := new(ahead)
	_, top, err := readPlain(strings.NewReader(text), 0, a)
	if err == nil {
		used = a.contents(top) != nil
	}
	c, err := read(strings.NewReader(text))
	return used, textOf(t, c, err)
}

// TestEventsBesideTheReader: a file is the same whether its events are rebuilt while it is read or after that. Where what
// comes later in the file matters to them, they are rebuilt again.
func TestEventsBesideTheReader(t *testing.T) {
	key := func(s string) string { return fmt.Sprintf("\x8c%c%s", len(s), s) }
	event := func(action string, addr, size int) string {
		return "}\x94(" + key("action") + key(action) + key("addr") + fmt.Sprintf("M%c%c", addr&255, addr>>8) + key("size") + fmt.Sprintf("K%c", size) + "u"
	}
	events := key("device_traces") + "](](" + event("alloc", 512, 9) + event("alloc", 1024, 9) + "e](" + event("alloc", 512, 7) + event("free_completed", 512, 7) + "ee"
	segments := key("segments") + "](}(" + key("device") + "K\x00" + key("address") + "M\x00\x02" + key("total_size") + "M\x00\x02" +
		key("blocks") + "](}(" + key("size") + "M\x00\x02" + key("state") + key("active_allocated") + "ueue"
	note := key("external_annotations") + "](}(" + key("stage") + key("START") + key("name") + key("step") + key("device") + "K\x00" + key("time_us") + "K\x05" + "ue"
	for name, test := range map[string]struct {
		text string
		used bool
	}{
		"segments first":           {"\x80\x04}(" + segments + events + "u.", true},
		"events first":             {"\x80\x04}(" + events + segments + "u.", true},
		"one device":               {"\x80\x04}(" + segments + key("device_traces") + "](](" + event("alloc", 512, 9) + event("free_completed", 512, 9) + "eeu.", true},
		"one device, appended":     {"\x80\x04}(" + segments + key("device_traces") + "]](" + event("alloc", 512, 9) + event("free_completed", 512, 9) + "eau.", true},
		"one event":                {"\x80\x04}(" + segments + key("device_traces") + "]]" + event("alloc", 512, 9) + "aau.", true},
		"annotations":              {"\x80\x04}(" + segments + events + note + "u.", false},
		"annotations first":        {"\x80\x04}(" + note + segments + events + "u.", false},
		"made by this module":      {"\x80\x04}(" + segments + events + key("allocator_settings") + "}(" + key("made_by") + key("gpumemtrack") + "uu.", false},
		"host memory":              {"\x80\x04}(" + segments + events + key("host_traces") + "](" + event("alloc", 512, 9) + "eu.", false},
		"traces given twice":       {"\x80\x04}(" + segments + events + key("device_traces") + "](](" + event("alloc", 512, 9) + "eeu.", false},
		"an event changed later":   {"\x80\x04}(" + segments + events + "h\x00(" + key("size") + "K\x01u0u.", false},
		"an event added later":     {"\x80\x04}(" + segments + key("device_traces") + "](]\x94(" + event("alloc", 512, 9) + "eeh\x00(" + event("alloc", 1024, 9) + "e0u.", false},
		"an event that is none":    {"\x80\x04}(" + segments + key("device_traces") + "](](" + event("alloc", 512, 9) + "Neeu.", false},
		"a trace of two devices":   {"\x80\x04}(" + segments + key("device_traces") + "](]\x94(" + event("alloc", 512, 9) + "eh\x00eu.", false},
		"a negative size":          {"\x80\x04}(" + segments + events + key("x") + "Nu.", true},
		"several batches":          {recordingOf(5000), true},
		"torn":                     {"\x80\x04}(" + segments + events, false},
		"the events are no list":   {"\x80\x04}(" + segments + key("device_traces") + "](](" + event("alloc", 512, 9) + "eN" + "eu.", false},
		"segments are given again": {"\x80\x04}(" + segments + events + segments + "u.", false},
	} {
		used, got := aheadOf(t, test.text)
		assert.Equal(t, test.used, used, name)
		assert.Equal(t, inOrder(t, test.text), got, name)
	}
}

// TestRecordingsBesideTheReader holds recordings read in the two ways against each other.
func TestRecordingsBesideTheReader(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(outside.Folder(t, "recordings"), "*.pickle.gz"))
	require.NoError(t, err)
	for _, path := range paths {
		f, err := os.Open(path)
		require.NoError(t, err)
		zip, err := gzip.NewReader(f)
		require.NoError(t, err)
		text, err := io.ReadAll(zip)
		require.NoError(t, err)
		f.Close()
		_, got := aheadOf(t, string(text))
		assert.True(t, inOrder(t, string(text)) == got, path)
	}
}

// TestNoGoroutineStays: however reading ends, the goroutine beside it does too.
func TestNoGoroutineStays(t *testing.T) {
	text := recordingOf(5000)
	cut := len(text) - 100
	for name, last := range map[string]io.Reader{
		"torn":    strings.NewReader(""),
		"failing": iotest.ErrReader(io.ErrNoProgress),
		"panic":   panicking{},
		"whole":   strings.NewReader(text[cut:]),
	} {
		synctest.Test(t, func(t *testing.T) { // it fails if a goroutine of the bubble waits at the end
			defer func() { assert.Equal(t, name == "panic", recover() != nil, name) }()
			_, err := read(io.MultiReader(strings.NewReader(text[:cut]), last))
			assert.Equal(t, name == "whole", err == nil, name)
			assert.Equal(t, name == "failing", errors.Is(err, io.ErrNoProgress), name)
		})
	}
}

type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("a device went away") }

// recordingOf returns a pickle of a device with that many events, each of a stack of its own.
func recordingOf(events int) string {
	var b strings.Builder
	key := func(s string) { fmt.Fprintf(&b, "\x8c%c%s", len(s), s) }
	number := func(n int) {
		b.WriteByte('J')
		b.Write(binary.LittleEndian.AppendUint32(nil, uint32(n)))
	}
	b.WriteString("\x80\x04}(")
	key("segments")
	b.WriteString("]")
	key("device_traces")
	b.WriteString("](](")
	for i := range events {
		b.WriteString("}(")
		for _, text := range []string{"action", "alloc", "addr"} {
			key(text)
		}
		number(512 * i)
		key("size")
		number(512)
		key("frames")
		b.WriteString("](}(")
		for _, text := range []string{"name", "step", "filename", "train.py", "line"} {
			key(text)
		}
		number(i)
		b.WriteString("ueu")
		if i%2000 == 1999 { // a batch is more than is sent at once, and another follows
			b.WriteString("e(")
		}
	}
	b.WriteString("eeu.")
	return b.String()
}

// TestAPanicBesideTheReader: it becomes an error, and the reader gets its slices back.
func TestAPanicBesideTheReader(t *testing.T) {
	c := &beside{full: make(chan []rawEvent, 2), used: make(chan []rawEvent, 2)}
	for range 2 {
		c.full <- make([]rawEvent, 1)
	}
	close(c.full)
	require.ErrorContains(t, c.rebuild(nil), "panic: ")
	assert.Len(t, c.used, 2)
}

// TestMemoryOfEventsThatAreNotUsed: a file whose events are rebuilt twice is read within the limit that it takes in order.
func TestMemoryOfEventsThatAreNotUsed(t *testing.T) {
	text := strings.TrimSuffix(recordingOf(5000), "u.") + "\x8c\x14external_annotations](}(\x8c\x06deviceK\x00\x8c\x07time_usK\x05ueu."
	within := func(limit int, ahead bool) error {
		r, err := bounded.NewReaderWithin(strings.NewReader(text), bounded.Limits{Memory: int64(limit)})
		require.NoError(t, err)
		if ahead {
			_, err = readDeferred(r)
			return err
		}
		s, err := readRaw(r, 0)
		if err != nil {
			return err
		}
		in := newSource(s)
		in.readOrigin()
		_, err = in.contents(nil)
		return err
	}
	used, _ := aheadOf(t, text)
	require.False(t, used)
	least := sort.Search(64<<20, func(limit int) bool { return limit > 0 && within(limit, false) == nil })
	require.Less(t, least, 64<<20)
	assert.NoError(t, within(least, true))
}
