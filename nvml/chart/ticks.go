package chart

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
)

// ticks marks an axis at multiples of 1, 2 or 5 times a power of ten, at most
// so many of them, and prints no more decimals than they need. They count in a unit.
type ticks struct {
	most int
	unit float64
}

// roomFor returns how many ticks an axis has room for, at least so far from each other.
func roomFor(length, apart vg.Length) int { return max(2, int(length/apart)) }

// Ticks implements plot.Ticker.
func (t ticks) Ticks(from, to float64) []plot.Tick {
	from, to = from/t.unit, to/t.unit
	step := niceStep((to - from) / float64(t.most))
	decimals := max(0, int(-math.Floor(math.Log10(step))))
	var marks []plot.Tick
	// Adding nothing makes a zero of a negative zero.
	for i := math.Ceil(from/step-1e-9) + 0; i*step <= to+step*1e-9; i++ {
		v := i * step
		marks = append(marks, plot.Tick{Value: v * t.unit, Label: strconv.FormatFloat(v, 'f', decimals, 64)})
	}
	return marks
}

func niceStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= least {
			return m * power
		}
	}
	return 10 * power
}
