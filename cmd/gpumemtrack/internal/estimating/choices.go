package estimating

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// choice is a value that has a name on the command line.
type choice[T any] struct {
	name  string
	value T
}

func names[T any](choices []choice[T]) []string {
	all := make([]string, len(choices))
	for i, c := range choices {
		all[i] = c.name
	}
	return all
}

// named returns the choice with this name, in upper or lower case.
func named[T any](choices []choice[T], name string) (value T, ok bool) {
	i := slices.Index(names(choices), strings.ToLower(name))
	if i < 0 {
		return value, false
	}
	return choices[i].value, true
}

// The words of package estimate's settings, which are those of the flags too.
var (
	generations = []string{"pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"}
	forms       = []string{"foreach", "one-by-one", "fused"}
	offloads    = []string{"optimizer", "parameters", "paged"}
	policies    = []string{"products", "half"}
	kernels     = []string{"sdpa", "flash", "eager"}
	outputs     = []string{"held", "in-pass", "dropped", "with-cache"}
	loadings    = []string{"lazy", "eager"}
	bases       = []string{"nf4", "nf4-double", "int8", "gptq", "awq"}
	optimizers  = []string{"adam", "adamw", "adam8bit", "adafactor", "lion", "muon", "sgd", "momentum", "none"}
	zeroGrads   = []string{"first", "backward", "kept"}
)

// parseDType returns an element type by name. It also knows the short names that people type: bf16,
// fp16, fp32.
func parseDType(name string) (alloc.DType, error) {
	if strings.EqualFold(name, "fp8") {
		return alloc.Float8E4M3, nil
	}
	if short := strings.Replace(strings.ToUpper(name), "FP", "F", 1); len(name) < 5 {
		if d, err := alloc.ParseDType(short); err == nil {
			return d, nil
		}
	}
	return alloc.ParseDType(name)
}

// computes reports whether kernels compute in the type.
func computes(d alloc.DType) bool {
	return d == alloc.Float16 || d == alloc.BFloat16 || d == alloc.Float32 || d == alloc.Float64
}

// usualTypes are the element types that a shell completes; many more are read.
var usualTypes = []string{"float32", "bfloat16", "float16"}

// kvTypes lists the quantized types of keys and values.
var kvTypes = []string{"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"}

// usualLoss is the loss of training unless a flag names one.
const usualLoss = "usual"

// losses lists the values of --loss.
var losses = []choice[nn.NextToken]{
	{usualLoss, nn.NextToken{}}, {"fused", nn.NextToken{Fused: true, Chunks: 1}},
	{"liger", nn.NextToken{InForward: true}}, {sumLoss, nn.NextToken{}}, {"none", nn.NextToken{}},
}

// sumLoss is the sum of the model's output, whose gradient scripts take that only measure time.
const sumLoss = "sum"

var sum = nn.Module{Name: "sum", Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
	return f.Op(nn.Op{In: []nn.Tensor{x}, Shape: alloc.Shape{}})
}}

// blocks is the value of --checkpoint for the numbered layers of any model, which hold the most.
const blocks = "blocks"

// pick returns the choice that a flag names, or the zero value if the flag is not given.
func pick[T any](flag, name string, choices []choice[T]) (T, error) {
	value, ok := named(choices, name)
	if name != "" && !ok {
		return value, cli.UsageError("estimate: --%s %s: want one of %s", flag, name, strings.Join(names(choices), ", "))
	}
	return value, nil
}

// oneOf returns the word that a flag has, in lower case.
func oneOf(flag, word string, words []string) (string, error) {
	lower := strings.ToLower(word)
	if word != "" && !slices.Contains(words, lower) {
		return "", cli.UsageError("estimate: --%s %s: want one of %s", flag, word, strings.Join(words, ", "))
	}
	return lower, nil
}

// pickType returns the element type that a flag names, or 0 if the flag is not given.
func pickType(flag, name string) (alloc.DType, error) {
	if name == "" {
		return 0, nil
	}
	d, err := parseDType(name)
	if err != nil {
		return 0, cli.UsageError("estimate: --%s: %w", flag, err)
	}
	return d, nil
}

// allLayers is more layers than any model has.
const allLayers = 1 << 20
