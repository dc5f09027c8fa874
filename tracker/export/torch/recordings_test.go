package torch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callsite"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// walked is what testdata/walk.py prints of a device.
type walked struct {
	Events        int    `json:"events"`
	FirstLive     int64  `json:"first_live"`
	FirstReserved int64  `json:"first_reserved"`
	Live          int64  `json:"live"`
	Reserved      int64  `json:"reserved"`
	Count         int64  `json:"count"`
	Peak          int64  `json:"peak"`
	PeakReserved  int64  `json:"peak_reserved"`
	FreedAt       int    `json:"freed_at"`
	Series        string `json:"series"` // a hash of live and reserved bytes at every event
}

// golden returns what walk.py said of each recording, by file and device.
func golden(t *testing.T) (all map[string]map[string]walked) {
	text, err := os.ReadFile(filepath.Join("testdata", "recordings.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	return all
}

// walkThrough does with a dump what walk.py does with a file.
func walkThrough(d *snapshot.Dump) walked {
	step := func(e snapshot.Event) (live, reserved alloc.Bytes, counts bool) {
		switch e.Action {
		case mem.Allocated:
			return e.Requested, 0, true
		case mem.Freed:
			return -e.Requested, 0, true
		case mem.SegmentAllocated:
			return 0, e.Allocated, true
		case mem.SegmentFreed:
			return 0, -e.Allocated, true
		}
		return 0, 0, false
	}
	live, reserved := d.Snapshot.Live.Bytes, d.Snapshot.Reserved
	out := walked{Live: int64(live), Reserved: int64(reserved), Count: d.Snapshot.Live.Count}
	for e := range d.Events() {
		l, r, counts := step(e)
		live, reserved = live-l, reserved-r
		if counts {
			out.Events++
		}
		if e.Action == mem.Freed && e.FreedAt != nil {
			out.FreedAt++
		}
	}
	out.FirstLive, out.FirstReserved = int64(live), int64(reserved)
	series := sha256.New()
	see := func() {
		fmt.Fprintf(series, "%d %d\n", live, reserved)
		out.Peak, out.PeakReserved = max(out.Peak, int64(live)), max(out.PeakReserved, int64(reserved))
	}
	see()
	for e := range d.Events() {
		if l, r, counts := step(e); counts {
			live, reserved = live+l, reserved+r
			see()
		}
	}
	out.Series = hex.EncodeToString(series.Sum(nil))[:16]
	return out
}

func readRecording(t *testing.T, name string) *contents {
	f, err := os.Open(filepath.Join(outside.Folder(t, "recordings"), name))
	require.NoError(t, err)
	defer f.Close()
	c, err := read(f)
	require.NoError(t, err)
	return c
}

// TestLevelsAtEveryEvent holds live, peak and reserved bytes at every event of every
// recording against the golden values.
func TestLevelsAtEveryEvent(t *testing.T) {
	outside.Folder(t, "recordings")
	for name, devices := range golden(t) {
		t.Run(name, func(t *testing.T) {
			c := readRecording(t, name)
			got := make(map[string]walked)
			for _, d := range append(c.Dump.Others, c.Dump) {
				w := walkThrough(d)
				got[strconv.Itoa(d.Snapshot.Ordinal)] = w
				assert.EqualValues(t, w.Peak, d.Snapshot.Peak.Bytes, "device %d", d.Snapshot.Ordinal)
				requireWhole(t, d)
			}
			assert.Equal(t, devices, got)
		})
	}
}

// requireWhole checks what must be true of every dump: the tables add up.
func requireWhole(t *testing.T, d *snapshot.Dump) {
	s := d.Snapshot
	var live, peak, total, buffers mem.Tally
	for site := range s.CallSites() {
		live, peak, total = live.Add(site.Live), peak.Add(site.Peak), total.Add(site.Total)
	}
	var allocated, reserved, inBlocks alloc.Bytes
	for a := range s.Allocations() {
		buffers = buffers.Add(mem.Tally{Count: 1, Bytes: a.Requested})
		allocated += a.Allocated
		require.Less(t, a.Seq, s.Events)
	}
	for _, segment := range s.Segments {
		reserved += segment.Size
		at := segment.Ptr
		for _, b := range segment.Blocks {
			require.Equal(t, at, b.Ptr, "blocks tile their segment")
			at += alloc.Ptr(b.Size)
			if b.State != alloc.Inactive {
				inBlocks += b.Size
			}
		}
		require.Equal(t, segment.Ptr+alloc.Ptr(segment.Size), at)
	}
	assert.Equal(t, s.Live, live)
	assert.Equal(t, s.Peak, peak)
	assert.Equal(t, s.Total, total)
	assert.Equal(t, s.Live, buffers)
	assert.Equal(t, s.Allocated, allocated)
	assert.Equal(t, s.Allocated, inBlocks)
	assert.Equal(t, s.Reserved, reserved)
}

// TestWalkSaysTheSame holds the golden values against the script that made them.
func TestWalkSaysTheSame(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not in PATH")
	}
	dir := outside.Folder(t, "recordings")
	for name, want := range golden(t) {
		out, err := exec.Command(python, filepath.Join("testdata", "walk.py"), filepath.Join(dir, name)).Output()
		require.NoError(t, err)
		var got map[string]walked
		require.NoError(t, json.Unmarshal(out, &got))
		assert.Equal(t, want, got, name)
	}
}

// TestNoByteIsNamedAfterTheCapture: a stack that has more than the frames of its
// capture is named by one of them.
func TestNoByteIsNamedAfterTheCapture(t *testing.T) {
	outside.Folder(t, "recordings")
	for name := range golden(t) {
		c := readRecording(t, name)
		for _, row := range c.Usage.Rows {
			if len(row.Stack) == 0 {
				continue
			}
			require.NotZero(t, row.CallSite, name)
			for _, of := range []string{"unwind", "CapturedTraceback", "gather_with_cpp"} {
				require.False(t, strings.Contains(row.CallSite.Function, of), "%s: %v", name, row.CallSite)
			}
		}
	}
}

// TestBackwardPassesAreNamedByTheirOperations sums up a training step.
func TestBackwardPassesAreNamedByTheirOperations(t *testing.T) {
	c := readRecording(t, "lm4-adam-bf16-ctx200.pickle.gz")
	ever := make(map[string]alloc.Bytes)
	for _, row := range c.Usage.Rows {
		ever[callsite.Name(row.CallSite.Function)] += row.Total.Bytes
	}
	assert.Positive(t, ever["autograd BmmBackward0"])
	assert.Positive(t, ever["autograd MulBackward0"])
}

// TestAnOutOfMemoryErrorIsTold: the program freed nearly all before it took the snapshot.
func TestAnOutOfMemoryErrorIsTold(t *testing.T) {
	r := readRecording(t, "gcn-qwen3embed-3gpu-expandable-oom.pickle.gz").Dump
	require.NotNil(t, r.OOM)
	assert.Equal(t, 1, r.Snapshot.Ordinal)
	assert.Equal(t, "out of memory", r.Reason)
	assert.Positive(t, r.OOM.Requested)
	assert.Less(t, r.OOM.Free, r.OOM.Requested)
	var sites alloc.Bytes
	for _, s := range r.OOM.CallSites {
		sites += s.Bytes
	}
	assert.Greater(t, sites, r.Snapshot.Peak.Bytes*9/10, "the lines that hold most, at that moment")
	for _, other := range r.Others {
		assert.Nil(t, other.OOM)
	}
	var b bytes.Buffer
	require.NoError(t, r.WriteJSON(&b))
	back, err := snapshot.ReadDump(&b)
	require.NoError(t, err)
	assert.Equal(t, r.OOM, back.OOM)
	assert.Equal(t, headOf(r), headOf(back))
	assert.Equal(t, walkThrough(r), walkThrough(back))
}

// TestWhatPyTorchAloneTells: streams, private pools, pending blocks, annotations and
// settings of recordings.
func TestWhatPyTorchAloneTells(t *testing.T) {
	streams := make(map[alloc.Stream]bool)
	for e := range readRecording(t, "llama7b-offload-10streams.pickle.gz").Dump.Events() {
		streams[e.Stream] = true
	}
	assert.Len(t, streams, 10)

	var pending, labelled int
	s := readRecording(t, "verl-vllm-private-pools.pickle.gz").Dump.Snapshot
	for _, segment := range s.Segments {
		for _, b := range segment.Blocks {
			if b.State == alloc.Pending {
				pending++
			}
		}
	}
	for a := range s.Allocations() {
		if a.Label != "" {
			labelled++
		}
	}
	assert.Equal(t, 9, pending)
	assert.Equal(t, 9, labelled)

	r := readRecording(t, "lm4-adam-bf16-ctx200.pickle.gz").Dump
	var sections []string
	for e := range r.Events() {
		if e.Action == mem.SectionBegan {
			sections = append(sections, e.Section)
		}
	}
	assert.Len(t, sections, 6)
	assert.Equal(t, "Optimizer.zero_grad#UserOptimizer.zero_grad", sections[0])
	assert.Equal(t, "-1", r.Snapshot.Settings["max_split_size"])
	assert.Equal(t, "0", r.Snapshot.Settings["roundup_power2_divisions.512"])
}
