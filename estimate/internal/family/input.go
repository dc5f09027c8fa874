package family

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Input is something that a model reads. A DType of 0 means that of activations.
type Input struct {
	DType alloc.DType
	Shape []int
}

// Given is an estimate.Option that gives a model these inputs.
func Given(inputs []Input) setting.Func {
	return func(c *setting.Config) {
		for _, in := range inputs {
			c.Inputs = append(c.Inputs, setting.Input{Shape: slices.Clone(in.Shape), Dtype: in.DType})
		}
	}
}

// Tokens returns an input of texts.
func Tokens(batch, length int) Input { return Input{alloc.Int64, []int{batch, length}} }

// Reals returns an input of numbers in the type of activations.
func Reals(dims ...int) Input { return Input{0, dims} }
