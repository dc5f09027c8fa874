package nn_test

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Maxout is a layer of one's own: the largest of some linear functions (arXiv:1302.4389).
type Maxout struct{ In, Out, Pieces int }

// Declare names the parameters, as __init__ does.
func (l Maxout) Declare(d *nn.Declaration) {
	d.Param("weight", l.Pieces*l.Out, l.In)
	d.Param("bias", l.Pieces*l.Out)
}

// Forward records two operations, as forward does them.
func (l Maxout) Forward(t *nn.Tape, x nn.Tensor) (nn.Tensor, error) {
	if len(x.Shape) != 2 || x.Shape[1] != l.In {
		return nn.Tensor{}, t.Errorf("input %v: want (batch, %d)", x.Shape, l.In)
	}
	batch := x.Shape[0]
	all, err := t.Op(nn.Op{ // the gradient of the weight needs the input
		In: []nn.Tensor{x}, Shape: alloc.Shape{batch, l.Pieces, l.Out}, Params: true,
		Keep: []nn.Tensor{x}, FLOPs: 2 * int64(batch*l.Pieces*l.Out*l.In),
	})
	if err != nil {
		return nn.Tensor{}, err
	}
	shape := alloc.Shape{batch, l.Out}
	return t.Op(nn.Op{ // and that of the maximum, which of them it was
		In: []nn.Tensor{all}, Shape: shape, KeepOwn: []nn.Own{{Shape: shape, DType: alloc.Int64}},
	})
}

func ExampleCustom() {
	layers := []nn.Layer{nn.Custom(Maxout{In: 784, Out: 240, Pieces: 5}), nn.Linear{In: 240, Out: 10}}
	r, err := estimate.Model(layers, estimate.InputShape(100, 784), estimate.Train(estimate.AdamW))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range r.Layers {
		fmt.Println(row.Path, row.Kind, row.Output, row.Params, row.Kept)
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
			nn.As("gate", nn.Sequential{nn.Linear{In: 64, Out: 64}, nn.Sigmoid{}}),
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
