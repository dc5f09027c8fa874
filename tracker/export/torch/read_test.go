package torch

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// repeatedly joins what f makes of the numbers below n.
func repeatedly(n int, f func(int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = f(i)
	}
	return strings.Join(parts, ",")
}

// TestBoundedNumbers: what entries number in few bits is bounded, and a number never wraps around to another section or stream.
func TestBoundedNumbers(t *testing.T) {
	const more = 3
	c := parsed(t, "", "", `, "external_annotations": [`+repeatedly(tables.MaxSections+more, func(i int) string {
		return fmt.Sprintf(`{"stage": "START", "name": "s%d", "device": 0, "time_us": %d}`, i+1, i+1)
	})+`]`)
	assert.Len(t, tables.Of(&c.Dump.Snapshot.Tables).Sections, tables.MaxSections)
	i := 0
	for e := range c.Dump.Events() {
		want := fmt.Sprintf("s%d", i+1)
		if i++; i >= tables.MaxSections { // the first section is that outside of all
			want = ""
		}
		require.Equal(t, want, e.Section)
	}

	c = parsed(t, "", repeatedly(tables.MaxStreams+more, func(i int) string {
		return fmt.Sprintf(`{"action": "segment_alloc", "addr": %d, "size": 512, "stream": %d}`, 512*(i+1), i)
	}), "")
	assert.Len(t, tables.Of(&c.Dump.Snapshot.Tables).Streams, tables.MaxStreams)
	i = 0
	for e := range c.Dump.Events() {
		require.Equal(t, alloc.Stream(min(i, tables.MaxStreams-1)), e.Stream)
		i++
	}
}

// TestSettings: they are text, a dict has its keys after a dot, and a hostile file cannot have any number of them.
func TestSettings(t *testing.T) {
	c := parsed(t, "", "", `, "allocator_settings": {"a": true, "b": 7, "c": 0.125, "d": "x", "e": {"64": 8, "big": false}}`)
	assert.Equal(t, map[string]string{"a": "true", "b": "7", "c": "0.125", "d": "x", "e.64": "8", "e.big": "false"}, c.Dump.Snapshot.Settings)
	for name, settings := range map[string]string{
		"many":         repeatedly(maxSettings+5, func(i int) string { return fmt.Sprintf(`"k%d": 1`, i) }),
		"many in one":  `"x": {` + repeatedly(maxSettings+5, func(i int) string { return fmt.Sprintf(`"k%d": 1`, i) }) + `}`,
		"as many":      repeatedly(maxSettings, func(i int) string { return fmt.Sprintf(`"k%d": 1`, i) }),
		"as many, one": `"x": {` + repeatedly(maxSettings, func(i int) string { return fmt.Sprintf(`"k%d": 1`, i) }) + `}`,
	} {
		assert.Len(t, parsed(t, "", "", `, "allocator_settings": {`+settings+`}`).Dump.Snapshot.Settings, maxSettings, name)
	}
}

// TestUsageTellsSizesApart: the buffers of a row have one size, also where the same sum is of others.
func TestUsageTellsSizesApart(t *testing.T) {
	const blocks = `{"device": 0, "address": 1048576, "total_size": 4096, "blocks": [{"size": 1024, "state": "active_allocated"}, {"size": 1024, "state": "active_allocated"}, {"size": 2048, "state": "active_allocated"}]},
		{"device": 0, "address": 9048576, "total_size": 4096, "blocks": [{"size": 4096, "state": "active_allocated"}]}`
	c := parsed(t, blocks, `{"action": "segment_alloc", "addr": 1048576, "size": 4096}`, "")
	_, all := export.Compare(nil, []*export.Usage{c.Usage}, "size", "live")
	assert.Equal(t, mem.Tally{Count: 4, Bytes: 8192}, all.After)
	var rows []mem.Tally
	for _, row := range c.Usage.Rows {
		rows = append(rows, row.Live)
		assert.Equal(t, row.Live, row.Total)
	}
	assert.ElementsMatch(t, []mem.Tally{{Count: 2, Bytes: 2048}, {Count: 1, Bytes: 2048}, {Count: 1, Bytes: 4096}}, rows)

	c = parsed(t, blocks, "", "")
	require.Len(t, c.Usage.Rows, 3)
	for _, row := range c.Usage.Rows {
		assert.Zero(t, row.Total, "without events nothing is known of the past")
		assert.Zero(t, row.Peak)
		assert.NotZero(t, row.Live)
	}
}

// TestWhatIsNotInTheFile is unknown, and not zero.
func TestWhatIsNotInTheFile(t *testing.T) {
	c := parsed(t, oneBlock(""), `{"action": "oom", "size": 4096, "device_free": 0, "category": "parameter", "time_us": 1}`, "")
	s := c.Dump.Snapshot
	assert.EqualValues(t, -1, s.DriverUsed)
	assert.EqualValues(t, -1, s.DriverTotal)
	require.Len(t, c.Dump.Devices, 1)
	assert.EqualValues(t, -1, c.Dump.Devices[0].DriverUsed)
	assert.EqualValues(t, -1, c.Dump.Devices[0].DriverTotal)
	o := c.Dump.OOM
	require.NotNil(t, o)
	for name, n := range map[string]alloc.Bytes{"total": o.Total, "inactive": o.Inactive, "largest": o.LargestInactive, "untracked": o.Untracked, "elsewhere": o.Elsewhere, "others": o.Others} {
		assert.EqualValues(t, -1, n, name)
	}
	assert.Zero(t, o.Free, "which is known, and none")
	assert.EqualValues(t, "Parameter", o.Kind)
	assert.EqualValues(t, 4096, o.Requested)
	c = parsed(t, oneBlock(""), `{"action": "oom", "size": 4096, "time_us": 1}`, "")
	assert.EqualValues(t, -1, c.Dump.OOM.Free)
}

// TestListsThatNameEachOther: a pickle can have one list in many places, so a small file can have any number of elements. They are
// counted against its size; a large file may have many.
func TestListsThatNameEachOther(t *testing.T) {
	key := func(s string) string { return fmt.Sprintf("\x8c%c%s", len(s), s) }
	file := func(lists, events int) string { // of the host's memory, of an action that is skipped and takes no memory
		return "\x80\x04}(" + key("segments") + "]" + key("device_traces") + "]" + key("host_segments") + "]" + key("host_traces") +
			"](](}\x94(" + key("action") + key("x") + "u" + strings.Repeat("h\x00", events-1) + "e\x94" + strings.Repeat("h\x01", lists-1) + "eu."
	}
	_, err := read(strings.NewReader(file(1100, 1100)))
	assert.ErrorContains(t, err, "its lists name each other more often than a file of its size has reason to")
	_, err = read(strings.NewReader(file(1, 1_200_000)))
	assert.NoError(t, err)
}

// TestSumsOfSizes fit with a bit to spare, one by one.
func TestSumsOfSizes(t *testing.T) {
	const half = 1 << 61
	event := func(size int64) string {
		return fmt.Sprintf(`{"action": "segment_alloc", "addr": 512, "size": %d}`, size)
	}
	parsed(t, "", event(half)+","+event(half), "")
	_, err := read(strings.NewReader(`{"segments": [], "device_traces": [[` + event(half) + "," + event(half+1) + `]]}`))
	assert.ErrorContains(t, err, "the sizes come to more than any device has")
}

// TestPoolsOfThreeParts: later versions may have more than two numbers. The first two name the pool.
func TestPoolsOfThreeParts(t *testing.T) {
	c := parsed(t, strings.Replace(oneBlock(""), `"segment_type"`, `"segment_pool_id": [3, 4, 5], "segment_type"`, 1), "", "")
	assert.Equal(t, "3,4", c.Dump.Snapshot.Segments[0].Private)
	assert.Equal(t, poolID{3, 4}, parsePool("3,4"))
	assert.Equal(t, poolID{}, parsePool("3"))
}

// TestTypesOfMemoryComeBack: a file of Write names what is not the ordinary one.
func TestTypesOfMemoryComeBack(t *testing.T) {
	r := memories(t)
	c, err := read(bytes.NewReader(write(t, r)))
	require.NoError(t, err)
	got := make(map[string]alloc.Memory)
	for a := range c.Dump.Snapshot.Allocations() {
		got[a.Kind.String()+" "+a.Section] = a.Memory
	}
	assert.Equal(t, map[string]alloc.Memory{"Input ": alloc.DeviceMemory, "Parameter ": alloc.ManagedMemory, "Gradient step": alloc.DeviceMemory}, got)
}
