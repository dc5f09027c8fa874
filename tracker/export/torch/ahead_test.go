package torch

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	data, top, err := readPlain(strings.NewReader(text), 0, a)
	if err == nil {
		used = a.contents(data, top) != nil
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
