package setting

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Or is v, or its default where v is zero.
func Or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Flops is FLOPs of a shape and further factors.
func Flops(shape alloc.Shape, factors ...int) int64 { return Times(FLOPs(factors...), shape) }

// FLOPs multiplies its factors, and stays at the largest int64 where the
// product is larger; it is 0 where one of them is not positive.
func FLOPs(factors ...int) int64 { return Times(1, factors) }

func Times(n int64, factors []int) int64 {
	for _, f := range factors {
		if f <= 0 {
			return 0
		}
		if n > math.MaxInt64/int64(f) {
			return math.MaxInt64
		}
		n *= int64(f)
	}
	return n
}

func AddSat(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// MaxTotal bounds the sum of all tensors, so that no later sum can overflow.
const MaxTotal = 1 << 56

// MaxField bounds every setting of a layer, so that the product of two cannot
// overflow 64 bits.
const MaxField = math.MaxInt32

// Part is a share of n bytes among so many devices, rounded up.
func Part(n int64, devices int) int64 {
	return (n + int64(devices) - 1) / int64(devices)
}

// NumberIn is the first number in a path.
func NumberIn(at string) (n int, ok bool) {
	for part := range strings.SplitSeq(at, ".") {
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			return n, true
		}
	}
	return 0, false
}

func IsFloat(d alloc.DType) bool {
	return d == alloc.Float16 || d == alloc.BFloat16 || d == alloc.Float32 || d == alloc.Float64
}

// elementType reports a type that is none.
func elementType(option string, d alloc.DType) error {
	if d.Bits() == 0 {
		return fmt.Errorf("%s: %v is not an element type: want one of package alloc's, such as Float32", option, d)
	}
	return nil
}

// constant reports a value beyond the last of its constants.
func constant[T ~uint8](name string, v, last T, names string) error {
	if v > last {
		return fmt.Errorf("%s is %d: want one of the constants, %s", name, v, names)
	}
	return nil
}

// patterns reports one that path.Match does not take.
func patterns(option string, all []string) error {
	for _, p := range all {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%s: pattern %q: %w", option, p, err)
		}
	}
	return nil
}

// wrong is the error of an option that makes no sense. Its text begins with the option's name.
func wrong(format string, args ...any) error { return fmt.Errorf(format, args...) }
