package estimate_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/vision"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

var update = flag.Bool("update", false, "write the golden files anew")

// vgg19 are the first six layers of VGG19's features, as the reference's README
// measures them.
var vgg19 = []nn.Layer{
	nn.Conv2d{In: 3, Out: 64, Kernel: 3, Padding: 1},
	nn.ReLU{InPlace: true},
	nn.Conv2d{In: 64, Out: 64, Kernel: 3, Padding: 1},
	nn.ReLU{InPlace: true},
	nn.MaxPool{Kernel: 2},
	nn.Conv2d{In: 64, Out: 128, Kernel: 3, Padding: 1},
}

func model(t *testing.T, layers []nn.Layer, opts ...estimate.Option) *estimate.Report {
	t.Helper()
	r, err := estimate.Model(layers, opts...)
	require.NoError(t, err)
	return r
}

func TestReference(t *testing.T) {
	r := model(t, vgg19, estimate.InputShape(1, 3, 620, 770))
	assert.EqualValues(t, 450304, r.Params.Bytes)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"intermediates_bytes":336089600,"intermediates_with_backward_bytes":672179200`)
	golden(t, "testdata/vgg19.golden", r.String())
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// What is written for machines changes only on purpose.
func TestJSON(t *testing.T) {
	r := model(t, vgg19, estimate.InputShape(1, 3, 620, 770))
	data, err := json.MarshalIndent(r, "", "\t")
	require.NoError(t, err)
	golden(t, "testdata/vgg19.json", string(data)+"\n")
	value, err := json.MarshalIndent(*r, "", "\t")
	require.NoError(t, err)
	assert.Equal(t, string(data), string(value), "a value and a pointer are written alike")
}

func TestNoLayersAreAnError(t *testing.T) {
	_, err := estimate.Model(nil)
	assert.ErrorContains(t, err, "there are no layers")
}

func TestWithoutInput(t *testing.T) {
	r := model(t, vgg19, estimate.Train("adamw"))
	assert.Empty(t, r.Inputs)
	assert.EqualValues(t, 4*450304, r.Training.Peak.Bytes, "weights, gradients and two states")
	assert.Contains(t, r.String(), "no input was given")
}

// Each case says by hand what autograd keeps of a float32 input that is 1024
// elements, after a layer that makes it need a gradient.
func TestRetainedForBackward(t *testing.T) {
	const n = 4 * 1024
	for name, c := range map[string]struct {
		layers []nn.Layer
		want   alloc.Bytes
	}{
		"relu keeps its output":                  {[]nn.Layer{nn.ReLU{}}, n},
		"relu in place keeps the same storage":   {[]nn.Layer{nn.Class("Sigmoid"), nn.ReLU{InPlace: true}}, n},
		"two layers keep one tensor":             {[]nn.Layer{nn.ReLU{}, nn.Class("GELU")}, n},
		"gelu keeps its input":                   {[]nn.Layer{nn.Class("GELU"), nn.Class("GELU")}, 2 * n},
		"silu in place keeps a copy":             {[]nn.Layer{nn.Class("SiLU(inplace=True)")}, n},
		"dropout keeps a byte an element":        {[]nn.Layer{nn.Dropout{}}, n / 4},
		"max pooling keeps input and places":     {[]nn.Layer{nn.MaxPool{Kernel: 2}}, n + 8*256},
		"a mean keeps nothing":                   {[]nn.Layer{nn.AdaptiveAvgPool(1)}, 0},
		"batch norm keeps input and two vectors": {[]nn.Layer{nn.BatchNorm(4)}, n + 2*4*4},
		"a view keeps nothing":                   {[]nn.Layer{nn.Flatten{}}, 0},
		"linear after flatten keeps the view":    {[]nn.Layer{nn.ReLU{}, nn.Flatten{}, nn.Linear{In: 1024, Out: 1}}, n},
	} {
		t.Run(name, func(t *testing.T) {
			first := layer.Own(layer.Learned{Shape: alloc.Shape{4, 16, 16}})
			r := model(t, append([]nn.Layer{first}, c.layers...), estimate.InputShape(1, 4, 16, 16))
			assert.Equal(t, c.want, r.Retained)
			var rows alloc.Bytes
			for _, row := range r.Layers {
				rows += row.Retained
			}
			assert.Equal(t, r.Retained, rows, "the rows add up")
		})
	}
}

func TestNothingIsKeptOfTheInputItself(t *testing.T) {
	r := model(t, []nn.Layer{nn.ReLU{}, nn.MaxPool{Kernel: 2}}, estimate.InputShape(1, 1, 4, 4))
	assert.Zero(t, r.Retained, "no parameter, no gradient")
}

func TestInferenceHoldsWhatIsStillUsed(t *testing.T) {
	// At the third layer its input and output are alive; without the body's input
	// held for the sum that is all.
	chain := []nn.Layer{nn.Class("GELU"), nn.Class("GELU"), nn.Class("GELU")}
	input := estimate.InputShape(1, 1024)
	assert.EqualValues(t, 2*4096, model(t, chain, input).Inference.Transient)
	residual := []nn.Layer{nn.Class("GELU"), nn.Residual{Body: nn.Sequential(chain)}}
	assert.EqualValues(t, 3*4096, model(t, residual, input).Inference.Transient)
	dropout := []nn.Layer{nn.Class("GELU"), nn.Dropout{}}
	assert.EqualValues(t, 4096, model(t, dropout, input).Inference.Transient, "dropout does nothing")
}

func TestSharedAndTiedCountOnce(t *testing.T) {
	shared := nn.Share(nn.Linear{In: 8, Out: 8})
	r := model(t, []nn.Layer{shared, nn.ReLU{}, shared}, estimate.InputShape(1, 8))
	assert.EqualValues(t, 72, r.Params.Count)
	r = model(t, []nn.Layer{
		nn.As("wte", nn.Embedding{Num: 10, Dim: 4}),
		nn.Linear{In: 4, Out: 10, NoBias: true, Tied: "wte.weight"},
	}, estimate.Tokens(1, 3))
	assert.EqualValues(t, 40, r.Params.Count)
	r = model(t, []nn.Layer{nn.Repeat(3, nn.Linear{In: 8, Out: 8})}, estimate.InputShape(1, 8))
	assert.EqualValues(t, 3*72, r.Params.Count)
}

// The peak is what the profiler saw of x -> l(l(l(x))) with torch 2.15 on the CPU,
// and the weights, states and input.
func TestGradientsOfSharedLayersAddUp(t *testing.T) {
	l := nn.Share(nn.Linear{In: 1000, Out: 1000})
	opts := []estimate.Option{estimate.InputShape(1000, 1000), estimate.OnCPU(), estimate.Train("adam")}
	r := model(t, []nn.Layer{l, l, l}, opts...)
	assert.EqualValues(t, 12_000_000, r.Retained)
	assert.EqualValues(t, 44_020_000, r.Training.Peak.Bytes)
	deep := nn.Share(nn.Sequential{nn.Linear{In: 1000, Out: 1000}})
	assert.Equal(t, r.Training.Peak.Bytes, model(t, []nn.Layer{deep, deep, deep}, opts...).Training.Peak.Bytes)
}

func TestOptimizerStates(t *testing.T) {
	matrix, vector := alloc.Shape{100, 200}, alloc.Shape{200}
	for o, want := range map[setting.Optimizer][2]alloc.Bytes{
		"none":      {0, 0},
		"sgd":       {0, 0},
		"momentum":  {80000, 800},
		"adam":      {160000, 1600},
		"adamw":     {160000, 1600},
		"adam8bit":  {40000 + 2*4*79, 1600},
		"adafactor": {4 * 300, 800},
	} {
		for i, shape := range []alloc.Shape{matrix, vector} {
			got, err := o.State(shape, alloc.Float32)
			require.NoError(t, err)
			assert.Equal(t, want[i], got, "%v of %v", o, shape)
		}
	}
}

func TestMixedPrecisionTakes16BytesAParameter(t *testing.T) {
	// arXiv:1910.02054, section 3.1: 2 + 2 + 12 bytes.
	r := model(t, []nn.Layer{nn.Linear{In: 100, Out: 100, NoBias: true}},
		estimate.MixedPrecision(alloc.BFloat16), estimate.Train("adam"))
	assert.EqualValues(t, 16*10000, r.Training.Peak.Bytes)
}

// TestZeRO has the numbers of arXiv:1910.02054, table 1: 7.5 billion parameters
// on 64 devices take 120, 31.4, 16.6 and 1.9 GB of model states.
func TestZeRO(t *testing.T) {
	layers := []nn.Layer{nn.Linear{In: 75000, Out: 100000, NoBias: true}}
	for stage, want := range []float64{120, 31.4, 16.6, 1.88} {
		r := model(t, layers, estimate.MixedPrecision(alloc.Float16), estimate.Train("adam"),
			estimate.Sharding{Data: 64, ZeRO: stage})
		assert.InDelta(t, want, float64(r.Training.Peak.Bytes)/1e9, 0.05, "stage %d", stage)
	}
}

func TestShardingDividesTheModel(t *testing.T) {
	m, err := zoo.ByName("llama-3-8b")
	require.NoError(t, err)
	opts := []estimate.Option{m.Input, estimate.Precision(alloc.BFloat16), estimate.Train("adamw")}
	whole := model(t, m.Layers, opts...)
	tensor := model(t, m.Layers, append(opts, estimate.Sharding{Tensor: 8})...)
	assert.InEpsilon(t, float64(whole.Inference.Weights)/8, float64(tensor.Inference.Weights), 0.01)
	assert.Less(t, tensor.Training.Peak.Bytes, whole.Training.Peak.Bytes/3)
	pipeline := model(t, m.Layers, append(opts, estimate.Sharding{Pipeline: 4})...)
	assert.InEpsilon(t, float64(whole.Inference.Weights)/4, float64(pipeline.Inference.Weights), 0.1)
	assert.Contains(t, pipeline.Training.PeakAt, "stage 0", "it keeps the most micro-batches")
	assert.Equal(t, whole.Params, pipeline.Params)
	_, err = estimate.Model(vgg19, estimate.InputShape(1, 3, 32, 32), estimate.Sharding{Pipeline: 99})
	assert.ErrorContains(t, err, "cannot be cut into 99 stages")
}

func TestCheckpointingTradesMemory(t *testing.T) {
	m, err := zoo.ByName("gpt2")
	require.NoError(t, err)
	opts := []estimate.Option{estimate.Tokens(8, 1024), estimate.Train("sgd")}
	all := model(t, m.Layers, opts...)
	some := model(t, m.Layers, append(opts, estimate.Checkpointed("transformer.h.*"))...)
	assert.Less(t, some.Retained, all.Retained/4)
	assert.Less(t, some.Training.Peak.Bytes, all.Training.Peak.Bytes/2)
	assert.Equal(t, all.Inference, some.Inference)
}

func TestMaxBatch(t *testing.T) {
	m, err := zoo.ByName("resnet50")
	require.NoError(t, err)
	opts := []estimate.Option{m.Input, estimate.Train("adam")}
	n, err := estimate.MaxBatch(m.Layers, 16*alloc.GiB, opts...)
	require.NoError(t, err)
	fits := func(batch int) bool {
		return model(t, m.Layers, estimate.InputShape(batch, 3, 224, 224), estimate.Train("adam")).Fits(16 * alloc.GiB)
	}
	assert.True(t, fits(n))
	assert.False(t, fits(n+1))
	n, err = estimate.MaxBatch(m.Layers, alloc.MiB, opts...)
	require.NoError(t, err)
	assert.Zero(t, n)
	_, err = estimate.MaxBatch(m.Layers, alloc.GiB)
	assert.ErrorContains(t, err, "needs an input")
}

// A transposed convolution has the kind and the sizes of torch.nn.ConvTranspose2d(6, 8, (3, 2), stride=2, output_padding=1).
func TestTransposedConvolution(t *testing.T) {
	l := nn.Uneven(nn.Conv2d{In: 6, Out: 8, Stride: 2, Transposed: true, OutputPadding: 1}, []int{3, 2}, nil, nil)
	r := model(t, []nn.Layer{l}, estimate.InputShape(1, 6, 5, 5))
	assert.Equal(t, "ConvTranspose2d", r.Layers[0].Kind)
	assert.Equal(t, alloc.Shape{1, 8, 12, 11}, r.Output)
	assert.EqualValues(t, 6*8*3*2+8, r.Params.Count)
}

func TestErrorsNameTheLayer(t *testing.T) {
	for want, c := range map[string]struct {
		layers []nn.Layer
		input  estimate.Option
	}{
		"estimate 2 (Conv2d): input (1, 64, 8, 8) has 64 channels: want 32": {[]nn.Layer{
			vgg19[0], vgg19[1], nn.Conv2d{In: 32, Out: 8, Kernel: 3}}, estimate.InputShape(1, 3, 8, 8)},
		"estimate block.fc (Linear): input (2, 7) has 7 features: want 8": {[]nn.Layer{
			nn.As("block", nn.Sequential{nn.As("fc", nn.Linear{In: 8, Out: 1})})}, estimate.InputShape(2, 7)},
		"6 channels in and 4 out do not divide into 4 groups":             {[]nn.Layer{nn.Conv2d{In: 6, Out: 4, Kernel: 1, Groups: 4}}, estimate.InputShape(1, 6, 2, 2)},
		"OutputPadding is 1: want 0, or a convolution that is Transposed": {[]nn.Layer{nn.Conv2d{In: 1, Out: 1, Kernel: 2, OutputPadding: 1}}, estimate.InputShape(1, 1, 4, 4)},
		"input 0 (0, 3) is empty":                                         {[]nn.Layer{nn.ReLU{}}, estimate.InputShape(0, 3)},
		"input (1, 3, 2, 2) is too small for a kernel":                    {[]nn.Layer{nn.Conv2d{In: 3, Out: 1, Kernel: 3}}, estimate.InputShape(1, 3, 2, 2)},
		"In is 0: want 1 or more":                                         {[]nn.Layer{nn.Linear{Out: 3}}, estimate.InputShape(1, 3)},
		"estimate 1 (nil): there is no layer here":                        {[]nn.Layer{nn.ReLU{}, nil}, estimate.InputShape(1)},
		"overflow": {[]nn.Layer{nn.ReLU{}}, estimate.InputShape(math.MaxInt, math.MaxInt)},
		"input 0 (1073741824, 1073741824) takes more than 64.0 PiB": {[]nn.Layer{nn.ReLU{}}, estimate.InputShape(1<<30, 1<<30)},
		"input is of float32: want int64 or int32":                  {[]nn.Layer{nn.Embedding{Num: 2, Dim: 2}}, estimate.InputShape(1, 2)},
		"reads a tensor (1,) that is not of this model": {[]nn.Layer{nn.Module{Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
			made := nn.Tensor{Shape: x.Shape, DType: x.DType} // instead of having the tape make it
			return f.Op(nn.Op{In: []nn.Tensor{made}, Shape: x.Shape})
		}}}, estimate.InputShape(1)},
		"is the Vision of another Transformer and no model by itself": {layer.Public(family.Transformer{Family: vision.LLaVA}.Layers()), estimate.Tokens(1, 2)},
		"estimate mlp.activation_fn (layer): Activation is 99":        {[]nn.Layer{nn.As("mlp", layer.Own(layer.MLP{Hidden: 1, FFN: 1, Activation: 99}))}, estimate.InputShape(1, 1)},
		"(1, 3): want (batch, channels, ...) with one to three dim":   {[]nn.Layer{nn.MaxPool{Kernel: 2}}, estimate.InputShape(1, 3)},
		"Kernel 0, Stride 0 and Padding 0 of dimension 2 of input":    {[]nn.Layer{nn.Uneven(nn.AvgPool{}, []int{2, 2}, nil, nil)}, estimate.InputShape(1, 3, 8, 8, 8)},
		"leave it to the option WithLoss":                             {[]nn.Layer{nn.NextToken{Chunks: 2}}, estimate.InputShape(1, 2, 3)},
		`Split is "heads": want columns or rows`:                      {[]nn.Layer{nn.Linear{In: 1, Out: 1, Split: "heads"}}, estimate.InputShape(1, 1)},
		`tied to "a.weight", which the model does not have`:           {[]nn.Layer{nn.Linear{In: 1, Out: 1, Tied: "a.weight"}}, estimate.InputShape(1, 1)},
		"two layers with parameters have this name":                   {[]nn.Layer{nn.As("a", nn.LayerNorm{Size: 1}), nn.As("a", nn.LayerNorm{Size: 1})}, estimate.InputShape(1, 1)},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := estimate.Model(c.layers, c.input)
			assert.ErrorContains(t, err, want)
		})
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	input := estimate.InputShape(1, 3, 8, 8)
	for want, opts := range map[string][]estimate.Option{
		"estimate Sequential: no layer reads input 1, (8, 3, 8, 8)":      {input, estimate.InputShape(8, 3, 8, 8)},
		`no layer's path matches "layers.*", as "3" would be`:            {input, estimate.Checkpointed("5", "layers.*")},
		`Train is "adams": want one of adam, adamw, adam8bit`:            {input, estimate.Train("adams")},
		"ZeRO is 4: want a stage":                                        {input, estimate.Sharding{ZeRO: 4}},
		"Window is -1: want 0":                                           {input, estimate.KVConfig{Batch: 1, ContextLength: 1, Layers: 1, KVHeads: 1, HeadSize: 1, Window: -1}},
		`Checkpointed: pattern "[": syntax error in`:                     {input, estimate.Checkpointed("[")},
		`LoRA: Targets: pattern "[": syntax error`:                       {input, estimate.LoRA{Rank: 8, Targets: []string{"["}}},
		`LoRA: no Linear's path matches "conv": the model has no Linear`: {input, estimate.LoRA{Rank: 8, Targets: []string{"conv"}}},
		`Machine: GPU is "a100": want one of pascal, volta`:              {input, estimate.Machine{GPU: "a100"}},
		`Loop: ZeroGrad is "never": want one of first, backward, kept`:   {input, estimate.Loop{ZeroGrad: "never"}},
		`Installed: "torch==0.4": want a package and its version`:        {input, estimate.Installed("torch==0.4")},
		`Installed: "torch 2.4": want a package and its version`:         {input, estimate.Installed("torch 2.4")},
		`Installed: "numpy==1.2": want a version of torch, transformers`: {input, estimate.Installed("torch==2.4.1+cu121", "numpy==1.2")},
		"Stored: -1 parameters in 2 bytes":                               {input, option(func(c *setting.Config) { c.Stored = setting.Amount{Count: -1, Bytes: 2} })},
		"a compute buffer of -1 bytes":                                   {input, computedIn(-1)},
		"cannot be cut into 99 stages: want at most":                     {input, estimate.Train("sgd"), estimate.Sharding{Pipeline: 99}},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := estimate.Model(vgg19, opts...)
			assert.ErrorContains(t, err, want)
		})
	}
}

func TestTokensAreNotMultiplied(t *testing.T) {
	_, err := estimate.Model([]nn.Layer{nn.Linear{In: 8, Out: 8}}, estimate.Tokens(2, 8))
	assert.ErrorContains(t, err, "0 (Linear): input (2, 8) is of int64, which is not multiplied: an Embedding reads Tokens")
}

func TestZeroQuantizationAndUnknownOptimizer(t *testing.T) {
	_, err := llamacpp.Quantization("q4").Stored(vgg19)
	assert.ErrorContains(t, err, `no Quantization is named "q4": want one of [IQ1_S `)
	_, err = setting.Optimizer("adams").State(alloc.Shape{1}, alloc.Float32)
	assert.ErrorContains(t, err, `Optimizer is "adams": want one of adam, adamw`)
	_, err = setting.Adam.State(alloc.Shape{1}, 99)
	assert.ErrorContains(t, err, "of an element type of package alloc")
}

func TestNilOptionsAreLeftOut(t *testing.T) {
	assert.Equal(t, model(t, vgg19).Params, model(t, vgg19, nil).Params)
}

func TestActivationsAreOfATypeOfTheirOwn(t *testing.T) {
	layers := []nn.Layer{nn.Linear{In: 8, Out: 8}, nn.Class("Tanh")}
	wide := model(t, layers, estimate.InputShape(4, 8), estimate.Train("sgd"))
	half := model(t, layers, estimate.InputShape(4, 8), estimate.Train("sgd"), estimate.Precision(alloc.BFloat16), estimate.Weights(alloc.Float32), estimate.Gradients(alloc.Float32))
	assert.Equal(t, wide.Retained, 2*half.Retained)
	assert.Equal(t, wide.Params, half.Params)
	assert.Equal(t, wide.Gradients, half.Gradients)
}

func TestLaterTypesWin(t *testing.T) {
	layers := []nn.Layer{nn.Linear{In: 100, Out: 100, NoBias: true}}
	for want, opts := range map[alloc.Bytes][]estimate.Option{
		16: {estimate.Precision(alloc.Float16), estimate.MixedPrecision(alloc.BFloat16)},
		8:  {estimate.MixedPrecision(alloc.BFloat16), estimate.Precision(alloc.Float16)},
		18: {estimate.MixedPrecision(alloc.BFloat16), estimate.Gradients(alloc.Float32)},
	} {
		r := model(t, layers, append(opts, estimate.Train("adam"))...)
		assert.Equal(t, want*10000, r.Training.Peak.Bytes, "bytes a parameter")
	}
	r := model(t, layers, estimate.MixedPrecision(alloc.Float32))
	assert.Zero(t, r.Training.Master, "float32 is its own master copy")
}

func TestMaxBatchEndsSomewhere(t *testing.T) {
	n, err := estimate.MaxBatch([]nn.Layer{nn.Linear{In: 1, Out: 1}}, 1024*alloc.TiB, estimate.InputShape(1, 1))
	require.NoError(t, err)
	assert.Equal(t, 1<<30, n)
	_, err = estimate.MaxBatch([]nn.Layer{nn.ReLU{}}, 1024*alloc.TiB, estimate.InputShape())
	assert.ErrorContains(t, err, "needs an input with a batch")
}

func TestTensorParallelismDividesHeads(t *testing.T) {
	for _, c := range []struct {
		heads, kv, tensor int
		ok                bool
	}{{12, 12, 4, true}, {12, 12, 5, false}, {12, 6, 4, false}, {12, 2, 4, true}, {12, 1, 12, true}, {12, 4, 24, false}} {
		layers := family.Transformer{Vocab: 64, Hidden: 96, FFN: 96, Blocks: 1, Heads: c.heads, KVHeads: c.kv}.Layers()
		_, err := estimate.Model(layer.Public(layers), estimate.Tokens(1, 4), estimate.Sharding{Tensor: c.tensor})
		if c.ok {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, fmt.Sprintf("%d heads, and %d of keys and values, do not divide among %d devices", c.heads, c.kv, c.tensor))
		}
	}
	_, err := estimate.Model([]nn.Layer{layer.Own(layer.LatentAttention{Hidden: 8, Heads: 6, KVRank: 4, NopeSize: 4, RopeSize: 4, ValueSize: 4})}, estimate.Sharding{Tensor: 4})
	assert.ErrorContains(t, err, "6 heads")
}
