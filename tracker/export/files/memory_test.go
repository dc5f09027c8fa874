package files_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/timeline"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// ofAllKinds is a dump with a megabyte in each type of memory.
func ofAllKinds(t *testing.T) *snapshot.Dump {
	tr := exporttest.New(t, tracker.Config{})
	for i, m := range alloc.Memories() {
		require.NoError(t, tr.Register(alloc.Ptr(0x7000_0000+i<<20), m, alloc.Shape{1 << 20}, alloc.Uint8, tracker.Input))
	}
	_, err := tr.Unregister(0x7000_0000)
	require.NoError(t, err)
	tr.Track()
	return tr.Dump()
}

// TestKindsOfMemoryInEachFormat writes and reads again: no format counts host memory as the
// device's, and each keeps the other kinds.
func TestKindsOfMemoryInEachFormat(t *testing.T) {
	r := ofAllKinds(t)
	for name, test := range map[string]struct {
		write func(io.Writer, *snapshot.Dump) error
		host  bool // the format has host memory too
	}{
		"snapshot": {func(w io.Writer, r *snapshot.Dump) error { return r.Snapshot.WriteJSON(w) }, true},
		"dump":     {func(w io.Writer, r *snapshot.Dump) error { return r.WriteJSON(w) }, true},
		"pprof":    {pprof.Write, true},
		"torch":    {torch.Write, false},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			require.NoError(t, test.write(&b, r))
			f, err := files.Read(&b)
			require.NoError(t, err)
			device, sum := export.Compare(nil, []*export.Usage{f.Usage}, "memory", "live")
			assert.Equal(t, r.Snapshot.Live, sum.After)
			assert.ElementsMatch(t, []string{"pool", "managed", "virtual", "array", "imported"}, keys(device))
			host, sum := export.Compare(nil, []*export.Usage{{Rows: f.Usage.Host}}, "memory", "live")
			if !test.host {
				assert.Empty(t, host)
				return
			}
			assert.ElementsMatch(t, []string{"pinned", "mapped"}, keys(host))
			assert.Equal(t, r.Snapshot.Host(), sum.After)
		})
	}
}

func keys(lines []export.Line) (names []string) {
	for _, l := range lines {
		names = append(names, l.Key)
	}
	return names
}

// TestEventsOfAllKinds: what only a history tells is of the device too.
func TestEventsOfAllKinds(t *testing.T) {
	r := ofAllKinds(t)
	line := timeline.New(r)
	last := len(line.Kinds[0].Bytes) - 1
	assert.Equal(t, r.Snapshot.Live.Bytes, line.Kinds[0].Bytes[last])
	assert.Equal(t, r.Snapshot.Allocated, *line.Allocated[last])

	before, err := rewind.At(r, 5)
	require.NoError(t, err)
	assert.Equal(t, mem.Tally{Count: 3, Bytes: 3 * alloc.MiB}, before.Live, "device, pool, managed")
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 2 * alloc.MiB}, before.Host())
	assert.Equal(t, 2*alloc.MiB, before.HostReserved)
}

func TestPagesAndTracesTellOfHostMemory(t *testing.T) {
	r := ofAllKinds(t)
	var page, events bytes.Buffer
	require.NoError(t, html.Write(&page, r))
	assert.Contains(t, page.String(), `id="pinned"`)
	assert.Contains(t, page.String(), "1 buffer, on the host")
	assert.Contains(t, page.String(), `"memory":"managed"`)
	require.NoError(t, trace.Write(&events, r))
	assert.Contains(t, events.String(), `"name":"host memory"`)
	assert.Contains(t, events.String(), `"args":{"bytes":2097152}`)
}
