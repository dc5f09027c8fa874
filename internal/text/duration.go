package text

import (
	"math"
	"strconv"
	"time"
)

// Duration prints a duration with two digits, rounded up: "68 ms", "1.1 s", "18 s".
func Duration(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}}
	unit := units[len(units)-1]
	for _, u := range units {
		if d >= u.size {
			unit = u
			break
		}
	}
	n := float64(d) / float64(unit.size)
	if n < 10 {
		n = math.Ceil(10*n) / 10
	}
	if n >= 10 {
		n = math.Ceil(n)
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + " " + unit.name
}
