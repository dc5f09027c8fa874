package nn_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// maxout is a layer of one's own with parameters: the largest of some linear functions (arXiv:1302.4389).
func maxout(in, out, pieces int) nn.Layer {
	return nn.Module{
		Name: "Maxout",
		Params: []nn.Param{
			{Name: "weight", Shape: alloc.Shape{pieces * out, in}},
			{Name: "bias", Shape: alloc.Shape{pieces * out}},
		},
		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
			if len(x.Shape) != 2 || x.Shape[1] != in {
				f.Failf("input %v: want (batch, %d)", x.Shape, in)
			}
			batch := x.Shape[0]
			all := f.Op(nn.Op{ // the gradient of the weight needs the input
				In: []nn.Tensor{x}, Shape: alloc.Shape{batch, pieces, out}, Params: true,
				Keep: []nn.Tensor{x}, FLOPs: 2 * int64(batch*pieces*out*in),
			})
			shape := alloc.Shape{batch, out}
			return f.Op(nn.Op{ // and that of the maximum, which of them it was
				In: []nn.Tensor{all}, Shape: shape, KeepOwn: []nn.Own{{Shape: shape, DType: alloc.Int64}},
			})
		},
	}
}

func ExampleModule_params() {
	layers := []nn.Layer{maxout(784, 240, 5), nn.Linear{In: 240, Out: 10}}
	r, err := estimate.Model(layers, estimate.InputShape(100, 784), estimate.Train("adamw"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range r.Layers {
		fmt.Println(row.Path, row.Kind, row.Output, row.Params, row.Retained)
	}
	// Output:
	// 0 Maxout (100, 240) 942000 493.8 KiB
	// 1 Linear (100, 10) 2410 93.8 KiB
}

// A Module is a layer of named parts. Its function records what forward does, and looks for no errors.
func ExampleModule() {
	gated := nn.Module{
		Name: "Gated",
		Parts: nn.Sequential{
			nn.As("value", nn.Linear{In: 64, Out: 64}),
			nn.As("gate", nn.Sequential{nn.Linear{In: 64, Out: 64}, nn.Class("Sigmoid")}),
		},
		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
			return f.Add(x, f.Mul(f.Call("value", x), f.Call("gate", x)))
		},
	}
	r, err := estimate.Model([]nn.Layer{nn.As("blocks", nn.Repeat(2, gated))}, estimate.InputShape(32, 64))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range r.Layers {
		fmt.Println(row.Path, row.Kind, row.Params)
	}
	// Output:
	// blocks Repeat 0
	// blocks.0 Gated 0
	// blocks.0.value Linear 4160
	// blocks.0.gate Sequential 0
	// blocks.0.gate.0 Linear 4160
	// blocks.0.gate.1 Sigmoid 0
	// blocks.1 Gated 0
	// blocks.1.value Linear 4160
	// blocks.1.gate Sequential 0
	// blocks.1.gate.0 Linear 4160
	// blocks.1.gate.1 Sigmoid 0
}
