package estimating

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
)

// bases are the forms of --quantize in PyTorch.
var bases = []string{"nf4", "nf4-double", "int8", "gptq", "awq"}

// ggufNames are the names of llama.cpp's quantizations as flags have them.
func ggufNames() []string {
	var names []string
	for _, q := range llamacpp.Quantizations() {
		names = append(names, strings.ToLower(string(q)))
	}
	return names
}

// ggufNamed returns the quantization that --quantize names for llama.cpp; "" if it is not given.
func ggufNamed(given string) (llamacpp.Quantization, error) {
	if given == "" {
		return "", nil
	}
	q, err := llamacpp.QuantizationNamed(given)
	switch {
	case err != nil && slices.Contains(bases, strings.ToLower(given)):
		return "", cli.UsageError("estimate: --quantize %s is not llama.cpp's: want one of %s", given, strings.Join(ggufNames(), ", "))
	case err != nil:
		return "", cli.UsageError("estimate: --quantize %s: want one of %s", given, strings.Join(ggufNames(), ", "))
	}
	return q, nil
}

// quantizedInPyTorch checks that a form of --quantize is one of PyTorch's.
func quantizedInPyTorch(given string) error {
	if _, err := llamacpp.QuantizationNamed(given); err == nil {
		return cli.UsageError("estimate: --quantize %s is llama.cpp's: it needs --engine llama.cpp", given)
	}
	return nil
}
