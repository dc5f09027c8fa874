package tablejson

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// read reads a snapshot's tables and segments.
func read(text string) (tables.Tables, []alloc.Segment, error) {
	in, err := jsonstream.NewReader(strings.NewReader(text))
	if err != nil {
		return tables.Tables{}, nil, err
	}
	var head struct{ Streams []alloc.Stream }
	lists, err := ReadSnapshot(in, &head)
	if err != nil {
		return tables.Tables{}, nil, err
	}
	if lists == nil {
		return tables.Tables{}, nil, errors.New("it is null")
	}
	t, err := lists.Load(epoch, head.Streams)
	return t, lists.Segments, err
}

// readHistory reads a history.
func readHistory(text string) (*tables.HistoryTables, error) {
	in, err := jsonstream.NewReader(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return ReadHistory(in)
}

// write writes a snapshot's tables behind a head with the streams.
func write(t *testing.T, lists *tables.Tables, segments []alloc.Segment) string {
	var b bytes.Buffer
	out := jsonstream.NewWriter(&b)
	out.Head(struct {
		Streams []alloc.Stream
	}{lists.Streams})
	WriteSnapshot(out, lists, segments)
	out.Bytes([]byte("}"))
	require.NoError(t, out.Flush())
	return b.String()
}

func writeHistory(t *testing.T, h *tables.HistoryTables) string {
	var b bytes.Buffer
	out := jsonstream.NewWriter(&b)
	WriteHistory(out, h)
	require.NoError(t, out.Flush())
	return b.String()
}

func stack(lines ...int) (s mem.Stack) {
	for _, line := range lines {
		s = append(s, frame(line))
	}
	return s
}

func frame(line int) mem.Frame { return mem.Frame{Function: "f", File: "a.go", Line: line} }

func grown() *survival.Unit {
	u := &survival.Unit{Ages: new(survival.Ages)}
	new(survival.Units).Freed(u, new(survival.Unit), 10*time.Minute, time.Hour, 7)
	return u
}

const everything = `{"Streams":[0,7],
"segments": [
{"address":4096,"bytes":1024,"pool":"small","blocks":[{"address":4096,"bytes":512,"requested_bytes":3,"state":"allocated"},{"address":4608,"bytes":512,"state":"inactive"}]}
],
"stacks": [
[0,1],
[2,1]
],
"frames": [
{"function":"f","file":"a.go","line":1},
{"function":"f","file":"a.go","line":9},
{"function":"f","file":"a.go","line":2}
],
"call_sites": [
{"kind":"Input","dtype":"int8","shape":[3],"stack":0,"call_site":{"function":"f","file":"a.go","line":1},"live_count":2,"peak_count":3,"total_count":4,"memory":"device"},
{"kind":"Tensor","shape":null,"section":"a/b","stack":-1,"call_site":{"function":"","file":"","line":0},"live_count":1,"peak_count":0,"total_count":1,"stream":1,"each_bytes":9}
],
"retired": [
{"section":"a/b","stack":1,"call_site":{"function":"f","file":"a.go","line":2},"total":{"count":5,"bytes":50},"memory":"pinned"}
],
"allocations": [
{"seq":1,"time":"2026-01-02T03:04:06Z","address":4096,"call_site":0,"allocated_bytes":512,"label":"w","ordinals":[1,2]},
{"seq":2,"time":"2026-01-02T03:04:07Z","address":8192,"call_site":0,"allocated_bytes":512,"registered":true},
{"seq":3,"time":"2026-01-02T03:04:08Z","address":9000,"call_site":1,"allocated_bytes":512,"section":"a/b","unreachable":true}
],
"lifetimes": [
{"call_site":{"function":"f","file":"a.go","line":1},"ages":[1],"last":6}
],
"paths": [
{"stack":-1,"ages":[],"last":3},
{"stack":0,"ages":[0,2],"last":5,"old_missed":true}
]}`

// tablesOfEverything has what each table can have.
func tablesOfEverything() (*tables.Tables, []alloc.Segment) {
	stacks := new(tables.StackTable)
	stacks.Add(stack(1, 9), frame(1))
	stacks.Add(stack(2, 9), frame(2))
	typed := &tables.Tensor{Kind: "Input", DType: alloc.Int8, Memory: alloc.DeviceMemory, Shape: alloc.Shape{3}, Each: 3}
	return &tables.Tables{
			Stacks: stacks, Sections: []string{"", "a/b"}, Streams: []alloc.Stream{0, 7}, Epoch: epoch,
			Sites: []tables.SiteEntry{
				{Place: tables.Place{Stack: 1}, Tensor: typed, Live: 2, Peak: 3, Total: 4},
				{Place: tables.Place{Section: 1}, Tensor: &tables.Tensor{Each: 9}, Live: 1, Total: 1, Stream: 1},
			},
			Retired: []tables.RetiredEntry{{Place: tables.Place{Stack: 2, Section: 1}, Memory: alloc.PinnedMemory, Total: mem.Tally{Count: 5, Bytes: 50}}},
			Allocations: []tables.AllocationEntry{
				{Seq: 1, Since: time.Second, Ptr: 4096, Allocated: 512, Label: "w", InLine: 1, InPath: 2},
				{Seq: 2, Since: 2 * time.Second, Ptr: 8192, Allocated: 512, Foreign: true},
				{Seq: 3, Since: 3 * time.Second, Ptr: 9000, Site: 1, Allocated: 512, Unreachable: true},
			},
			Lines: map[mem.Frame]*survival.Unit{frame(1): {Ages: &survival.Ages{1}, Last: 6}},
			Paths: map[tables.StackID]*survival.Unit{0: {Ages: new(survival.Ages), Last: 3}, 1: {Ages: &survival.Ages{0, 2}, Last: 5, Missed: true}},
		}, []alloc.Segment{{Ptr: 4096, Size: 1024, Pool: "small", Blocks: []alloc.Block{
			{Ptr: 4096, Size: 512, Requested: 3, State: alloc.Allocated}, {Ptr: 4608, Size: 512, State: alloc.Inactive},
		}}}
}

// TestTablesAreWrittenAndRead: all that the tables have stands in the text, which reads as the same tables.
func TestTablesAreWrittenAndRead(t *testing.T) {
	want, segments := tablesOfEverything()
	text := write(t, want, segments)
	assert.Equal(t, everything, text)
	got, gotSegments, err := read(text)
	require.NoError(t, err)
	assert.Equal(t, want, &got)
	assert.Equal(t, segments, gotSegments)

	// What there is none of is not written, and windows of lifetimes read as they were.
	few := &tables.Tables{Stacks: new(tables.StackTable), Sections: []string{""}, Epoch: epoch}
	few.Lines, few.Paths = map[mem.Frame]*survival.Unit{frame(3): grown()}, map[tables.StackID]*survival.Unit{}
	text = write(t, few, nil)
	for member, is := range map[string]bool{"segments": false, "retired": false, "call_sites": true, "allocations": true, "lifetimes": true, "paths": true} {
		assert.Equal(t, is, strings.Contains(text, `"`+member+`"`), member)
	}
	got, _, err = read(text)
	require.NoError(t, err)
	assert.Equal(t, few.Lines, got.Lines)
	assert.NotNil(t, got.Paths, "the source counts them")
	few.Lines, few.Paths = nil, nil
	text = write(t, few, nil)
	assert.NotContains(t, text, "lifetimes")
	got, _, err = read(text)
	require.NoError(t, err)
	assert.Nil(t, got.Paths)
}

// TestOrdinalsAreThoseThatTheSourceCounts: without paths they mean nothing.
func TestOrdinalsAreThoseThatTheSourceCounts(t *testing.T) {
	lists, _ := tablesOfEverything()
	lists.Paths = nil
	assert.NotContains(t, write(t, lists, nil), "ordinals")
}

// TestEarlierVersions: in version 1 a stack had its frames, and call sites named no section, but buffers did. Files until version
// 3 of a snapshot have "site" for "call_site", and those from before the first release "lost" and "births".
func TestEarlierVersions(t *testing.T) {
	got, _, err := read(`{"stacks":[[{"function":"f","file":"a.go","line":1}]],
		"sites":[{"kind":"Input","dtype":"int8","shape":[3],"stack":0,"site":{"function":"f","file":"a.go","line":1},"live_count":3,"peak_count":4,"total_count":5}],
		"allocations":[{"seq":1,"time":"2026-01-02T03:04:06Z","address":1,"site":0,"allocated_bytes":512},
			{"seq":2,"time":"2026-01-02T03:04:06Z","address":2,"site":0,"allocated_bytes":512,"section":"a","lost":true,"births":[4,2]},
			{"seq":3,"time":"2026-01-02T03:04:06Z","address":3,"site":0,"allocated_bytes":512,"section":"a"}]}`)
	require.NoError(t, err)
	x := got.Sites[0].Tensor
	assert.Equal(t, []tables.SiteEntry{
		{Place: tables.Place{Stack: 1}, Tensor: x, Live: 1, Peak: 4, Total: 3},
		{Place: tables.Place{Stack: 1, Section: 1}, Tensor: x, Live: 2, Total: 2},
	}, got.Sites, "those of the section are counted apart")
	assert.Equal(t, []int32{0, 1, 1}, []int32{got.Allocations[0].Site, got.Allocations[1].Site, got.Allocations[2].Site})
	assert.Equal(t, stack(1), got.Stacks.Stack(1))
	assert.Equal(t, frame(1), got.Stacks.Site(1))
	assert.Equal(t, []string{"", "a"}, got.Sections)
	assert.False(t, got.Allocations[0].Unreachable)
	assert.True(t, got.Allocations[1].Unreachable)
	assert.Equal(t, [2]uint16{4, 2}, [2]uint16{got.Allocations[1].InLine, got.Allocations[1].InPath})
}

// site is a call site of int8 buffers with these counts.
func site(stack int, counts ...int64) string {
	return fmt.Sprintf(`{"kind":"Input","dtype":"int8","shape":[3],"stack":%d,"call_site":{"line":1},"live_count":%d,"peak_count":%d,"total_count":%d}`, stack, counts[0], counts[1], counts[2])
}

func allocation(site int64, more string) string {
	return fmt.Sprintf(`{"seq":1,"time":"2026-01-02T03:04:06Z","address":1,"call_site":%d,"allocated_bytes":512%s}`, site, more)
}

// TestTablesThatContradictThemselves: an error names the index or the sum that is wrong. The largest and the smallest that are
// right are no errors.
func TestTablesThatContradictThemselves(t *testing.T) {
	const stacks = `"stacks":[[0],[0]],"frames":[{"line":1}],`
	sites := func(all ...string) string { return "{" + stacks + `"call_sites":[` + strings.Join(all, ",") + `]}` }
	allocations := func(all ...string) string {
		return "{" + stacks + `"call_sites":[` + site(0, 1, 1, 1) + `],"allocations":[` + strings.Join(all, ",") + `]}`
	}
	each := func(dtype string, each, live, peak int64) string {
		return fmt.Sprintf(`{"kind":"Input"%s,"shape":null,"each_bytes":%d,"stack":-1,"call_site":{},"live_count":%d,"peak_count":%d,"total_count":4}`, dtype, each, live, peak)
	}
	for text, want := range map[string]string{
		`{"stacks":[[0],[1]],"frames":[{}]}`:      "stack 1: frame 1 of 1",
		`{"stacks":[[-1]],"frames":[{}]}`:         "stack 0: frame -1 of 1",
		`{"stacks":[["x"]],"frames":[{}]}`:        "cannot unmarshal string",
		`{"stacks":[[]]}`:                         "",
		`{"frames":[7]}`:                          "cannot unmarshal number",
		`{"other":7}`:                             "",
		`{"Streams":7}`:                           "cannot unmarshal number",
		`null`:                                    "it is null",
		`7`:                                       "the JSON is a number, want an object",
		`{"segments":[{"address":1}]}`:            "want more than 0",
		`{"segments":[{"blocks":[7]}]}`:           "cannot unmarshal number",
		`{"segments":[{"address":"x"}]}`:          "cannot unmarshal",
		`{"segments":[7]}`:                        `"/segments/0" is a number, want an object`,
		sites(site(-1, 0, 0, 0)):                  "",
		sites(site(1, 1, 1, 1)):                   "",
		sites(site(0, 0, 0, 0), site(2, 0, 0, 0)): "call site 1: stack 2 of 2",
		sites(site(-2, 0, 0, 0)):                  "call site 0: stack -2 of 2",
		sites(site(0, 2, 2, 1)):                   "call site 0: 2 live, 2 at the peak, 1 in total",
		sites(site(0, -1, 0, 0)):                  "call site 0: -1 live",
		sites(site(0, 0, -1, 0)):                  "-1 at the peak",
		sites(site(0, 1, 7, 1)):                   "",
		sites(each("", 1<<61, 3, 3)):              "",
		sites(each("", 1<<61, 1, 4)):              "1 live, 4 at the peak",
		sites(each("", 1<<61, 4, 1)):              "4 live, 1 at the peak",
		sites(each("", 0, 4, 4)):                  "",
		sites(each("", -1, 0, 0)):                 "a buffer of -1 bytes",
		sites(each(`,"dtype":"int7"`, 0, 0, 0)):   "int7",
		`{"retired":[{"stack":-1,"total":{"count":1,"bytes":2}}]}`:                    "",
		`{"retired":[{"stack":0}]}`:                                                   "retired 0: stack 0 of 0",
		allocations(allocation(0, "")):                                                "",
		allocations(allocation(0, ""), allocation(1, "")):                             "allocation 1: call site 1 of 1",
		allocations(allocation(-1, "")):                                               "allocation 0: call site -1 of 1",
		allocations(allocation(1<<31, "")):                                            "allocation 0: there is no call site 2147483648",
		allocations(allocation(0, `,"section":"a"`), allocation(0, `,"section":"a"`)): `allocation 1: in section "a", but no buffer of call site 0 is left that could be`,
		allocations("7"):                        "cannot unmarshal number",
		`{"lifetimes":[{"ages":[1],"last":0}]}`: "lifetimes 0: 1 ages, the last of event 0",
		`{"lifetimes":[{"ages":[` + strings.Repeat("1,", 39) + `1],"last":1}]}`: "",
		`{"lifetimes":[{"ages":[` + strings.Repeat("1,", 40) + `1],"last":1}]}`: "lifetimes 0: 41 ages",
		`{"lifetimes":[{"ages":[],"last":1,"window_ns":3}]}`:                    "lifetimes 0: ",
		`{"lifetimes":[{"ages":[],"last":1,"old":[[1]]}]}`:                      "lifetimes 0: ",
		`{"paths":[{"stack":-1,"last":1}]}`:                                     "",
		`{"stacks":[[]],"paths":[{"stack":0,"last":1}]}`:                        "",
		`{"paths":[{"stack":0,"last":1}]}`:                                      "path 0: stack 0 of 0",
		`{"paths":[{"stack":-2,"last":1}]}`:                                     "path 0: stack -2 of 0",
		`{"paths":[{"stack":-1,"last":0}]}`:                                     "path 0: 0 ages, the last of event 0",
		`{"allocations":[`:                                                      "unexpected EOF",
		`{"stacks":[`:                                                           "unexpected EOF",
	} {
		_, _, err := read(text)
		if want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, want, text)
		}
	}
}

// TestOrdinalsInAnyForm: ordinals have no use unless there are two.
func TestOrdinalsInAnyForm(t *testing.T) {
	for ordinals, want := range map[string][2]uint16{`[3,4]`: {3, 4}, `[0,65535]`: {0, 65535}, `[3]`: {3, 0}, `[3,4,5]`: {3, 4}, `[]`: {}, `null`: {}} {
		for _, more := range []string{"", `,"label":"a"`} {
			got, _, err := read(`{"call_sites":[` + site(-1, 1, 1, 1) + `],"allocations":[` + allocation(0, `,"ordinals":`+ordinals+more) + `]}`)
			require.NoError(t, err, ordinals)
			assert.Equal(t, want, [2]uint16{got.Allocations[0].InLine, got.Allocations[0].InPath}, ordinals)
		}
	}
}

// TestLongNamesAreCut: many things of a file can share a long name.
func TestLongNamesAreCut(t *testing.T) {
	long := strings.Repeat("x", 2*bounded.MaxName)
	got, _, err := read(`{"frames":[{"function":"` + long + `","file":"` + long + `"}],"stacks":[[0]]}`)
	require.NoError(t, err)
	f := got.Stacks.Stack(1)[0]
	assert.Len(t, f.Function, bounded.MaxName)
	assert.Len(t, f.File, bounded.MaxName)
}

// TestWhatIsReadIsBounded: tables of a small packed file that would take much memory are refused, and those of a large plain file
// are not.
func TestWhatIsReadIsBounded(t *testing.T) {
	packed := func(text string) io.Reader {
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		_, err := io.WriteString(zip, text)
		require.NoError(t, err)
		require.NoError(t, zip.Close())
		return &b
	}
	many := func(element string, size int) string {
		return strings.Repeat(element+",", size/len(element)-1) + element
	}
	for name, text := range map[string]string{
		"a stack":              `{"stacks":[[` + many("1", 4<<20) + `]]}`,
		"allocations":          `{"allocations":[` + many("{}", 4<<20) + `]}`,
		"events of a history":  `{"events":[` + many("{}", 2<<20) + `]}`,
		"a stack of a history": `{"stacks":[{"frames":[` + many("1", 4<<20) + `]}]}`,
	} {
		in, err := jsonstream.NewReader(packed(text))
		require.NoError(t, err)
		if strings.Contains(name, "history") {
			_, err = ReadHistory(in)
		} else {
			_, err = ReadSnapshot(in, new(struct{}))
		}
		assert.ErrorIs(t, err, bounded.ErrTooLarge, name)
	}
	in, err := jsonstream.NewReader(strings.NewReader(`{"stacks":[[` + many("1", 4<<20) + `]]}`))
	require.NoError(t, err)
	_, err = ReadSnapshot(in, new(struct{}))
	assert.NoError(t, err, "a file of this size has reason to take the memory")
	in, err = jsonstream.NewReader(strings.NewReader(`{"schema":"gpumemtrack.history","version":3,"sections":[""],"stacks":[{"frames":[` + many("1", 4<<20) + `]}],"frames":[{},{}]}`))
	require.NoError(t, err)
	_, err = ReadHistory(in)
	assert.NoError(t, err)
}

// TestSampledSize: the size of tables is guessed from some of their elements, which are as large as the others.
func TestSampledSize(t *testing.T) {
	stacks := new(tables.StackTable)
	lists := &tables.Tables{Stacks: stacks, Sections: []string{""}}
	for i := range 1280 {
		id := stacks.Add(stack(100_000+2*i, 100_001+2*i), frame(100_000))
		lists.Sites = append(lists.Sites, tables.SiteEntry{Place: tables.Place{Stack: id}, Tensor: new(tables.Tensor)})
	}
	size := int64(len(write(t, lists, nil)))
	for _, of := range []int{10, 640} {
		sample := &jsonstream.Sample{Of: of}
		out := jsonstream.NewWriter(sample)
		WriteSnapshot(out, lists, nil)
		require.NoError(t, out.Flush())
		assert.InEpsilon(t, size, sample.Size, 0.02, "from %d of each", of)
	}
}

const fullHistory = `{"schema":"gpumemtrack.history","version":3,"start":"2026-01-02T03:04:05Z","first":4,"sections":["","a"],"streams":[0,7],"pools":[{"seq":5,"name":"(1, 0)"}],
"stacks": [
{"call_site":{"function":"f","file":"a.go","line":1},"frames":[0,1]},
{"call_site":{"function":"f","file":"a.go","line":2},"frames":[2]}
],
"frames": [
{"function":"f","file":"a.go","line":1},
{"function":"f","file":"a.go","line":9},
{"function":"f","file":"a.go","line":2}
],
"groups": [
{"kind":"Input","dtype":"int8","shape":[3],"memory":"device"}
],
"events": [
{"ns":1,"action":"alloc","address":4096,"bytes":512,"group":0,"stack":0,"section":1,"stream":1},
{"ns":2,"action":"segment_free","address":8192,"bytes":1024,"group":-1,"stack":-1},
{"ns":3,"action":"mark","number":6,"group":-1,"stack":0},
{"ns":4,"action":"section_begin","number":8,"group":-1,"stack":-1},
{"ns":5,"action":"section_end","number":8,"group":-1,"stack":-1},
{"ns":6,"action":"free","address":4096,"bytes":512,"group":0,"stack":0}
],
"frees": [
{"seq":8,"stack":0},
{"seq":9,"stack":1}
]}
`

// TestHistoriesAreWrittenAndRead: the text has what the events refer to, by number, and reads as the same history.
func TestHistoriesAreWrittenAndRead(t *testing.T) {
	stacks := new(tables.StackTable)
	stacks.Add(stack(1, 9), frame(1))
	stacks.Add(stack(2), frame(2))
	x := &tables.Tensor{Kind: "Input", DType: alloc.Int8, Memory: alloc.DeviceMemory, Shape: alloc.Shape{3}, Each: 3}
	want := &tables.HistoryTables{
		Start: epoch, First: 4, Stacks: stacks, Sections: []string{"", "a"}, Streams: []alloc.Stream{0, 7}, Pools: []tables.PoolEntry{{Seq: 5, Name: "(1, 0)"}},
		Events: []tables.EventEntry{
			{Since: 1, Action: mem.Allocated, Ptr: 4096, Allocated: 512, Tensor: x, Stack: 1, Section: 1, Stream: 1},
			{Since: 2, Action: mem.SegmentFreed, Ptr: 8192, Allocated: 1024},
			{Since: 3, Action: mem.Marked, Allocated: 6, Stack: 1},
			{Since: 4, Action: mem.SectionBegan, Allocated: 8},
			{Since: 5, Action: mem.SectionEnded, Allocated: 8},
			{Since: 6, Action: mem.Freed, Ptr: 4096, Allocated: 512, Tensor: x, Stack: 1},
		},
		Frees: []tables.FreeEntry{{Seq: 8, Stack: 1}, {Seq: 9, Stack: 2}},
	}
	text := writeHistory(t, want)
	assert.Equal(t, fullHistory, text)
	got, err := readHistory(text)
	require.NoError(t, err)
	assert.Equal(t, want, got)

	want.Frees, want.Pools, want.Streams, want.Events = nil, nil, nil, []tables.EventEntry{}
	text = writeHistory(t, want)
	assert.NotContains(t, text, "frees")
	got, err = readHistory(text)
	require.NoError(t, err)
	assert.Empty(t, got.Events)
	assert.True(t, got.Exists(), "though it has no events")
	none, err := readHistory("null")
	require.NoError(t, err)
	assert.Nil(t, none)
}

// TestHistoriesThatContradictThemselves: an error names what is wrong. The largest and the smallest indices that are right are no
// errors.
func TestHistoriesThatContradictThemselves(t *testing.T) {
	history := func(members string) string {
		return `{"schema":"gpumemtrack.history","version":3,"sections":["","a"],"stacks":[{"frames":[0]},{"frames":[]}],"frames":[{"line":1}],` +
			`"groups":[{"kind":"Input","shape":null,"each_bytes":3}],` + members + `}`
	}
	event := func(group, stack, section int64) string {
		return history(fmt.Sprintf(`"events":[{"action":"mark","group":0,"stack":0},{"action":"mark","group":%d,"stack":%d,"section":%d}]`, group, stack, section))
	}
	many := func(n int) string { return `"x"` + strings.Repeat(`,"x"`, n-1) }
	for text, want := range map[string]string{
		event(0, 1, 1):     "",
		event(-1, -1, 0):   "",
		event(1, 0, 0):     "read history: event 1: group 1 of 1, stack 0 of 2, section 0 of 2",
		event(-2, 0, 0):    "event 1: group -2 of 1",
		event(0, 2, 0):     "event 1: group 0 of 1, stack 2 of 2",
		event(0, -2, 0):    "event 1: ",
		event(0, 0, 2):     "section 2 of 2",
		event(0, 1<<33, 0): "event 1: there is no group 0, stack 8589934592 or section 0",
		event(1<<31, 0, 0): "event 1: there is no group 2147483648",
		event(0, 0, 1<<16): "event 1: there is no group 0, stack 0 or section 65536",
		history(`"events":[{"action":"nothing"}]`):                              "not an action",
		history(`"events":[7]`):                                                 "cannot unmarshal number",
		strings.TrimSuffix(history(`"events":[`), "}"):                          "unexpected EOF",
		history(`"frees":[{"seq":1,"stack":0},{"seq":2,"stack":1}]`):            "",
		history(`"frees":[{"seq":1,"stack":0},{"seq":2,"stack":2}]`):            "read history: free 1: stack 2 of 2",
		history(`"frees":[{"seq":1,"stack":-1}]`):                               "free 0: stack -1 of 2",
		history(`"frees":[{"seq":1,"stack":0},{"seq":1,"stack":0}]`):            "free 1: it is not behind the one before it",
		history(`"frees":[{"seq":2,"stack":0},{"seq":1,"stack":0}]`):            "free 1: ",
		history(`"pools":[{"seq":1,"name":"a"},{"seq":2,"name":"b"}]`):          "",
		history(`"pools":[{"seq":2,"name":"a"},{"seq":1,"name":"b"}]`):          "read history: its pools are not in the order of their events",
		history(`"sections":[]`):                                                "it has no sections, not even the outside of all",
		history(`"sections":[` + many(tables.MaxSections) + `]`):                "",
		history(`"sections":[` + many(tables.MaxSections+1) + `]`):              "65537 sections, want at most 65536",
		history(`"streams":[1` + strings.Repeat(",1", 255) + `]`):               "",
		history(`"streams":[1` + strings.Repeat(",1", 256) + `]`):               "257 streams, want at most 256",
		history(`"version":4`):                                                  "read history: gpumemtrack.history of version 4",
		history(`"first":-1`):                                                   "cannot unmarshal number",
		history(`"stacks":[{"frames":[0]},{"frames":[1]}]`):                     "read history: stack 3: frame 1 of 1",
		history(`"groups":[{"kind":"Input"},{"kind":"Input","each_bytes":-1}]`): "read history: group 2: a buffer of -1 bytes",
		history(`"stacks":[7]`):                                                 "cannot unmarshal number",
	} {
		_, err := readHistory(text)
		if want == "" {
			assert.NoError(t, err, "%.300s", text)
		} else {
			assert.ErrorContains(t, err, want, "%.300s", text)
		}
	}
}
