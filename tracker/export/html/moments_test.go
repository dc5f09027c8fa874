package html_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// recording reads a recording of a GPU, the device that ran out of memory first.
func recording(t *testing.T, name string) *snapshot.Dump {
	t.Helper()
	f, err := files.ReadFile(filepath.Join(outside.Folder(t, "recordings"), name))
	require.NoError(t, err)
	return f.Dump
}

// exact compares each moment of a page with the state that a walk back finds, and with the chart.
func exact(t *testing.T, r *snapshot.Dump) content {
	t.Helper()
	page := write(t, r)
	assert.LessOrEqual(t, len(page), 2<<20)
	c := contentOf(t, page)
	for i, m := range c.Moments {
		s, err := rewind.At(r, m.Event)
		require.NoError(t, err)
		shown := c.at(i)
		require.Equal(t, s.Live, mem.Tally{Count: m.Count, Bytes: alloc.Bytes(m.Live)}, "moment %d", i)
		require.Equal(t, s.Live, shown.of())
		require.Equal(t, int64(s.Allocated), m.Allocated)
		require.Equal(t, int64(s.Reserved), m.Reserved)
		var inFrames mem.Tally
		for _, t := range shown.frames {
			inFrames = inFrames.Add(t)
		}
		require.Equal(t, s.Live, inFrames)
		var onChart, reserved, used alloc.Bytes
		for _, layer := range c.Timeline.Kinds {
			onChart += layer.Bytes[m.At]
		}
		require.Equal(t, s.Live.Bytes, onChart)
		for _, segment := range shown.segments {
			reserved += alloc.Bytes(segment.Size)
			used += alloc.Bytes(segment.Used)
		}
		if m.Segments != nil {
			require.Equal(t, s.Reserved, reserved+alloc.Bytes(m.Segments.MoreSize))
		}
		if m.Segments != nil && m.Segments.More == 0 && s.Registered == 0 {
			require.Equal(t, s.Allocated, used, "moment %d", i)
		}
	}
	return c
}

// TestMoments of random programs: each is exact, whatever is left out, and the peak is among them.
func TestMoments(t *testing.T) {
	kinds := mem.Kinds()
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 0))
		tr := exporttest.New(t, tracker.Config{MaxEvents: []int{1 << 20, 1000}[seed%2]})
		var live []*tracker.Buffer
		for i := range 4000 {
			if n := len(live); n > 0 && random.IntN(5) < 2 {
				i := random.IntN(n)
				require.NoError(t, live[i].Free())
				live = slices.Delete(live, i, i+1)
				continue
			}
			b, err := tr.AllocBytes(alloc.Bytes(1+random.IntN(1<<20)), kinds[random.IntN(len(kinds))])
			require.NoError(t, err)
			live = append(live, b)
			if i%500 == 0 {
				tr.Track()
			}
		}
		r := tr.Dump()
		c := exact(t, r)
		assert.Greater(t, len(c.Moments), 80)
		assert.LessOrEqual(t, len(c.Moments), 125)
		assert.Equal(t, r.Snapshot.Peak, c.at(c.named(t, "the peak")).of())
		assert.Equal(t, len(c.Moments)-1, c.Moment, "it opens at the end")
	}
}

// TestMomentsOfRecordings: the page of a file of PyTorch is exact at each moment, and has nothing that the file
// cannot tell.
func TestMomentsOfRecordings(t *testing.T) {
	for _, name := range []string{"transformer-step-128.pickle.gz", "lm4-adam-bf16-ctx200.pickle.gz", "image-batches.pickle.gz", "new/gradients-256-bf16.pickle.gz"} {
		t.Run(name, func(t *testing.T) {
			r := recording(t, name)
			c := exact(t, r)
			assert.Greater(t, len(c.Moments), 80)
			assert.Empty(t, c.Kinds)
			assert.NotEmpty(t, c.Uses, "blocks are told apart by line of code")
			page := write(t, r)
			contains(t, page, "torch.cuda.empty_cache() would give back")
			for _, not := range []string{"<th>Kind", "<th>Shape", "<th>Type", "<h2>Marks", "ClearCache", "Live bytes by kind"} {
				assert.False(t, strings.Contains(page, not), not)
			}
		})
	}
}

// TestPageOpensAtTheError of a program that freed all after it.
func TestPageOpensAtTheError(t *testing.T) {
	r := recording(t, "gcn-qwen3embed-3gpu-expandable-oom.pickle.gz")
	page := write(t, r)
	contains(t, page, "<li>78.4 GiB reserved by this program</li><li>132.9 MiB of that inactive, ready for reuse</li>")
	c := contentOf(t, page)
	opened := c.Moments[c.Moment]
	assert.Contains(t, opened.Names, "the error")
	assert.Equal(t, "78.3 GiB", alloc.Bytes(opened.Live).String())
	var most group
	for _, g := range c.at(c.Moment).groups {
		if g.tally.Bytes > most.tally.Bytes {
			most = g
		}
	}
	assert.Equal(t, "part3.py:174 step2", most.Site)
	assert.Equal(t, "384.8 MiB", alloc.Bytes(c.Moments[c.named(t, "the end")].Live).String())
}

// TestPageWithoutAHistory shows the end, and the peak as the call stacks tell of it.
func TestPageWithoutAHistory(t *testing.T) {
	r := dump(t)
	r.History = snapshot.History{}
	c := contentOf(t, write(t, r))
	require.Len(t, c.Moments, 2)
	assert.Equal(t, -1, c.Moments[0].At)
	assert.Equal(t, r.Snapshot.Peak, c.at(c.named(t, "the peak")).of())
	assert.Equal(t, r.Snapshot.Live, c.at(c.named(t, "the end")).of())
	assert.Len(t, c.at(1).segments, len(r.Snapshot.Segments))
}
