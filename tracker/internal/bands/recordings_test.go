package bands_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// everyRecording calls test with the index of each device of each recording of a GPU, and of what PyTorch wrote for tests.
func everyRecording(t *testing.T, test func(t *testing.T, x *bands.Index)) {
	folder := outside.Folder(t, "recordings")
	for _, pattern := range []string{
		filepath.Join(folder, "*.pickle.gz"), filepath.Join(folder, "new", "*.pickle.gz"),
		filepath.Join("..", "..", "export", "torch", "testdata", "*.pickle"),
	} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, paths, pattern)
		for _, path := range paths {
			f, err := files.ReadFile(path)
			require.NoError(t, err, path)
			for _, d := range append([]*snapshot.Dump{f.Dump}, f.Dump.Others...) {
				t.Run(filepath.Base(path), func(t *testing.T) {
					x, err := bands.New(t.Context(), d, bands.NewNames(), false)
					require.NoError(t, err)
					test(t, x)
				})
			}
		}
	}
}

// TestPeaksOfRecordings: the peak is the one that gpumemtrack show finds, in bytes and buffers. As much is live at its moment:
// where the beginning of the history has as much, rewind takes the first event that leaves it so.
func TestPeaksOfRecordings(t *testing.T) {
	everyRecording(t, func(t *testing.T, x *bands.Index) {
		if x.Moments() == 1 {
			t.Skip("no events")
		}
		peak := x.All.Peak()
		want, moment, err := rewind.To(x.Dump, "peak")
		require.NoError(t, err)
		assert.EqualValues(t, want.Live.Bytes, x.All.Level(peak))
		assert.EqualValues(t, want.Live.Count, x.All.Count(peak))
		assert.Equal(t, x.All.Level(peak), x.All.Level(uint32(moment.Event-x.First())))
		if peak > 0 {
			assert.Equal(t, moment.Event, x.First()+uint64(peak))
		}
	})
}

// TestColumnsOfRecordings: what a column shows adds up to what is live at its moment.
func TestColumnsOfRecordings(t *testing.T) {
	everyRecording(t, func(t *testing.T, x *bands.Index) {
		from, to := x.Range(bands.ByEvent)
		for _, rows := range []int{1, 7, 300} {
			v := bands.View{Columns: x.Columns(bands.ByEvent, from, to, 500), Y1: x.All.Level(x.All.Peak()) + 1, Rows: rows}
			tile, err := x.All.Tile(t.Context(), v)
			require.NoError(t, err)
			bytes, counts := make([]int64, len(v.Columns)), make([]int, len(v.Columns))
			for _, item := range tile.Items {
				for c := item.From; c < item.To; c++ {
					bytes[c] += item.Bytes
					counts[c] += int(item.Count)
				}
			}
			for c, moment := range tile.Moments {
				require.Equal(t, x.All.Level(moment), bytes[c], "column %d", c)
				require.Equal(t, x.All.Count(moment), counts[c], "column %d", c)
			}
		}
	})
}

// TestNeighboursInRecordings: those that had an address before and after are found among all that overlap it.
func TestNeighboursInRecordings(t *testing.T) {
	everyRecording(t, func(t *testing.T, x *bands.Index) {
		if x.Len() == 0 {
			t.Skip("no allocations")
		}
		sizes := make(map[uint32]alloc.Bytes)
		sizeOf := func(id uint32) alloc.Bytes {
			if _, ok := sizes[id]; !ok {
				sizes[id] = bands.Describe(x, id).Allocated
			}
			return sizes[id]
		}
		r := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			id := uint32(r.IntN(x.Len()))
			d := bands.Describe(x, id)
			born, died := x.Life(id)
			before, after := 0, 0
			for other := range uint32(x.Len()) {
				p, q := x.Ptr(id), x.Ptr(other)
				if other == id || p >= q+alloc.Ptr(sizeOf(other)) || q >= p+alloc.Ptr(d.Allocated) {
					continue
				}
				b, e := x.Life(other)
				switch {
				case e <= born:
					before++
					require.NotNil(t, d.Before)
					_, latest := x.Life(*d.Before)
					require.LessOrEqual(t, e, latest)
				case b >= died:
					after++
					require.NotNil(t, d.After)
					first, _ := x.Life(*d.After)
					require.GreaterOrEqual(t, b, first)
				}
			}
			require.Equal(t, max(0, before-1), d.BeforeMore)
			require.Equal(t, max(0, after-1), d.AfterMore)
			require.Equal(t, before > 0, d.Before != nil)
			require.Equal(t, after > 0, d.After != nil)
		}
	})
}
