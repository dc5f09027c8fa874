package bands_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
)

func indexOf(t testing.TB, m *model, host bool) *bands.Index {
	t.Helper()
	x, err := bands.New(t.Context(), m.dump, bands.NewNames(), host)
	require.NoError(t, err)
	return x
}

// TestIndexIsTheHistory: an index has the allocations of a random history, and the sum of those live at each moment.
func TestIndexIsTheHistory(t *testing.T) {
	for seed := range uint64(20) {
		m := newModel(seed, 400)
		for host, want := range map[bool][]life{false: m.lives, true: m.host} {
			x := indexOf(t, m, host)
			require.Equal(t, len(want), x.Len())
			for i, l := range want {
				born, died := x.Life(uint32(i))
				require.Equal(t, l, life{born, died, x.Bytes(uint32(i)), x.Ptr(uint32(i)), l.line, l.kind}, "allocation %d of seed %d", i, seed)
				assert.Equal(t, 10+l.line, x.Names.Frame(x.Line(uint32(i))).Line)
			}
			for moment := range x.Moments() {
				require.Equal(t, levelOf(want, moment), x.All.Level(moment))
			}
		}
	}
}

// checkTile compares a tile with the naive stack of each column.
func checkTile(t *testing.T, lives []life, ids []uint32, v bands.View, got *bands.Tile) {
	t.Helper()
	row := max(1, (v.Y1-v.Y0+int64(v.Rows)-1)/int64(v.Rows))
	inColumn := make([][]bands.Item, len(v.Columns))
	for i, item := range got.Items {
		require.Less(t, item.From, item.To)
		for c := item.From; c < item.To; c++ {
			inColumn[c] = append(inColumn[c], item)
		}
		if i > 0 {
			before := got.Items[i-1]
			require.False(t, item.From < before.From || item.From == before.From && item.Offset < before.Offset, "the order of the items")
		}
	}
	for c, column := range v.Columns {
		moment := got.Moments[c]
		require.True(t, column.From <= moment && moment <= column.To)
		level := levelOf(lives, moment)
		for other := column.From; other <= column.To; other++ {
			require.GreaterOrEqual(t, level, levelOf(lives, other), "a column shows its highest moment")
		}
		require.Equal(t, level, got.Levels[c])
		checkColumn(t, lives, ids, moment, row, v, inColumn[c])
	}
}

func checkColumn(t *testing.T, lives []life, ids []uint32, moment uint32, row int64, v bands.View, items []bands.Item) {
	t.Helper()
	require.LessOrEqual(t, len(items), 2*v.Rows+3)
	slices.SortStableFunc(items, func(a, b bands.Item) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Bytes, b.Bytes))
	})
	var sum int64
	at := make(map[int64]bands.Item) // by offset, of those with a height
	for _, item := range items {
		sum += item.Bytes
		at[item.Offset] = item
	}
	var below, covered int64
	var open bands.Item
	for i, l := range lives {
		if !l.liveAt(moment) {
			continue
		}
		top := below + l.bytes
		if item := at[below]; l.bytes > 0 && item.Bytes > 0 {
			open = item // which may begin below the view
		}
		if l.bytes > 0 && top > v.Y0 && below < v.Y1 {
			require.True(t, open.Offset <= below && top <= open.Offset+open.Bytes, "allocation %d at %d of moment %d is in an item", i, below, moment)
			if l.bytes >= row {
				require.Equal(t, ids[i], open.ID)
				require.Equal(t, int32(1), open.Count)
			}
			covered += l.bytes
		}
		below = top
	}
	if v.Y0 == 0 && v.Y1 > below {
		require.Equal(t, below, sum, "the sum of a column is what is live")
	}
	require.GreaterOrEqual(t, sum, covered)
	for i, item := range items {
		count, bytes := 0, int64(0)
		below := int64(0)
		for _, l := range lives {
			if l.liveAt(moment) {
				if below >= item.Offset && below+l.bytes <= item.Offset+item.Bytes && l.bytes > 0 {
					count++
					bytes += l.bytes
				}
				below += l.bytes
			}
		}
		require.Equal(t, bytes, item.Bytes, "item %d of moment %d", i, moment)
		require.GreaterOrEqual(t, int(item.Count), count, "the others have no bytes")
		if i > 0 {
			require.Equal(t, items[i-1].Offset+items[i-1].Bytes, item.Offset, "items lie on each other")
		}
	}
}

func places(n int) (ids []uint32) {
	for i := range n {
		ids = append(ids, uint32(i))
	}
	return ids
}

// TestTilesAreExact compares tiles of random views with the naive stack.
func TestTilesAreExact(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := newModel(seed, 300)
		x := indexOf(t, m, false)
		most := x.All.Level(x.All.Peak())
		for range 8 {
			x0 := r.Float64() * float64(x.Moments())
			x1 := x0 + r.Float64()*(float64(x.Moments())-x0)
			y0 := int64(r.Float64() * float64(most))
			v := bands.View{Y0: y0, Y1: y0 + 1 + int64(r.Float64()*float64(most)), Rows: 1 + r.IntN(100)}
			axis := bands.ByEvent
			if r.IntN(3) == 0 {
				v.Y0 = 0
			}
			if r.IntN(2) == 0 {
				axis = bands.ByTime
				x0, x1 = x0/float64(x.Moments())*x.Seconds(), x1/float64(x.Moments())*x.Seconds()
			}
			v.Columns = x.Columns(axis, x0, x1, 1+r.IntN(60))
			got, err := x.All.Tile(t.Context(), v)
			require.NoError(t, err)
			checkTile(t, m.lives, places(len(m.lives)), v, got)
		}
	}
}

// TestEveryAllocationIsShownOrPassed: a tile of everything counts each allocation once.
func TestEveryAllocationIsShownOrPassed(t *testing.T) {
	for seed := range uint64(20) {
		m := newModel(seed, 500)
		x := indexOf(t, m, false)
		for _, n := range []int{1, 7, 64, 1000} {
			from, to := x.Range(bands.ByEvent)
			v := bands.View{Columns: x.Columns(bands.ByEvent, from, to, n), Y1: x.All.Level(x.All.Peak()) + 1, Rows: 20}
			got, err := x.All.Tile(t.Context(), v)
			require.NoError(t, err)
			var passed, bytes int64
			for c := range n {
				passed += int64(got.Passed[c])
				bytes += got.PassedBytes[c]
			}
			for _, l := range m.lives {
				shown := false
				for _, moment := range got.Moments {
					shown = shown || l.liveAt(moment)
				}
				if !shown {
					passed--
					bytes -= l.bytes
				}
			}
			assert.Zero(t, passed)
			assert.Zero(t, bytes)
			assert.Contains(t, got.Moments, x.All.Peak(), "the peak is shown")
		}
	}
}

// TestFilteredTilesAreExact: a layer is the history of what passes.
func TestFilteredTilesAreExact(t *testing.T) {
	for seed := range uint64(20) {
		m := newModel(seed, 300)
		x := indexOf(t, m, false)
		r := rand.New(rand.NewPCG(seed, 3))
		lines := make(map[int]uint32)
		kinds := make(map[int]uint16)
		for i, l := range m.lives {
			lines[l.line], kinds[l.kind] = x.Line(uint32(i)), x.Kind(uint32(i))
		}
		line, kind, least := r.IntN(modelLines), r.IntN(3), int64(r.IntN(2000))
		id, ok := lines[line]
		if !ok {
			continue
		}
		for name, f := range map[string]struct {
			bands.Filter
			passes func(i int, l life) bool
		}{
			"line":  {bands.Filter{Lines: []uint32{id}}, func(_ int, l life) bool { return l.line == line }},
			"kind":  {bands.Filter{Kinds: []uint16{kinds[kind]}}, func(_ int, l life) bool { return l.kind == kind }},
			"bytes": {bands.Filter{MinBytes: least, MaxBytes: 4 * least}, func(_ int, l life) bool { return l.bytes >= least && (least == 0 || l.bytes <= 4*least) }},
			"text":  {bands.Filter{Text: "MAIN.go:1" + string(rune('0'+line))}, func(_ int, l life) bool { return l.line == line }},
			"life":  {bands.Filter{MinLife: 0.05}, func(i int, _ life) bool { return x.Lifetime(uint32(i)) >= 0.05 }},
			"stack": {bands.Filter{Stack: x.StackOf(0), Depth: 1}, func(i int, l life) bool { return l.line%2 == m.lives[0].line%2 }},
			"both":  {bands.Filter{Lines: []uint32{id}, MinBytes: least}, func(_ int, l life) bool { return l.line == line && l.bytes >= least }},
			"none":  {bands.Filter{Text: "nothing has this"}, func(int, life) bool { return false }},
		} {
			l, err := bands.NewLayer(t.Context(), x, f.Filter)
			require.NoError(t, err)
			var want []life
			var ids []uint32
			for i, l := range m.lives {
				if f.passes(i, l) {
					want, ids = append(want, l), append(ids, uint32(i))
				}
			}
			require.Equal(t, len(want), l.Len(), "%s of seed %d", name, seed)
			from, to := x.Range(bands.ByEvent)
			v := bands.View{Columns: x.Columns(bands.ByEvent, from, to, 50), Y1: l.Level(l.Peak()) + 1, Rows: 30}
			got, err := l.Tile(t.Context(), v)
			require.NoError(t, err)
			checkTile(t, want, ids, v, got)
		}
	}
}
