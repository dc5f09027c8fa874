package tables

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

func buffers(n int) mem.Tally { return mem.Tally{Count: int64(n), Bytes: alloc.Bytes(n) * alloc.MiB} }

// follow enters the levels at a program's marks.
func follow(levels []int) *Series {
	s := NewSeries()
	for i, level := range levels {
		s.Level = buffers(level)
		s.Hold(i + 1)
	}
	return s
}

// TestSeriesHoldsLowWaterMarks compares it with all levels kept.
func TestSeriesHoldsLowWaterMarks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		levels := make([]int, random.IntN(700))
		for i := range levels {
			levels[i] = random.IntN(1000)
		}
		s := follow(levels)
		require.Equal(t, len(levels), s.marks)
		require.Less(t, len(levels)/s.width, windows+1)
		if s.width > 1 {
			require.GreaterOrEqual(t, len(levels)/s.width, windows/2)
		}
		for i, low := range s.full() {
			least := levels[i*s.width]
			for _, level := range levels[i*s.width : (i+1)*s.width] {
				least = min(least, level)
			}
			require.Equal(t, buffers(least), low)
		}
	}
}

// TestSeriesHoldsALevelForLong: what does not change need not be entered at each mark.
func TestSeriesHoldsALevelForLong(t *testing.T) {
	for _, marks := range []int{1, 31, 32, 33, 100, 1 << 20, 1<<30 + 1} {
		s := &Series{width: 1, Level: buffers(7)}
		s.Hold(marks)
		s.Level = buffers(3)
		s.Hold(marks) // no mark has seen it
		assert.Equal(t, marks, s.marks)
		for _, low := range s.full() {
			assert.Equal(t, buffers(7), low)
		}
	}
}

// TestWhatGrows follows the level of a line over so many marks.
func TestWhatGrows(t *testing.T) {
	for name, test := range map[string]struct {
		marks int
		level func(mark int) int
		grows bool
	}{
		"rises at each mark":         {32, func(i int) int { return i }, true},
		"for too short a time":       {31, func(i int) int { return i }, false},
		"rises in steps":             {90, func(i int) int { return i / 10 }, true},
		"in too few":                 {70, func(i int) int { return i / 10 }, false},
		"rises below a coming-going": {64, func(i int) int { return i/2 + 50*(i%2) }, true},
		"stays":                      {1000, func(int) int { return 5 }, false},
		"shrinks":                    {1000, func(i int) int { return 1000 - i }, false},
		"sawtooth":                   {1000, func(i int) int { return i % 25 }, false},
		"rose, then fell":            {1000, func(i int) int { return min(i, 1000-i) }, false},
		"falls a little at times":    {320, func(i int) int { return i - i%100/90*2 }, true},
		"falls a lot at times":       {320, func(i int) int { return i - i%100/90*100 }, false},
		"rose for long, has stopped": {1000, func(i int) int { return min(i, 850) }, false},
		"rose until lately":          {1000, func(i int) int { return min(i, 950) }, true},
		"began late":                 {1000, func(i int) int { return max(0, i-500) }, true},
		"began lately":               {1000, func(i int) int { return max(0, i-900) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			levels := make([]int, test.marks)
			for i := range levels {
				levels[i] = test.level(i)
			}
			assert.Equal(t, test.grows, follow(levels).Grows())
		})
	}
}
