package tracker

import "fmt"

// Kind says what a buffer is for. The kinds are those of PyTorch's memory
// profiler (torch.profiler._memory_profiler.Category).
type Kind uint8

// The kinds. A buffer that nobody described is Unspecified, and stands as
// "Tensor" in a report.
const (
	Unspecified Kind = iota
	Parameter
	Gradient
	OptimizerState
	Activation
	Input
	Temporary
)

var kindNames = [...]string{
	Unspecified:    "Tensor",
	Parameter:      "Parameter",
	Gradient:       "Gradient",
	OptimizerState: "OptimizerState",
	Activation:     "Activation",
	Input:          "Input",
	Temporary:      "Temporary",
}

// Kinds returns every kind, in the order of their values.
func Kinds() []Kind {
	kinds := make([]Kind, len(kindNames))
	for i := range kinds {
		kinds[i] = Kind(i)
	}
	return kinds
}

// String returns the kind's name as reports print it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// ParseKind reads a name that String writes, and "Unspecified".
func ParseKind(name string) (Kind, error) {
	for i, known := range kindNames {
		if name == known {
			return Kind(i), nil
		}
	}
	if name == "Unspecified" {
		return Unspecified, nil
	}
	return 0, fmt.Errorf("parse kind %q: want one of %v", name, kindNames)
}

// MarshalText writes the kind's name.
func (k Kind) MarshalText() ([]byte, error) {
	if int(k) >= len(kindNames) {
		return nil, fmt.Errorf("write kind: %v is not a kind", k)
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads a kind as ParseKind does.
func (k *Kind) UnmarshalText(text []byte) error {
	parsed, err := ParseKind(string(text))
	if err != nil {
		return err
	}
	*k = parsed
	return nil
}
