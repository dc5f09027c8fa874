package estimate_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
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

func (d drawn) list(depth int) []estimate.Layer {
	layers := make([]estimate.Layer, rapid.IntRange(0, 5).Draw(d.t, "length"))
	for i := range layers {
		layers[i] = d.layer(depth)
	}
	return layers
}

func (d drawn) layer(depth int) estimate.Layer {
	n := func() int { return d.n("n") }
	simple := []func() estimate.Layer{
		func() estimate.Layer { return nil },
		func() estimate.Layer { return (*estimate.Shared)(nil) },
		func() estimate.Layer {
			return estimate.Conv1d{In: n(), Out: n(), Kernel: n(), Stride: n(), Padding: n()}
		},
		func() estimate.Layer {
			return estimate.Conv2d{In: n(), Out: n(), Kernel: n(), Stride: n(), Padding: n(), Dilation: n(), Groups: n(), KernelHW: [2]int{n(), n()}}
		},
		func() estimate.Layer { return estimate.Conv3d{In: n(), Out: n(), Kernel: n()} },
		func() estimate.Layer {
			return estimate.ConvTranspose2d{In: n(), Out: n(), Kernel: n(), Stride: n(), Padding: n(), OutputPadding: n(), Groups: n()}
		},
		func() estimate.Layer {
			return estimate.Linear{In: n(), Out: n(), Tied: rapid.SampledFrom([]string{"", "0.weight", "x"}).Draw(d.t, "tied")}
		},
		func() estimate.Layer { return estimate.Embedding{Num: n(), Dim: n()} },
		func() estimate.Layer { return estimate.BatchNorm{Features: n()} },
		func() estimate.Layer { return estimate.LayerNorm{Size: n()} },
		func() estimate.Layer { return estimate.GroupNorm{Groups: n(), Channels: n()} },
		func() estimate.Layer {
			return estimate.RMSNorm{Size: n(), Unfused: d.yes("unfused"), Shifted: d.yes("shifted")}
		},
		func() estimate.Layer { return estimate.ReLU{InPlace: d.yes("in place")} },
		func() estimate.Layer { return estimate.SiLU{InPlace: d.yes("in place")} },
		func() estimate.Layer { return estimate.NewGELU{} },
		func() estimate.Layer { return estimate.QuickGELU{} },
		func() estimate.Layer { return estimate.Softmax{} },
		func() estimate.Layer { return estimate.Dropout{P: rapid.Float64().Draw(d.t, "p")} },
		func() estimate.Layer { return estimate.StochasticDepth{} },
		func() estimate.Layer { return estimate.MaxPool{Kernel: n(), Stride: n(), Padding: n(), Dims: n()} },
		func() estimate.Layer { return estimate.AvgPool{Kernel: n(), Dims: n(), Ceil: true} },
		func() estimate.Layer { return estimate.AdaptiveAvgPool{Out: n(), Dims: n()} },
		func() estimate.Layer { return estimate.Flatten{Start: n()} },
		func() estimate.Layer { return estimate.Reshape{Dims: []int{n(), n(), -1}} },
		func() estimate.Layer { return estimate.Upsample{Scale: n()} },
		func() estimate.Layer {
			return estimate.LSTM{In: n(), Hidden: n(), Layers: n(), Bidirectional: d.yes("both")}
		},
		func() estimate.Layer { return estimate.GRU{In: n(), Hidden: n()} },
		func() estimate.Layer {
			return estimate.Attention{Hidden: n(), Heads: n(), KVHeads: n(), HeadSize: n(), Rotary: true, RotaryDim: n(), Packed: d.yes("packed"), Plain: d.yes("plain"),
				QKNorm: estimate.QKNorm(d.n("norm") & 3), Eager: d.yes("eager"), Capped: d.yes("capped"), Sinks: d.yes("sinks")}
		},
		func() estimate.Layer {
			return estimate.LatentAttention{Hidden: n(), Heads: n(), QueryRank: n(), KVRank: n(), NopeSize: n(), RopeSize: n(), ValueSize: n()}
		},
		func() estimate.Layer { return estimate.MLP{Hidden: n(), FFN: n()} },
		func() estimate.Layer { return estimate.GatedMLP{Hidden: n(), FFN: n(), Packed: d.yes("packed")} },
		func() estimate.Layer {
			return estimate.MoE{Hidden: n(), FFN: n(), Experts: n(), TopK: n(), Shared: n(), Router: estimate.Router(d.n("router") & 3)}
		},
		func() estimate.Layer { return estimate.CrossEntropy{Dim: n()} },
		func() estimate.Layer { return estimate.MSE{} },
		func() estimate.Layer { return estimate.Parameter{Shape: alloc.Shape{n(), n()}} },
		func() estimate.Layer {
			return estimate.Sequential(estimate.Transformer{
				Family: estimate.Family(rapid.IntRange(0, 12).Draw(d.t, "family")), Vocab: n(), Hidden: n(), Blocks: rapid.IntRange(-1, 3).Draw(d.t, "blocks"),
				Heads: n(), KVHeads: n(), HeadSize: n(), FFN: n(), Positions: n(), RotaryDim: n(), Experts: n(), ExpertFFN: n(), DenseBlocks: n(), SharedFFN: n(), Tied: d.yes("tied"), Image: n(), Patch: n(), Classes: n(),
			}.Layers())
		},
	}
	if depth > 0 {
		nested := func() estimate.Layer { return d.layer(depth - 1) }
		simple = append(simple,
			func() estimate.Layer { return estimate.Sequential(d.list(depth - 1)) },
			func() estimate.Layer { return estimate.Named{Name: "named", Layer: nested()} },
			func() estimate.Layer { return estimate.Residual{Body: nested(), Shortcut: nested(), After: nested()} },
			func() estimate.Layer { return estimate.Concat{Branches: d.list(depth - 1), Dim: n()} },
			func() estimate.Layer {
				return estimate.Repeat{N: rapid.IntRange(-1, 4).Draw(d.t, "n"), Layer: nested()}
			},
			func() estimate.Layer { return estimate.Recompute{Layer: nested()} },
			func() estimate.Layer {
				s := estimate.Share(nested())
				return estimate.Sequential{s, s}
			},
		)
	}
	return simple[rapid.IntRange(0, len(simple)-1).Draw(d.t, "kind")]()
}

// check draws a model and holds what Model says against what must always be
// true; a panic fails the test by itself.
func check(t *rapid.T) {
	d := drawn{t}
	opts := []estimate.Option{
		estimate.Train(estimate.Optimizer(rapid.IntRange(0, 7).Draw(t, "optimizer"))),
		estimate.On(estimate.Backend(rapid.IntRange(0, 1).Draw(t, "backend"))),
	}
	if d.yes("shard") {
		opts = append(opts, estimate.Shard(estimate.Sharding{Data: d.n("data"), ZeRO: d.n("zero") % 4, Tensor: d.n("tensor"), Pipeline: d.n("pipeline")}))
	}
	if d.yes("checkpoint") {
		opts = append(opts, estimate.Checkpointed("*"))
	}
	switch rapid.IntRange(0, 3).Draw(t, "input") {
	case 0:
		opts = append(opts, estimate.Tokens(d.n("batch"), d.n("length")))
	case 1, 2:
		shape := make([]int, rapid.IntRange(0, 5).Draw(t, "dims"))
		for i := range shape {
			shape[i] = d.n("dim")
		}
		opts = append(opts, estimate.Input(shape...))
	}
	r, err := estimate.Model(d.list(3), opts...)
	if err != nil {
		require.Nil(t, r)
		require.NotEmpty(t, err.Error())
		return
	}
	_ = r.String()
	_, err = r.MarshalJSON()
	require.NoError(t, err)
	for _, m := range []estimate.Memory{r.Inference, r.Training} {
		parts := []alloc.Bytes{m.Weights, m.Buffers, m.Master, m.Optimizer, m.Input, m.Cache, m.Gradients, m.Saved, m.Transient}
		sum := alloc.Bytes(0)
		for _, p := range parts {
			require.GreaterOrEqual(t, p, alloc.Bytes(0), "%+v", m)
			sum += p
		}
		require.Equal(t, sum, m.Peak)
	}
}

func TestModelNeverPanics(t *testing.T) { rapid.Check(t, check) }

func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(check)) }

func TestHugeRepeatIsAnError(t *testing.T) {
	l := estimate.Layer(estimate.ReLU{})
	for range 5 {
		l = estimate.Repeat{N: math.MaxInt32, Layer: l}
	}
	_, err := estimate.Model([]estimate.Layer{l}, estimate.Input(1, 1))
	var layer *estimate.LayerError
	require.True(t, errors.As(err, &layer))
	require.ErrorContains(t, err, "more than")
}
