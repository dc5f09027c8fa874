package html_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

func write(t *testing.T, r *snapshot.Dump) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, html.Write(&b, r))
	return b.String()
}

func dump(t *testing.T) *snapshot.Dump {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	return tr.Dump()
}

// contains is assert.Contains that does not print the page.
func contains(t *testing.T, page string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		assert.True(t, strings.Contains(page, want), want)
	}
}

func TestPageHoldsTheNumbers(t *testing.T) {
	r := dump(t)
	r.Snapshot.Origin = snapshot.Origin{Program: "train", PID: 7, Rank: new(3), WorldSize: 8, Host: "node-1"}
	page := write(t, r)
	contains(t, page, "Simulated GPU [0]", "train[7], rank 3 of 8 on node-1", `id="live">`+r.Snapshot.Live.Bytes.String(), "<main>",
		"Permission is hereby granted", // the chart's licence
		"20.5 MiB inactive, at most 18.5 MiB in a piece")
	for _, link := range regexp.MustCompile(`(?:src|href)="([^"]*)`).FindAllStringSubmatch(page, -1) {
		assert.Regexp(t, "^data:", link[1], "it must need no network")
	}
	c := contentOf(t, page)
	assert.Len(t, c.Marks, 4)
	assert.Equal(t, "(64, 3, 3, 3)", c.Marks[1].Rows[0].Shape)
	assert.Equal(t, int64(2), c.Marks[1].Rows[0].Count)
	now := c.at(c.Moment)
	assert.Len(t, now.groups, 3)
	assert.Equal(t, r.Snapshot.Live, now.of())
	assert.Equal(t, [2]int64{int64(r.Snapshot.Total.Bytes), r.Snapshot.Total.Count}, c.Flame.Ever)
	assert.Equal(t, r.Snapshot.Peak, c.at(c.named(t, "the peak")).of())
	assert.Equal(t, r.Snapshot.Peak.Bytes, c.Timeline.Peak.Bytes)
}

func TestPageLeavesOutWhatIsUnknown(t *testing.T) {
	r := dump(t)
	contains(t, write(t, r), `id="untracked"`)
	r.Snapshot.DriverUsed = 0 // less than the cache holds
	page := write(t, r)
	contains(t, page, `id="driver">0 B`)
	assert.False(t, strings.Contains(page, `id="untracked"`))
}

// TestPageEscapesWhatItShows, which may come from anywhere.
func TestPageEscapesWhatItShows(t *testing.T) {
	const evil = "</script><script>alert(1)</script>\x1b]0;\xff\u202e"
	device, err := sim.New(sim.Config{Name: evil})
	require.NoError(t, err)
	tr := exporttest.New(t, tracker.Config{Device: device, Origin: snapshot.Origin{Host: evil}})
	tr.Do(evil, func() {
		_, err := tr.AllocBytes(1, "a<b>")
		require.NoError(t, err)
	})
	tr.Track()
	r := tr.Dump()
	r.Reason = evil
	page := write(t, r)
	for _, not := range []string{"<script>alert", "\x1b", "\xff", "\u202e"} {
		assert.False(t, strings.Contains(page, not), "%q", not)
	}
	assert.True(t, utf8.ValidString(page))
	contains(t, page, "&lt;/script&gt;")
}

func TestPageOfNothing(t *testing.T) {
	c := contentOf(t, write(t, exporttest.New(t, tracker.Config{}).Dump()))
	assert.Empty(t, c.at(c.Moment).groups)
	assert.Nil(t, c.Timeline)
	contains(t, write(t, exporttest.New(t, tracker.Config{}).Dump()), "the program did not call Track", "there is nothing to draw over time")
}

// TestPageOfAnOutOfMemoryDump says first that it is one, what was asked for, what there
// was, who holds it, and what to do.
func TestPageOfAnOutOfMemoryDump(t *testing.T) {
	dir := t.TempDir()
	tr := exporttest.New(t, tracker.Config{OOMDir: dir})
	exporttest.Train(t, tr)
	dumps, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Len(t, dumps, 1)
	f, err := os.Open(dumps[0])
	require.NoError(t, err)
	defer f.Close()
	r, err := snapshot.ReadDump(f)
	require.NoError(t, err)
	page := write(t, r)
	contains(t, page, "<title>Out of memory", "<h2>Out of memory</h2>", "64.0 GiB were asked for, for a buffer, Temporary (64, 1073741824) uint8, on Simulated GPU [0].",
		"What would help:", "no device of 4.0 GiB can hold it", "free, as the driver says", "What took it:", "exporttest.loadBatch")
	assert.Less(t, strings.Index(page, "Out of memory</h2>"), strings.Index(page, `class="tiles"`))

	r.OOM, r.Reason = nil, "SIGUSR1"
	contains(t, write(t, r), "Written because:", "SIGUSR1")
}

// TestPageShowsSectionsAndLostBuffers, and the calls of sections.
func TestPageShowsSectionsAndLostBuffers(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{FindUnreachable: true, Clock: time.Now})
	tr.Do("load", func() {
		_, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		require.NoError(t, err)
	})
	for len(leaks.Live(tr.Snapshot(), leaks.OnlyUnreachable())) == 0 { // a collection finds it, some time
		runtime.GC()
	}
	page := write(t, tr.Dump())
	contains(t, page, "<h2>Unreachable buffers</h2>", "1 buffer, 1.0 MiB: Input (1048576,) uint8", "Sections: what they allocated", ">load<", "Sections: their calls")
	contains(t, write(t, exporttest.Leaky(t).Dump()), "<h2>Leak suspects</h2>", "<h2>Growing, not yet known whether bounded</h2>", "exporttest.forget looks forgotten: 44 buffers", "exporttest.forget growing, not yet known whether bounded: ")
}

// TestSegments: the map tells how each segment is used and what keeps it.
func TestSegments(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	var buffers []*tracker.Buffer
	for range 4 {
		b, err := tr.AllocBytes(256*alloc.KiB, tracker.Activation)
		require.NoError(t, err)
		buffers = append(buffers, b)
	}
	for _, i := range []int{0, 1, 3} {
		require.NoError(t, buffers[i].Free())
	}
	r := tr.Dump()
	page := write(t, r)
	contains(t, page, "Why memory is reserved that no buffer uses", "<li>of the inactive memory, ClearCache would give back 0 B; 1.8 MiB is pinned beside a buffer in 1 segment</li>")
	c := contentOf(t, page)
	require.Len(t, c.at(c.Moment).segments, len(r.Snapshot.Segments))
	s := c.at(c.Moment).segments[0]
	assert.Equal(t, int64(256*alloc.KiB), s.Used)
	require.Len(t, s.Pins, 1)
	assert.Contains(t, s.Pins[0], "1 buffer, 256.0 KiB of Activation from ")
	require.Len(t, s.Runs, 6)
	assert.Equal(t, 120, s.Runs[1]+s.Runs[3]+s.Runs[5])
	assert.Equal(t, -1, s.Runs[0], "it is free")
	assert.Equal(t, "Activation", c.Uses[s.Runs[2]])
	assert.Equal(t, 120*256/2048, s.Runs[3])
}

// TestSegmentsOfBlocksThatWait: what was freed and may still be used is distinguished.
func TestSegmentsOfBlocksThatWait(t *testing.T) {
	segment := alloc.Segment{Ptr: 512, Size: 2048, Pool: "small", Blocks: []alloc.Block{
		{Ptr: 512, Size: 1024, State: alloc.Pending}, {Ptr: 1536, Size: 1024, State: alloc.Inactive},
	}}
	r := wide(1, 1, 1)
	r.Snapshot = &snapshot.Snapshot{Device: "waits", Segments: []alloc.Segment{segment}, Tables: tables.Wrap(tables.Tables{Stacks: lines{}, Sections: []string{""}})}
	s := contentOf(t, write(t, r)).at(0).segments[0]
	assert.Equal(t, int64(1024), s.Used)
	assert.Equal(t, []string{"1 buffer, 1.0 KiB freed, but work on another stream may still use it"}, s.Pins)
}

// TestReservedStandsWhereItIsKnown: of a tracker without segments in its history it
// is known at marks and at the end, and nowhere else.
func TestReservedStandsWhereItIsKnown(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{NoCache: true})
	for range 3 {
		b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		require.NoError(t, err)
		tr.Track()
		require.NoError(t, b.Free())
	}
	var reserved []alloc.Bytes
	for _, b := range contentOf(t, write(t, tr.Dump())).Timeline.Reserved {
		if b != nil {
			reserved = append(reserved, *b)
		}
	}
	assert.Equal(t, []alloc.Bytes{1 << 20, 1 << 20, 1 << 20, 0}, reserved)
}

// TestPageSaysWhyThereAreNoMarks: a file can lack them although there were some.
func TestPageSaysWhyThereAreNoMarks(t *testing.T) {
	r := dump(t)
	r.Marks = nil
	contains(t, write(t, r), "The dump has the times of marks only, not their tables.")
	r.History = snapshot.History{}
	contains(t, write(t, r), "A snapshot has no marks and no history: a dump does.", "there is nothing to draw over time")
	assert.False(t, strings.Contains(write(t, r), "Drag to zoom"))
	assert.ErrorIs(t, html.Write(io.Discard, &snapshot.Dump{}), walk.ErrNoSnapshot)
}

// twoDevices is the dump of a process with an idle device and one that trained.
func twoDevices(t *testing.T) (first, second *snapshot.Dump) {
	first, second = dump(t), exporttest.New(t, tracker.Config{}).Dump()
	second.Snapshot.Ordinal, second.Snapshot.Device = 1, "Second <GPU>"
	first.Others = []*snapshot.Dump{second}
	return first, second
}

func TestPageOfSeveralDevices(t *testing.T) {
	first, _ := twoDevices(t)
	page := write(t, first)
	contains(t, page, `<option>Simulated GPU [0]: 2.5 MiB live, peak `, `<option>Second &lt;GPU&gt; [1]: 0 B live, peak 0 B</option>`, `<template class="device">`)
	parts := strings.Split(page, `<script type="application/json"`)
	require.Len(t, parts, 3, "the data of each device")
	var c content
	_, text, _ := strings.Cut(parts[2], ">")
	require.NoError(t, json.NewDecoder(strings.NewReader(text)).Decode(&c))
	assert.Empty(t, c.at(c.Moment).groups)
	all := contentOf(t, page)
	assert.Len(t, all.at(all.Moment).groups, 3)
	assert.Equal(t, 2, strings.Count(page, `id="live-table"`))

	assert.NotContains(t, write(t, dump(t)), "<select", "there is nothing to choose")
}

func TestPageOfManyDevices(t *testing.T) {
	first := dump(t)
	for i := range 40 {
		_, other := twoDevices(t)
		other.Snapshot.Ordinal = i + 1
		first.Others = append(first.Others, other)
	}
	page := write(t, first)
	contains(t, page, "and 9 more devices, which are left out")
	assert.Equal(t, 31, strings.Count(page, `<template class="device">`))
	assert.Less(t, len(page), 2<<20)
}

// TestPageOfEventsWithoutTimes has the events in their order, and no time that nobody recorded.
func TestPageOfEventsWithoutTimes(t *testing.T) {
	f, err := files.Read(strings.NewReader(`{"segments":[{"address":4096,"total_size":2097152,"device":0,"stream":0,"segment_type":"small","blocks":[
		{"address":4096,"size":512,"requested_size":500,"state":"active_allocated"},{"size":2096640,"state":"inactive"}]}],
		"device_traces":[[{"action":"segment_alloc","addr":4096,"size":2097152,"stream":0},{"action":"alloc","addr":4096,"size":500,"stream":0},
		{"action":"alloc","addr":4608,"size":1000,"stream":0},{"action":"free_requested","addr":4608,"size":1000,"stream":0},
		{"action":"free_completed","addr":4608,"size":1000,"stream":0}]]}`))
	require.NoError(t, err)
	page := write(t, f.Dump)
	assert.False(t, strings.Contains(page, "0001-01-01"))
	c := contentOf(t, page)
	assert.True(t, c.Timeline.Untimed)
	require.Equal(t, 1500, int(c.Moments[c.named(t, "the peak")].Live))
	assert.Equal(t, []float64{0, 1, 2, 3, 4, 4}, c.Timeline.Seconds, "a free and its completion are one event")
	assert.Equal(t, f.Dump.Snapshot.Events, c.Moments[len(c.Moments)-1].Event)

	f.Dump.History = snapshot.History{}
	page = write(t, f.Dump)
	contains(t, page, "_record_memory_history()")
	for _, unknown := range []string{`id="peak"`, "0001-01-01", `data-measure="ever"`} {
		assert.False(t, strings.Contains(page, unknown), unknown)
	}
}

// TestPageOfALog says why the request failed, and has nothing that a log cannot tell.
func TestPageOfALog(t *testing.T) {
	at := "I tensorflow/core/common_runtime/bfc_allocator.cc:1] "
	f, err := files.Read(strings.NewReader("W tensorflow/core/common_runtime/bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.0KiB (rounded to 1024)requested by op Conv\n" +
		at + "Next region of size 1792\n" + at + "Free  at 1000 of size 768 next 1\n" + at + "InUse at 1300 of size 256 next 2\n" + at + "Free  at 1400 of size 768 next 3\n"))
	require.NoError(t, err)
	page := write(t, f.Dump)
	contains(t, page, "1.0 KiB were asked for, on GPU_0_bfc [0].", "by the operation Conv", "lies in pieces. Least in the way is 256 B in one chunk, at 0x1300", "at the error")
	for _, unknown := range []string{`id="peak"`, "0001-01-01", `data-measure="ever"`, "torch", "ClearCache", "Over time"} {
		assert.False(t, strings.Contains(page, unknown), unknown)
	}

	cut, err := files.Read(strings.NewReader(at + "InUse at 1300 of size 256 next 2\n"))
	require.NoError(t, err)
	contains(t, write(t, cut.Dump), "The file does not tell how much was asked for on BFC allocator [0].", "at the error")
}
