package setting

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Or returns v, or otherwise if v is zero.
func Or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Flops returns the product of a shape's dimensions and further factors: see FLOPs.
func Flops(shape alloc.Shape, factors ...int) int64 { return Times(FLOPs(factors...), shape) }

// FLOPs multiplies its factors. The largest int64 stands for any larger product; the result is 0 if
// a factor is not positive.
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

// Part returns one device's share of n bytes, rounded up.
func Part(n int64, devices int) int64 {
	return (n + int64(devices) - 1) / int64(devices)
}

// NumberIn returns the first number in a path.
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

// elementType returns an error if d is not an element type.
func elementType(option string, d alloc.DType) error {
	if d.Bits() == 0 {
		return fmt.Errorf("%s: %v is not an element type: want one of package alloc's, such as Float32", option, d)
	}
	return nil
}

// word returns an error if w is neither empty nor one of the words of a setting.
func word[W ~string](name string, w W, words ...W) error {
	if w == "" || slices.Contains(words, w) {
		return nil
	}
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	return fmt.Errorf("%s is %q: want one of %s", name, w, strings.Join(all, ", "))
}

// patterns returns an error for the first pattern that path.Match does not accept.
func patterns(option string, all []string) error {
	for _, p := range all {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%s: pattern %q: %w", option, p, err)
		}
	}
	return nil
}

// wrong makes the error of an option that makes no sense. Its text begins with the option's name.
func wrong(format string, args ...any) error { return fmt.Errorf(format, args...) }
