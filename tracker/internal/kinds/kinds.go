// Package kinds has the rules for the names of kinds, for all that takes or lists them. It knows only names: mem.Kind is
// their type.
package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// most bounds the length of a kind: one goes into every report line and metric label.
const most = 64

// Known are package tracker's kinds, in the order of reports. The first is Unspecified.
var Known = [...]string{"", "Parameter", "Gradient", "OptimizerState", "Activation", "Input", "Temporary"}

// Compare orders kinds as reports do: those of Known first, then the others by name.
func Compare[K ~string](a, b K) int {
	return cmp.Or(cmp.Compare(rank(string(a)), rank(string(b))), cmp.Compare(a, b))
}

func rank(name string) int {
	if i := slices.Index(Known[:], name); i >= 0 {
		return i
	}
	return len(Known)
}

// Check returns an error if the kind is not valid.
func Check(kind string) error {
	// The errors do not refer to the kind: otherwise each Alloc would move the tensor that contains it, and with it the
	// shape, to the heap.
	switch kind {
	case "", "Parameter", "Gradient", "OptimizerState", "Activation", "Input", "Temporary":
		return nil
	case "Tensor", "Unspecified":
		return fmt.Errorf("kind %q: write tracker.Unspecified", strings.Clone(kind))
	}
	if len(kind) > most {
		return fmt.Errorf("kind %q...: it has %d bytes, want at most %d", strings.Clone(kind[:most]), len(kind), most)
	}
	if !utf8.ValidString(kind) || slices.ContainsFunc([]rune(kind), func(r rune) bool { return !strconv.IsPrint(r) }) {
		return fmt.Errorf("kind %q: want printable UTF-8", strings.Clone(kind))
	}
	return nil
}
