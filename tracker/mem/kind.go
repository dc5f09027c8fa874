package mem

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/kinds"
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

// Kinds returns package tracker's kinds, in the order of reports. Reports list other kinds after them.
func Kinds() (all []Kind) {
	for _, name := range kinds.Known {
		all = append(all, Kind(name))
	}
	return all
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
	if err := kinds.Check(name); err != nil {
		return "", fmt.Errorf("parse kind: %w", err)
	}
	return Kind(name), nil
}

// MarshalText writes the name that String returns.
func (k Kind) MarshalText() ([]byte, error) {
	if err := kinds.Check(string(k)); err != nil {
		return nil, err
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads a kind as ParseKind does.
func (k *Kind) UnmarshalText(text []byte) (err error) {
	*k, err = ParseKind(string(text))
	return err
}
