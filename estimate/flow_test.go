package estimate_test

import (
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/nn"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// gated multiplies what it makes of x by what it makes of the tensor beside it.
func gated(n int) nn.Module {
	return nn.Module{
		Name:  "Gated",
		Parts: nn.Sequential{nn.As("value", nn.Linear{In: n, Out: n, NoBias: true}), nn.As("gate", nn.Linear{In: n, Out: n, NoBias: true})},
		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
			return f.Mul(f.Call("value", x), f.Call("gate", f.Beside(0)))
		},
	}
}

func twoInputs(n int) []nn.Layer {
	return []nn.Layer{nn.Module{
		Parts: nn.Sequential{nn.As("gated", gated(n))},
		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
			return f.Call("gated", x, f.Input(1))
		},
	}}
}

func TestModuleWithTwoInputs(t *testing.T) {
	r := model(t, twoInputs(8), estimate.InputShape(2, 8), estimate.InputShape(2, 8))
	assert.Equal(t, int64(2*8*8), r.Params.Count)
	assert.Equal(t, []string{"0", "0.gated", "0.gated.value", "0.gated.gate"}, []string{r.Layers[0].Path, r.Layers[1].Path, r.Layers[2].Path, r.Layers[3].Path})
	assert.Equal(t, "Gated", r.Layers[1].Kind)
	assert.Equal(t, alloc.Bytes(4*2*8*4), r.Retained, "both inputs, and both factors")
}

// Model returns the error with which a layer fails, and nothing of the layer runs after it.
func TestAFailureEndsTheForwardPass(t *testing.T) {
	_, err := estimate.Model(twoInputs(8), estimate.InputShape(2, 9), estimate.InputShape(2, 8))
	assert.ErrorContains(t, err, "0.gated.value (Linear): input (2, 9) has 9 features: want 8")
	_, err = estimate.Model(twoInputs(8), estimate.InputShape(2, 8))
	assert.ErrorContains(t, err, "the layer reads input 1, but the model was given 1")

	run := func(run func(f *nn.Flow, x nn.Tensor) nn.Tensor) error {
		_, err := estimate.Model([]nn.Layer{nn.Module{Run: run}}, estimate.InputShape(2, 8))
		return err
	}
	for want, wrong := range map[string]func(f *nn.Flow, x nn.Tensor) nn.Tensor{
		`it calls "x", which is none of its Parts`: func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Call("x", x) },
		"does not broadcast":                       func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Add(x, f.View(x, 8, 2)) },
		"want a size for each dimension after":     func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Resize(x, 4) },
		"parts of [9] along dimension 1":           func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Split(x, 1, 9)[0] },
		"parts of [5 4] along dimension 1":         func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Split(x, 1, 5, 4)[1] },
		"parts of [] along dimension 1":            func(f *nn.Flow, x nn.Tensor) nn.Tensor { f.Split(x, 1); return x },
		"parts of [1] along dimension 2":           func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Split(x, 2, 1)[0] },
		"was called with 0":                        func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Beside(0) },
		"does not take the shape (3, 5)":           func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.View(x, 3, 5) },
		"that is not of this model":                func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Copy(nn.Tensor{}) },
		"too bad":                                  func(f *nn.Flow, x nn.Tensor) nn.Tensor { f.Failf("too bad"); return x },
	} {
		assert.ErrorContains(t, run(wrong), want)
	}
	_, err = estimate.Model([]nn.Layer{nn.Module{}})
	assert.ErrorContains(t, err, "Run is nil")
	nothing := layer.Own(tape.Module{Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor { return f.Apply(nil, x) }})
	_, err = estimate.Model([]nn.Layer{nothing}, estimate.InputShape(2, 8))
	assert.ErrorContains(t, err, "it applies no layer")

	var kept nn.Tensor
	require.NoError(t, run(func(f *nn.Flow, x nn.Tensor) nn.Tensor { kept = f.Copy(x); return x }))
	assert.ErrorContains(t, run(func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Split(kept, 1, 8)[0] }), "splits a tensor (2, 8) that is not of this model")
	assert.ErrorContains(t, run(func(f *nn.Flow, x nn.Tensor) nn.Tensor {
		f.Failf("too late")
		assert.Fail(t, "it goes on")
		return x
	}), "too late")
	assert.PanicsWithValue(t, "a mistake", func() {
		run(func(*nn.Flow, nn.Tensor) nn.Tensor { panic("a mistake") })
	}, "a panic of the layer's own is none")
}

// What is added in place stays where it was, and a tensor of another size is new.
func TestFlowInPlaceAndResized(t *testing.T) {
	r := model(t, []nn.Layer{nn.Module{Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
		return f.AddTo(f.Copy(x), f.Resize(x, 6, 4))
	}}}, estimate.InputShape(2, 3, 6, 4), estimate.OnCPU())
	assert.Equal(t, alloc.Shape{2, 3, 6, 4}, r.Output)
	assert.Equal(t, alloc.Bytes(3*2*3*6*4*4), r.Inference.Input+r.Inference.Transient, "the input, its copy and the other size")
	r = model(t, []nn.Layer{nn.Module{Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor { return f.Resize(x, 3, 8) }}}, estimate.InputShape(2, 3, 6, 4))
	assert.Equal(t, alloc.Shape{2, 3, 3, 8}, r.Output)
}

// A model with a tied head may be a part of another, and may stand there twice.
func TestRelativeTies(t *testing.T) {
	tied := nn.Sequential{
		nn.As("embed", nn.Embedding{Num: 100, Dim: 8}),
		nn.As("head", nn.Linear{In: 8, Out: 100, NoBias: true, Tied: ".embed.weight"}),
	}
	r := model(t, tied)
	assert.Equal(t, int64(800), r.Params.Count)
	again := nn.Sequential{nn.As("mean", tied), nn.As("up", nn.Sequential{nn.As("inner", nn.Linear{In: 8, Out: 100, NoBias: true, Tied: "..mean.embed.weight"})})}
	assert.Equal(t, int64(800), model(t, []nn.Layer{nn.As("model", again)}).Params.Count)
	_, err := estimate.Model([]nn.Layer{nn.Linear{In: 8, Out: 100, Tied: "....x.weight"}})
	require.ErrorContains(t, err, `tied to "x.weight", which the model does not have`)
}
