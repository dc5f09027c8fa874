package cache

import (
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func gaugeAdd[T ~int64](g *alloc.Gauge[T], change T) {
	g.Current += change
	if change > 0 {
		if g.Total += change; g.Total < 0 {
			g.Total = math.MaxInt64
		}
		g.Peak = max(g.Peak, g.Current)
	}
}

// gaugeRestore adds back what was taken off, without counting it in Total.
func gaugeRestore[T ~int64](g *alloc.Gauge[T], change T) {
	g.Current += change
	g.Peak = max(g.Peak, g.Current)
}

func usageAdd(u *alloc.Usage, bytes alloc.Bytes, count int64) {
	gaugeAdd(&u.Bytes, bytes)
	gaugeAdd(&u.Count, count)
}

func usageRestore(u *alloc.Usage, bytes alloc.Bytes, count int64) {
	gaugeRestore(&u.Bytes, bytes)
	gaugeRestore(&u.Count, count)
}

func usageResetPeak(u *alloc.Usage) {
	u.Bytes.Peak = u.Bytes.Current
	u.Count.Peak = u.Count.Current
}
