package bands_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
)

// TestSumsAreThoseOfTheHistory compares tables and flame graphs of random selections with naive sums.
func TestSumsAreThoseOfTheHistory(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := newModel(seed, 300)
		x := indexOf(t, m, false)
		x0, x1 := r.Float64()*x.Seconds(), x.Seconds()
		x0, x1 = min(x0, x1/2), x0+r.Float64()*(x1-x0)
		moment := uint32(r.IntN(int(x.Moments())))
		s := bands.Select(x, moment, bands.ByTime, x0, x1)
		var lifetime float64
		var born, touching, live int64
		for _, l := range m.lives {
			died := x.Seconds()
			if l.died != bands.Forever {
				died = x.At(l.died)
			}
			lifetime += float64(l.bytes) * max(0, min(died, x1)-max(x.At(l.born), x0))
			if l.born <= s.Range.To && l.died > s.Range.From {
				touching++
				if l.born >= s.Range.From {
					born += l.bytes
				}
			}
			if l.liveAt(moment) {
				live++
			}
		}
		for _, by := range []bands.Key{bands.ByLine, bands.ByKind, bands.ByCallStack, bands.BySize} {
			rows, total, err := bands.Table(t.Context(), x, x.All, by, s)
			require.NoError(t, err)
			var sum bands.Sums
			for _, row := range rows {
				sum.LiveBytes += row.LiveBytes
				sum.BornBytes += row.BornBytes
				sum.Lifetime += row.Lifetime
				sum.PeakBytes += row.PeakBytes
			}
			assert.Equal(t, levelOf(m.lives, moment), total.LiveBytes)
			assert.Equal(t, live, total.LiveCount)
			assert.Equal(t, x.All.Level(x.All.Peak()), total.PeakBytes)
			assert.Equal(t, born, total.BornBytes)
			assert.InEpsilon(t, 1+lifetime, 1+total.Lifetime, 1e-9)
			assert.InEpsilon(t, 1+lifetime, 1+sum.Lifetime, 1e-9)
			assert.Equal(t, [3]int64{total.LiveBytes, total.BornBytes, total.PeakBytes}, [3]int64{sum.LiveBytes, sum.BornBytes, sum.PeakBytes})
		}
		for _, most := range []int{1, 3, 1000} {
			for lifetimes, want := range map[bool]float64{false: float64(levelOf(m.lives, moment)), true: lifetime} {
				root, err := bands.Flame(t.Context(), x, x.All, s, lifetimes, most)
				require.NoError(t, err)
				assert.InEpsilon(t, 1+want, 1+root.Value, 1e-9)
				frames := -1
				checkFlame(t, root, &frames)
				assert.LessOrEqual(t, frames, 2*most+2)
			}
		}
		_, n, bytes, err := bands.List(t.Context(), x.All, bands.Column{From: moment, To: moment}, func(id uint32) float64 { return float64(x.Bytes(id)) }, 0, 5)
		require.NoError(t, err)
		assert.EqualValues(t, live, n)
		assert.Equal(t, levelOf(m.lives, moment), bytes)
		_, n, _, err = bands.List(t.Context(), x.All, s.Range, x.Lifetime, 3, 5)
		require.NoError(t, err)
		assert.EqualValues(t, touching, n)
	}
}

// checkFlame holds that no call has more than its caller, and that nothing is lost where a frame calls others.
func checkFlame(t *testing.T, f *bands.Frame, frames *int) {
	t.Helper()
	*frames++
	var sum float64
	for i, c := range f.Children {
		sum += c.Value
		assert.Equal(t, f.Depth+1, c.Depth)
		if i > 0 && c.Stack != bands.None {
			assert.LessOrEqual(t, c.Value, f.Children[i-1].Value)
		}
		checkFlame(t, c, frames)
	}
	if len(f.Children) > 0 {
		assert.InEpsilon(t, 1+f.Value, 1+sum, 1e-9) // the stacks of the model end at one depth
	}
}

// TestNeighboursHadTheAddress: who had an address before and after are the next in time among those that overlap it.
func TestNeighboursHadTheAddress(t *testing.T) {
	x, err := bands.New(t.Context(), benchDump(), bands.NewNames(), false)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(5, 5))
	for range 5 {
		id := uint32(r.IntN(x.Len()))
		d := bands.Describe(x, id)
		born, died := x.Life(id)
		before, after, n := -1, -1, 0
		for other := range uint32(x.Len()) {
			if other == id || x.Ptr(other) != x.Ptr(id) {
				continue
			}
			n++
			if b, e := x.Life(other); e <= born {
				before = int(other)
			} else if b >= died && after < 0 {
				after = int(other)
			}
		}
		for want, got := range map[int]*uint32{before: d.Before, after: d.After} {
			if want < 0 {
				continue
			}
			require.NotNil(t, got)
			assert.EqualValues(t, want, *got)
		}
		found := d.BeforeMore + d.AfterMore
		for _, p := range []*uint32{d.Before, d.After} {
			if p != nil {
				found++
			}
		}
		assert.Equal(t, n, found)
	}
}
