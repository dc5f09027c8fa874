// Package saturate adds and subtracts numbers of 64 bits that stop at their bounds.
package saturate

import "math"

// Add returns a + b or, if that does not fit, the nearest number that does.
func Add[N ~int64](a, b N) N {
	switch s := a + b; {
	case a > 0 && b > 0 && s < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && s >= 0:
		return math.MinInt64
	default:
		return s
	}
}

// Sub returns a - b or, if that does not fit, the nearest number that does.
func Sub[N ~int64](a, b N) N {
	switch d := a - b; {
	case a >= 0 && b < 0 && d < 0:
		return math.MaxInt64
	case a < 0 && b > 0 && d >= 0:
		return math.MinInt64
	default:
		return d
	}
}
