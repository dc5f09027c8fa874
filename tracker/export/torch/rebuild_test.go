package torch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// parsed reads a file with the segments, the events of device 0 and perhaps more.
func parsed(t *testing.T, segments, events, more string) *contents {
	t.Helper()
	c, err := read(strings.NewReader(`{"segments": [` + segments + `], "device_traces": [[` + events + `]]` + more + `}`))
	require.NoError(t, err)
	return c
}

// oneBlock is one that fills a segment of 2 MiB at the address 1 MiB.
func oneBlock(more string) string {
	return `{"device": 0, "address": 1048576, "total_size": 2097152, "stream": 0, "segment_type": "small", "blocks": [{"address": 1048576, "size": 2097152, "requested_size": 2097000, "state": "active_allocated"` + more + `}]}`
}

func entriesOf(c *contents) []tables.EventEntry { return tables.OfHistory(&c.Dump.History).Events }

// TestAnnotationsAreSections: they are merged with the events by time, an annotation before the events of its microsecond. One that
// ends without a beginning began before the recording. The two ends of a section have a number of their own.
func TestAnnotationsAreSections(t *testing.T) {
	c := parsed(t, "", `{"action": "segment_alloc", "addr": 1, "size": 1, "time_us": 10}, {"action": "segment_alloc", "addr": 2, "size": 1, "time_us": 0},
		{"action": "snapshot", "time_us": 20}, {"action": "segment_alloc", "addr": 3, "size": 1, "time_us": 30}, {"action": "snapshot", "time_us": 30}`,
		`, "external_annotations": [
		{"stage": "END", "name": "late", "device": 0, "time_us": 40}, {"stage": "START", "name": "late", "device": 0, "time_us": 35},
		{"stage": "START", "name": "outer", "device": 0, "time_us": 11}, {"stage": "START", "name": "inner", "device": 0, "time_us": 20},
		{"stage": "END", "name": "before", "device": 0, "time_us": 21}, {"stage": "END", "name": "outer", "device": 0, "time_us": 25},
		{"stage": "START", "name": "other device", "device": 1, "time_us": 26}, {"stage": "START", "name": "no time", "device": 0, "time_us": 0},
		{"stage": "END", "name": "inner", "device": 0, "time_us": 30}]`)
	var got []string
	spans := make(map[uint64]string)
	for e := range c.Dump.Events() {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%d %v %s", e.Time.UnixMicro(), e.Action, e.Section)))
		switch e.Action {
		case mem.SectionBegan:
			assert.NotContains(t, spans, e.Span)
			assert.NotZero(t, e.Span)
			spans[e.Span] = e.Section
		case mem.SectionEnded:
			assert.Equal(t, spans[e.Span], e.Section)
		}
	}
	assert.Equal(t, []string{
		"10 segment_alloc", "10 segment_alloc", "11 section_begin outer", "20 section_begin inner", "20 mark", "25 section_end outer", "30 section_end inner",
		"30 segment_alloc", "30 mark", "35 section_begin late", "40 section_end late",
	}, got)
	assert.Len(t, spans, 3)

	c = parsed(t, "", "", `, "external_annotations": [{"stage": "START", "name": "alone", "device": 0, "time_us": 5}]`)
	require.Len(t, entriesOf(c), 1, "there need be no event")
	_, err := read(strings.NewReader(`{"segments": [], "device_traces": [], "external_annotations": [7]}`))
	assert.ErrorContains(t, err, "external_annotations[0] is an integer, want a dict")
}

// TestMarksAreNumbered from 1, in a file of PyTorch, which does not number its snapshots.
func TestMarksAreNumbered(t *testing.T) {
	c := parsed(t, "", `{"action": "snapshot", "time_us": 1}, {"action": "snapshot", "time_us": 2}, {"action": "snapshot", "time_us": 3}`, "")
	var marks []int
	for e := range c.Dump.Events() {
		marks = append(marks, e.Mark)
	}
	assert.Equal(t, []int{1, 2, 3}, marks)
}

// TestTimesNeverRunBack: a clock may, and levels over time would.
func TestTimesNeverRunBack(t *testing.T) {
	c := parsed(t, "", `{"action": "snapshot", "time_us": 1000}, {"action": "snapshot", "time_us": 1030}, {"action": "snapshot", "time_us": 1020}, {"action": "snapshot", "time_us": 0}`, "")
	var since []time.Duration
	for _, e := range entriesOf(c) {
		since = append(since, e.Since)
	}
	const us = time.Microsecond
	assert.Equal(t, []time.Duration{0, 30 * us, 30 * us, 30 * us}, since)
	assert.EqualValues(t, 1030, c.Dump.Snapshot.Time.UnixMicro())
}

// TestWithoutTimes: before PyTorch 2.1 events have none. They are a microsecond apart, and when the snapshot was taken is unknown. A
// time in the middle says nothing of the events before it.
func TestWithoutTimes(t *testing.T) {
	for _, last := range []string{`{"action": "snapshot"}`, `{"action": "snapshot", "time_us": 7000}`} {
		c := parsed(t, "", `{"action": "snapshot"}, {"action": "snapshot"}, `+last, "")
		var since []time.Duration
		for _, e := range entriesOf(c) {
			since = append(since, e.Since)
		}
		assert.Equal(t, []time.Duration{0, time.Microsecond, 2 * time.Microsecond}, since)
		assert.Zero(t, c.Dump.Snapshot.Time)
		assert.Zero(t, tables.OfHistory(&c.Dump.History).Start)
	}
}

// TestBlocksThatAreGone: the file has the size of a request only. PyTorch rounds it up to 512 bytes; blocks of host memory have their own size.
func TestBlocksThatAreGone(t *testing.T) {
	for size, want := range map[int]alloc.Bytes{0: 512, 1: 512, 511: 512, 512: 512, 513: 1024, 1024: 1024, 1025: 1536} {
		event := fmt.Sprintf(`{"action": "%%s", "addr": 4096, "size": %d, "stream": 0, "time_us": 1}`, size)
		c := parsed(t, "", fmt.Sprintf(event, "alloc")+","+fmt.Sprintf(event, "free_completed"), "")
		for _, e := range entriesOf(c) {
			assert.Equal(t, want, e.Allocated, "%d bytes", size)
		}
		before := parsed(t, "", fmt.Sprintf(event, "free_completed"), "")
		assert.Equal(t, want, entriesOf(before)[0].Allocated)
		assert.Equal(t, mem.Tally{Count: 1, Bytes: alloc.Bytes(size)}, before.Dump.Snapshot.Total, "it was allocated, if before the first event")
		assert.EqualValues(t, 2, before.Dump.Snapshot.Events, "one of which is not in the file")
		host := parsed(t, "", "", `, "host_traces": [`+fmt.Sprintf(event, "alloc")+","+fmt.Sprintf(event, "free_completed")+`]`)
		for _, e := range entriesOf(host) {
			assert.EqualValues(t, size, e.Allocated)
		}
	}
}

// TestALabelGoesWithItsBuffer: another allocation at the address, whose free is not in the file, has none.
func TestALabelGoesWithItsBuffer(t *testing.T) {
	alloc := `{"action": "alloc", "addr": 1048576, "size": 2097000, "stream": 0, "time_us": 1%s}`
	for second, want := range map[string]string{"": "", `, "user_metadata": "new"`: "new", `, "compile_context": "2/1"`: "compile_context=2/1"} {
		c := parsed(t, oneBlock(""), fmt.Sprintf(alloc, `, "user_metadata": "old", "compile_context": "1/0"`)+","+fmt.Sprintf(alloc, second), "")
		for a := range c.Dump.Snapshot.Allocations() {
			assert.Equal(t, want, a.Label)
		}
	}
	c := parsed(t, oneBlock(""), fmt.Sprintf(alloc, `, "compile_context": "1/0"`)+`,{"action": "annotate", "addr": 1048576, "time_us": 2, "user_metadata": "later"}`, "")
	for a := range c.Dump.Snapshot.Allocations() {
		assert.Equal(t, "later, compile_context=1/0", a.Label)
	}
}

// TestSegmentsWithoutASize are as large as their blocks.
func TestSegmentsWithoutASize(t *testing.T) {
	c := parsed(t, strings.Replace(oneBlock(""), `"total_size": 2097152, `, "", 1), "", "")
	assert.Equal(t, 2*alloc.MiB, c.Dump.Snapshot.Reserved)
	require.Len(t, c.Dump.Snapshot.Segments, 1)
	assert.Equal(t, 2*alloc.MiB, c.Dump.Snapshot.Segments[0].Size)
}

// TestErrorsNameThePlace, counted from 0 as Python does.
func TestErrorsNameThePlace(t *testing.T) {
	for text, want := range map[string]string{
		`"segments": [` + oneBlock("") + `, {"device": 0, "address": 1}]`:                                                              "segment 1: blocks is None, want a list",
		`"segments": [{"device": 0, "address": 1, "blocks": [{"size": 1, "state": "inactive"}, {"state": "inactive"}]}]`:               "segment 0, block 1: there is no size",
		`"segments": [{"device": 1024, "address": 1, "blocks": []}]`:                                                                   "segment 0: device is 1024, want 0 to 1023",
		`"segments": [{"device": -1, "address": 1, "blocks": []}]`:                                                                     "segment 0: device is -1, want 0 to 1023",
		`"segments": [], "host_segments": [{"address": 1, "total_size": 1, "state": "inactive"}, {"address": 1, "state": "inactive"}]`: "host segment 1: there is no total_size",
		`"segments": [], "host_segments": [{"address": 1, "blocks": [{"size": 1}]}]`:                                                   "host segment 0: there is no address",
		`"segments": [], "device_traces": [` + strings.Repeat("[],", 1024) + `[{"action": "snapshot"}]]`:                               "device_traces has 1025 devices, want at most 1024",
	} {
		_, err := read(strings.NewReader("{" + text + "}"))
		assert.ErrorContains(t, err, want)
	}
	c, err := read(strings.NewReader(`{"segments": [{"device": 1023, "address": 1, "blocks": []}], "device_traces": [` + strings.Repeat("[],", 1023) + `[{"action": "snapshot"}]]}`))
	require.NoError(t, err)
	assert.Equal(t, 1023, c.Dump.Snapshot.Ordinal)
}

// devicesOf are the dumps of a file, by device.
func devicesOf(c *contents) map[int]*snapshot.Dump {
	out := map[int]*snapshot.Dump{c.Dump.Snapshot.Ordinal: c.Dump}
	for _, d := range c.Dump.Others {
		out[d.Snapshot.Ordinal] = d
	}
	return out
}

// TestHostMemoryGoesToOneDevice: that with the largest segments, and of several the first. It is in the file even if no device is, and of two
// events at one time that of the device comes first.
func TestHostMemoryGoesToOneDevice(t *testing.T) {
	const host = `, "host_segments": [{"address": 9000, "total_size": 4096, "state": "active_allocated"}], "host_traces": [{"action": "alloc", "addr": 9000, "size": 4096, "time_us": 5}]`
	segment := `{"device": %d, "address": 1048576, "total_size": %d, "blocks": [{"size": %d, "state": "inactive"}]}`
	for name, c := range map[string]struct {
		sizes []int
		want  int
	}{"equal": {[]int{512, 512, 512}, 0}, "the second": {[]int{512, 1024, 512}, 1}, "the last": {[]int{512, 512, 1024}, 2}, "two": {[]int{512, 1024, 1024}, 1}, "none": {nil, 0}} {
		for range 8 { // devices are in a map
			var segments []string
			for device, size := range c.sizes {
				segments = append(segments, fmt.Sprintf(segment, device, size, size))
			}
			got := parsed(t, strings.Join(segments, ","), `{"action": "segment_alloc", "addr": 1048576, "size": 512, "time_us": 5}`, host)
			for ordinal, d := range devicesOf(got) {
				want := mem.Tally{}
				if ordinal == c.want {
					want = mem.Tally{Count: 1, Bytes: 4096}
				}
				assert.Equal(t, want, d.Snapshot.Host(), "%s, device %d", name, ordinal)
			}
			var actions []mem.Action
			for e := range devicesOf(got)[0].Events() {
				actions = append(actions, e.Action)
			}
			assert.Equal(t, mem.SegmentAllocated, actions[0], name)
		}
	}
	assert.Zero(t, parsed(t, oneBlock(""), "", `, "host_traces": []`).Dump.Snapshot.HostReserved)
}
