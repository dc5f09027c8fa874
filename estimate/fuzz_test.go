package estimate_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/vision"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/families"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// drawn makes layers of numbers that are mostly small and sometimes absurd.
type drawn struct{ t *rapid.T }

func (d drawn) n(name string) int {
	if rapid.IntRange(0, 30).Draw(d.t, name+" is absurd") == 0 {
		return rapid.SampledFrom([]int{-1, math.MinInt, math.MaxInt, math.MaxInt32, math.MaxInt / 2}).Draw(d.t, name)
	}
	return rapid.SampledFrom([]int{0, 1, 1, 1, 1, 1, 1, 2, 2, 4, 8}).Draw(d.t, name)
}

func (d drawn) yes(name string) bool { return rapid.Bool().Draw(d.t, name) }

// word draws one of the words, or none.
func (d drawn) word(name string, words ...string) string {
	return rapid.SampledFrom(append([]string{""}, words...)).Draw(d.t, name)
}

func (d drawn) list(depth int) []tape.Layer {
	layers := make([]tape.Layer, rapid.IntRange(0, 5).Draw(d.t, "length"))
	for i := range layers {
		layers[i] = d.layer(depth)
	}
	return layers
}

func (d drawn) layer(depth int) tape.Layer {
	n := func() int { return d.n("n") }
	simple := []func() tape.Layer{
		func() tape.Layer { return nil },
		func() tape.Layer { return (*tape.Shared)(nil) },
		func() tape.Layer {
			return layer.Conv1d{In: n(), Out: n(), Kernel: n(), Stride: n(), Padding: n()}
		},
		func() tape.Layer {
			return layer.Conv2d{In: n(), Out: n(), Kernel: n(), Stride: n(), Padding: n(), Dilation: n(), Groups: n(), Kernels: [3]int{n(), n()}}
		},
		func() tape.Layer { return layer.Conv3d{In: n(), Out: n(), Kernel: n()} },
		func() tape.Layer {
			return layer.ConvTranspose2d{In: n(), Out: n(), Kernel: n(), Stride: n(), Padding: n(), OutputPadding: n(), Groups: n()}
		},
		func() tape.Layer {
			return layer.Linear{In: n(), Out: n(), Tied: rapid.SampledFrom([]string{"", "0.weight", "x"}).Draw(d.t, "tied")}
		},
		func() tape.Layer { return layer.Embedding{Num: n(), Dim: n()} },
		func() tape.Layer { return layer.BatchNorm{Features: n()} },
		func() tape.Layer { return layer.LayerNorm{Size: n()} },
		func() tape.Layer { return layer.GroupNorm{Groups: n(), Channels: n()} },
		func() tape.Layer {
			return layer.RMSNorm{Size: n(), Unfused: d.yes("unfused"), Shifted: d.yes("shifted")}
		},
		func() tape.Layer { return layer.ReLU{InPlace: d.yes("in place")} },
		func() tape.Layer { return layer.SiLU{InPlace: d.yes("in place")} },
		func() tape.Layer { return layer.NewGELU{} },
		func() tape.Layer { return layer.QuickGELU{} },
		func() tape.Layer { return layer.Softmax{} },
		func() tape.Layer { return layer.Dropout{P: rapid.Float64().Draw(d.t, "p")} },
		func() tape.Layer { return layer.StochasticDepth{} },
		func() tape.Layer { return layer.ChannelDropout{} },
		func() tape.Layer { return layer.MaxPool{Kernel: n(), Stride: n(), Padding: n()} },
		func() tape.Layer {
			return layer.MaxPool{Kernels: [3]int{n(), n(), n()}, Strides: [3]int{n(), n(), n()}, Paddings: [3]int{n(), n(), n()}}
		},
		func() tape.Layer { return layer.AvgPool{Kernel: n(), Ceil: true} },
		func() tape.Layer { return layer.AdaptiveAvgPool(n()) },
		func() tape.Layer { return layer.Flatten{Start: n()} },
		func() tape.Layer { return layer.Reshape{n(), n(), -1} },
		func() tape.Layer { return layer.Upsample(n()) },
		func() tape.Layer {
			return layer.LSTM{In: n(), Hidden: n(), Layers: n(), Bidirectional: d.yes("both")}
		},
		func() tape.Layer { return layer.GRU{In: n(), Hidden: n()} },
		func() tape.Layer {
			return layer.Attention{Hidden: n(), Heads: n(), KVHeads: n(), HeadSize: n(), Rotary: true, RotaryDim: n(), Packed: d.yes("packed"), Plain: d.yes("plain"),
				QKNorm: layer.QKNorm(d.n("norm") & 3), Eager: d.yes("eager"), Capped: d.yes("capped"), Sinks: d.yes("sinks")}
		},
		func() tape.Layer {
			return layer.Attention{Hidden: n(), Heads: n(), Cross: d.yes("cross"), Bias: &layer.RelativeBias{Buckets: n(), Causal: d.yes("causal")}}
		},
		func() tape.Layer {
			return layer.WindowAttention{Hidden: n(), Heads: n(), Window: n(), Shifted: d.yes("shifted"), Packed: d.yes("packed"), Plain: d.yes("plain")}
		},
		func() tape.Layer { return layer.PatchMerging{Channels: n()} },
		func() tape.Layer { return layer.ZeroPad2d{n(), n(), n(), n()} },
		func() tape.Layer {
			return layer.LatentAttention{Hidden: n(), Heads: n(), QueryRank: n(), KVRank: n(), NopeSize: n(), RopeSize: n(), ValueSize: n()}
		},
		func() tape.Layer { return layer.MLP{Hidden: n(), FFN: n()} },
		func() tape.Layer { return layer.GatedMLP{Hidden: n(), FFN: n(), Packed: d.yes("packed")} },
		func() tape.Layer {
			return layer.MoE{Hidden: n(), FFN: n(), Experts: n(), TopK: n(), Shared: n(), Router: layer.Router(d.n("router") & 3)}
		},
		func() tape.Layer { return layer.CrossEntropy{Dim: n()} },
		func() tape.Layer {
			return layer.HeadLoss{Linear: layer.Linear{In: n(), Out: n()}, Chunks: n(), Loss: layer.NextToken{Fused: d.yes("fused")}, InForward: d.yes("in forward")}
		},
		func() tape.Layer { return layer.MSE{} },
		func() tape.Layer { return layer.InstanceNorm{Features: n(), Affine: d.yes("affine")} },
		func() tape.Layer { return layer.LayerNorm2d{Channels: n()} },
		func() tape.Layer { return layer.LocalResponseNorm(n()) },
		func() tape.Layer { return layer.AdaptiveMaxPool(n()) },
		func() tape.Layer { return layer.PixelShuffle(n()) },
		func() tape.Layer { return tape.Permute{n(), n(), n()} },
		func() tape.Layer { return tape.Permute{0, 2, 1} },
		func() tape.Layer {
			return layer.SqueezeExcite{Channels: n(), Middle: n(), Gate: layer.Hardsigmoid{}}
		},
		func() tape.Layer { return layer.PReLU(n()) },
		func() tape.Layer { return layer.CTC(n()) },
		func() tape.Layer { return layer.NLL{} },
		func() tape.Layer { return layer.KLDiv{} },
		func() tape.Layer { return flowing(n(), n()) },
		func() tape.Layer { return layer.Learned{Shape: alloc.Shape{n(), n()}} },
		func() tape.Layer {
			return tape.Sequential(family.Transformer{
				Family: rapid.SampledFrom(append(families.Table().All(), nil)).Draw(d.t, "family"), Vocab: n(), Hidden: n(), Blocks: rapid.IntRange(-1, 3).Draw(d.t, "blocks"),
				Heads: n(), KVHeads: n(), HeadSize: n(), FFN: n(), Positions: n(), Attention: family.Attention{RotaryDim: n(), Window: n(), Buckets: n()}, Mixture: family.Mixture{Experts: n(), ExpertFFN: n(), DenseBlocks: n(), SharedFFN: n()}, Tied: d.yes("tied"), Pixels: family.Pixels{Image: n(), Patch: n(), Channels: n(), Merge: n()}, Head: family.Head{Classes: n(), NoHead: d.yes("no head")}, Decoder: family.Decoder{SourceLength: n()}, EmbedDim: n(),
				Own: rapid.SampledFrom([]any{
					nil, &layer.DeltaNet{KeyHeads: n(), ValueHeads: n(), KeySize: n(), ValueSize: n(), Kernel: n()}, &family.ShortConv{Kernel: n()},
					&layer.StateSpace{Inner: n(), State: n(), Rank: n(), Kernel: n()}, &family.AltUp{Inputs: n(), Rank: n(), Vocab: n(), Size: n()},
					&vision.Stages{Each: []vision.Stage{{Blocks: rapid.IntRange(-1, 2).Draw(d.t, "stage"), Heads: n()}, {Blocks: 1, Heads: n()}}},
				}).Draw(d.t, "own"),
				Kinds: []family.BlockKind{family.BlockKind(d.n("kind") & 15), family.Recurrent},
			}.Layers())
		},
	}
	if depth > 0 {
		nested := func() tape.Layer { return d.layer(depth - 1) }
		simple = append(simple,
			func() tape.Layer { return tape.Sequential(d.list(depth - 1)) },
			func() tape.Layer { return tape.Named{Name: "named", Layer: nested()} },
			func() tape.Layer { return tape.Inline(nested()) },
			func() tape.Layer { return tape.If(d.yes("if"), nested()) },
			func() tape.Layer { return tape.Residual{Body: nested(), Shortcut: nested(), After: nested()} },
			func() tape.Layer { return tape.Concat{Branches: d.list(depth - 1), Dim: n()} },
			func() tape.Layer {
				return tape.Repeat{N: rapid.IntRange(-1, 4).Draw(d.t, "n"), Layer: nested()}
			},
			func() tape.Layer {
				s := tape.Share(nested())
				return tape.Sequential{s, s}
			},
		)
	}
	return simple[rapid.IntRange(0, len(simple)-1).Draw(d.t, "kind")]()
}

// flowing is a Module whose Run does not look whether anything went wrong.
func flowing(a, b int) tape.Layer {
	return tape.Module{
		Parts: tape.Sequential{tape.As("in", layer.Linear{In: a, Out: b}), tape.As("beside", second{})},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			y := f.Call("in", x)
			z := f.Permute(f.View(y, a, -1, b), 1, 0, 2)
			z = f.Part(f.Copy(z), b, a)
			w := f.MatMul(z, f.Call("beside", y, z), b, z.Dim(0), z.Dim(-1))
			return f.Add(f.Mul(x, w), f.Apply(layer.Softmax{}, f.Cat(a, x, f.Input(b))))
		},
	}
}

// second returns what it is called with besides.
type second struct{}

func (second) Forward(t *tape.Tape, _ tape.Tensor) tape.Tensor {
	return t.Beside(0)
}

// check draws a model and holds what Model says against what must always be
// true; a panic fails the test by itself.
func check(t *rapid.T) {
	d := drawn{t}
	opts := []estimate.Option{
		estimate.Train(d.word("optimizer", "none", "sgd", "momentum", "adam", "adamw", "adam8bit", "adafactor", "lion", "muon")),
	}
	if d.yes("cpu") {
		opts = append(opts, estimate.OnCPU())
	}
	opts = append(opts, estimate.Loop{
		ZeroGrad: d.word("zero grad", "first", "backward", "kept"), Output: d.word("output", "held", "in-pass", "dropped"), Form: d.word("form", "foreach", "one-by-one", "fused"), MicroBatches: d.n("accumulate") & 3, InBackward: d.yes("in backward"),
	}, estimate.Offloaded(d.word("offload", "optimizer", "parameters", "paged")), estimate.Machine{GPU: d.word("gpu", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")})
	if d.yes("autocast") {
		opts = append(opts, estimate.Autocast(alloc.BFloat16))
	}
	switch rapid.IntRange(0, 15).Draw(t, "trained") {
	case 0:
		opts = append(opts, estimate.LoRA{Rank: d.n("rank"), Targets: []string{"*"}})
	case 1:
		opts = append(opts, estimate.Frozen("0"))
	}
	if d.yes("shard") {
		opts = append(opts, estimate.Sharding{Data: d.n("data"), ZeRO: d.n("zero") % 4, Tensor: d.n("tensor"), Pipeline: d.n("pipeline"), Experts: d.n("experts"),
			Sequence: d.word("sequence", "kept", "again"), By: d.word("by", "fsdp2", "deepspeed"), Ends: d.yes("ends"), Overlap: d.yes("overlap"), Bucket: d.n("bucket"), Reuse: d.n("reuse")})
	}
	if d.yes("checkpoint") {
		opts = append(opts, estimate.Checkpointed("*"))
	}
	if d.yes("quantized") {
		opts = append(opts, estimate.Quantized{Base: d.word("base", "nf4", "nf4-double", "int8", "gptq", "awq")}, estimate.Installed(fmt.Sprintf("bitsandbytes==0.%d.0", 40+d.n("bitsandbytes")&7)))
	}
	if d.yes("judged") {
		opts = append(opts, estimate.WithLoss(layer.Public([]tape.Layer{layer.HeadLoss{Chunks: d.n("chunks")}})[0]))
	}
	switch rapid.IntRange(0, 3).Draw(t, "input") {
	case 0:
		opts = append(opts, estimate.Tokens(d.n("batch"), d.n("length")))
	case 1, 2:
		shape := make([]int, rapid.IntRange(0, 5).Draw(t, "dims"))
		for i := range shape {
			shape[i] = d.n("dim")
		}
		opts = append(opts, estimate.InputShape(shape...))
	}
	r, err := estimate.Model(layer.Public(d.list(3)), opts...)
	if err != nil {
		require.Nil(t, r)
		require.NotEmpty(t, err.Error())
		return
	}
	holds(t, r)
}

// holds checks what is true of every report.
func holds(t *rapid.T, r *estimate.Report) {
	_ = r.String()
	_, err := r.MarshalJSON()
	require.NoError(t, err)
	for _, m := range []estimate.Memory{r.Inference, r.Training} {
		parts := []alloc.Bytes{m.Weights, m.Buffers, m.Master, m.Optimizer, m.Input, m.Cache, m.Buckets, m.Gradients, m.Saved, m.Transient}
		sum := alloc.Bytes(0)
		for _, p := range parts {
			require.GreaterOrEqual(t, p, alloc.Bytes(0), "%+v", m)
			sum += p
		}
		require.Equal(t, sum, m.Peak.Bytes)
		f := m.Footprint
		for _, value := range []estimate.Value{f.Allocated, f.Reserved, f.Context, f.Device, f.Needed} {
			require.LessOrEqual(t, value.Lower, value.Bytes, "%+v", f)
			require.LessOrEqual(t, value.Bytes, value.Upper, "%+v", f)
		}
		asked := m.Peak // of which Uncertain are the terms
		if f != (estimate.Footprint{}) {
			asked = f.Needed
		}
		for _, u := range m.Uncertain {
			require.NotEmpty(t, u.Of)
			require.NotEmpty(t, u.Reason)
			require.True(t, u.Less > 0 || u.More > 0, "%v", u)
			asked.Upper -= u.More
		}
		require.Equal(t, asked.Bytes, asked.Upper, "the terms add up")
		require.GreaterOrEqual(t, m.Peak.Lower, m.Weights+m.Buffers+m.Master+m.Optimizer+m.Cache, "what is exact is not widened")
		if f != (estimate.Footprint{}) {
			require.LessOrEqual(t, m.Peak.Bytes, f.Allocated.Bytes, "%+v", m)
			require.LessOrEqual(t, f.Allocated.Bytes, f.Reserved.Bytes, "%+v", f)
			require.LessOrEqual(t, f.Needed.Bytes, f.Device.Bytes, "%+v", f)
		}
	}
}

func TestModelNeverPanics(t *testing.T) { rapid.Check(t, check) }

// checkTransformer draws a transformer that is right, in training or serving, by any way.
func checkTransformer(t *rapid.T) {
	d := drawn{t}
	pick := func(name string, of ...int) int { return rapid.SampledFrom(of).Draw(t, name) }
	kv := pick("kv heads", 1, 2, 4)
	c := family.Transformer{
		Family: rapid.SampledFrom([]*family.Family{nil, family.Gemma, family.Gemma2, family.OLMo2, family.GPTOSS, family.Phi, family.Phi3, family.GLM, family.GLM4, family.ChatGLM}).Draw(t, "family"), Vocab: pick("vocab", 100, 5000), KVHeads: kv, Heads: 2 * kv * pick("group", 1, 2),
		HeadSize: pick("head size", 8, 64), Blocks: pick("blocks", 1, 2, 6), FFN: pick("ffn", 16, 1000), Positions: 64,
		Dropout: []float64{0, 0.1}[pick("dropout", 0, 1)], Attention: family.Attention{Plain: d.yes("plain")}, Tied: d.yes("tied"), Pixels: family.Pixels{Image: 32, Patch: 16}, Head: family.Head{Classes: pick("classes", 0, 3)},
	}
	c.Hidden = c.Heads * c.HeadSize
	if c.Family == family.GPTOSS {
		c.Experts = 4
	}
	opts := []estimate.Option{
		estimate.Train(d.word("optimizer", "none", "sgd", "momentum", "adam", "adamw", "adam8bit", "adafactor", "lion", "muon")), estimate.Installed(fmt.Sprintf("torch==%d.%d", pick("torch", 1, 2), pick("minor", 3, 10, 12))),
		estimate.Loop{ZeroGrad: d.word("zero grad", "first", "backward", "kept"), Output: d.word("output", "held", "in-pass", "dropped"),
			Form: d.word("form", "foreach", "one-by-one", "fused"), MicroBatches: pick("accumulate", 0, 1, 3)},
		estimate.Precision([]alloc.DType{alloc.Float32, alloc.BFloat16}[pick("precision", 0, 1)]),
	}
	if d.yes("in backward") {
		opts = append(opts, estimate.Loop{InBackward: true})
	}
	opts = append(opts, estimate.Offloaded(d.word("offload", "optimizer", "parameters")))
	if d.yes("autocast") {
		opts = append(opts, estimate.Precision(alloc.Float32), estimate.Autocast(alloc.Float16))
	}
	if d.yes("shard") {
		opts = append(opts, estimate.Sharding{Data: pick("data", 1, 4), ZeRO: pick("zero", 0, 1, 2, 3), Tensor: pick("tensor", 1, 2), By: d.word("by", "fsdp2", "deepspeed"), Sequence: d.word("sequence", "kept", "again"), Ends: d.yes("ends"), Experts: pick("experts", 1, 2)})
	}
	if d.yes("freeze") {
		opts = append(opts, estimate.Frozen("*"))
	}
	if c.Family == vision.ViT {
		opts = append(opts, estimate.InputShape(pick("batch", 1, 3), 3, 32, 32))
	} else {
		batch := pick("batch", 1, 3)
		opts = append(opts, estimate.Tokens(batch, pick("length", 1, 64)))
		if !c.Family.Encoder() && d.yes("cache") {
			opts = append(opts, estimate.KVConfig(c.Cache(batch, pick("context", 64, 500), 0)))
		}
	}
	r, err := estimate.Model(layer.Public(c.Layers()), opts...)
	require.NoError(t, err)
	holds(t, r)
}

func TestTransformers(t *testing.T) { rapid.Check(t, checkTransformer) }

func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(check)) }

func TestHugeRepeatIsAnError(t *testing.T) {
	l := tape.Layer(layer.ReLU{})
	for range 5 {
		l = tape.Repeat{N: math.MaxInt32, Layer: l}
	}
	_, err := estimate.Model(layer.Public([]tape.Layer{l}), estimate.InputShape(1, 1))
	var layer *estimate.LayerError
	require.True(t, errors.As(err, &layer))
	require.ErrorContains(t, err, "more than")
}
