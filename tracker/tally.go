package tracker

import (
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Tally is a number of buffers and their requested bytes, or a signed
// difference of two such.
type Tally struct {
	Count int64       `json:"count"`
	Bytes alloc.Bytes `json:"bytes"`
}

func (a *Tally) add(count int64, bytes alloc.Bytes) {
	a.Count = saturated(a.Count, count)
	a.Bytes = saturated(a.Bytes, bytes)
}

// saturated returns a + b, or the nearest number that there is.
func saturated[T ~int64](a, b T) T {
	sum := a + b
	switch {
	case b > 0 && sum < a:
		return math.MaxInt64
	case b < 0 && sum > a:
		return math.MinInt64
	}
	return sum
}

// Add returns the sum, or the nearest that 64 bits hold.
func (a Tally) Add(b Tally) Tally {
	return Tally{saturated(a.Count, b.Count), saturated(a.Bytes, b.Bytes)}
}

// Sub returns the difference a - b.
func (a Tally) Sub(b Tally) Tally { return Tally{a.Count - b.Count, a.Bytes - b.Bytes} }

// IsZero reports whether there is nothing.
func (a Tally) IsZero() bool { return a == Tally{} }

// String prints the tally on one line: "3 buffers, 6.8 MiB".
func (a Tally) String() string {
	if a.Count == 1 {
		return fmt.Sprintf("1 buffer, %v", a.Bytes)
	}
	return fmt.Sprintf("%d buffers, %v", a.Count, a.Bytes)
}
