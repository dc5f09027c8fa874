package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

func lfm2MLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: &layer.GatedNames{Gate: "w1", Up: "w3", Down: "w2"}}
}

func lfm2Attention(_ Transformer, a *layer.Attention) {
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj", QNorm: "q_layernorm", KNorm: "k_layernorm"}
}

// shortConv is LFM2's: a convolution over few tokens between two gates.
func (c Transformer) shortConv() tape.Layer {
	width, kernel := min(c.Hidden, setting.MaxField/3), c.ShortConv
	parts := tape.Sequential{
		tape.Named{Name: "conv", Layer: layer.Conv1d{In: width, Out: width, Kernel: kernel, Padding: kernel - 1, Groups: width, NoBias: true}},
		tape.Named{Name: "in_proj", Layer: layer.Linear{In: width, Out: 3 * width, NoBias: true}},
		tape.Named{Name: "out_proj", Layer: layer.Linear{In: width, Out: width, NoBias: true}},
	}
	return tape.Module{Name: "ShortConv", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		gates := f.Split(f.Permute(f.Call("in_proj", x), 0, 2, 1), 1, width, width, width)
		y := f.Call("conv", f.Mul(gates[0], gates[2]))
		y = f.Mul(gates[1], f.Part(y, 2, x.Dim(1)))
		return f.Call("out_proj", f.Copy(f.Permute(y, 0, 2, 1)))
	}}
}
