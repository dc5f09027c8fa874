package mem

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind says what a buffer is for. The kinds of PyTorch's memory profiler
// (torch.profiler._memory_profiler.Category) are constants of package tracker: Parameter, Gradient,
// OptimizerState, Activation, Input and Temporary. The zero Kind is Unspecified there, and prints as
// "Tensor". A program can have others:
//
//	const KVCache tracker.Kind = "KVCache"
//
// A kind is a name of at most 64 bytes of printable UTF-8. A function that takes a kind returns an
// error for any other name. ParseKind reads a name that a user typed.
type Kind string

const maxKind = 64

// Kinds returns package tracker's kinds, in the order of reports. Reports list other kinds after them.
func Kinds() []Kind {
	return []Kind{"", "Parameter", "Gradient", "OptimizerState", "Activation", "Input", "Temporary"}
}

// String returns the name that reports print.
func (k Kind) String() string {
	if k == "" {
		return "Tensor"
	}
	return string(k)
}

// ParseKind reads a name: "Tensor" and "Unspecified" are Unspecified. A name that is empty,
// too long or not printable is an error.
func ParseKind(name string) (Kind, error) {
	switch name {
	case "Tensor", "Unspecified":
		return "", nil
	case "":
		return "", fmt.Errorf("parse kind %q: want a name such as Parameter", name)
	}
	if err := Kind(name).Check(); err != nil {
		return "", fmt.Errorf("parse kind: %w", err)
	}
	return Kind(name), nil
}

// Compare orders kinds as reports do: those of Kinds first, then the others by name.
func (k Kind) Compare(other Kind) int {
	return cmp.Or(cmp.Compare(k.rank(), other.rank()), cmp.Compare(k, other))
}

func (k Kind) rank() int {
	known := Kinds()
	if i := slices.Index(known, k); i >= 0 {
		return i
	}
	return len(known)
}

// Check returns an error if k is not valid.
func (k Kind) Check() error {
	// The errors do not refer to k: otherwise each Alloc would move the tensor that contains k, and with it the
	// shape, to the heap.
	switch k {
	case "", "Parameter", "Gradient", "OptimizerState", "Activation", "Input", "Temporary":
		return nil
	case "Tensor", "Unspecified":
		return fmt.Errorf("kind %q: write tracker.Unspecified", strings.Clone(string(k)))
	}
	if len(k) > maxKind {
		return fmt.Errorf("kind %q...: it has %d bytes, want at most %d", strings.Clone(string(k[:maxKind])), len(k), maxKind)
	}
	if !utf8.ValidString(string(k)) || slices.ContainsFunc([]rune(string(k)), func(r rune) bool { return !strconv.IsPrint(r) }) {
		return fmt.Errorf("kind %q: want printable UTF-8", strings.Clone(string(k)))
	}
	return nil
}

// MarshalText writes the name that String returns.
func (k Kind) MarshalText() ([]byte, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads a kind as ParseKind does.
func (k *Kind) UnmarshalText(text []byte) (err error) {
	*k, err = ParseKind(string(text))
	return err
}
