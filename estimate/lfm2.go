package estimate

func lfm2MLP(c Transformer) Layer {
	return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, names: &gatedNames{gate: "w1", up: "w3", down: "w2"}}
}

func lfm2Attention(_ Transformer, a *Attention) {
	a.names = &attentionNames{q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj", qNorm: "q_layernorm", kNorm: "k_layernorm"}
}

// shortConv is LFM2's: a convolution over few tokens between two gates.
func (c Transformer) shortConv() Layer {
	width, kernel := min(c.Hidden, maxField/3), c.ShortConv
	parts := Sequential{
		Named{"conv", Conv1d{In: width, Out: width, Kernel: kernel, Padding: kernel - 1, Groups: width, NoBias: true}},
		Named{"in_proj", Linear{In: width, Out: 3 * width, NoBias: true}},
		Named{"out_proj", Linear{In: width, Out: width, NoBias: true}},
	}
	return Module{Name: "ShortConv", Parts: parts, Run: func(f *Flow, x Tensor) Tensor {
		gates := f.Split(f.Permute(f.Call("in_proj", x), 0, 2, 1), 1, width, width, width)
		y := f.Call("conv", f.Mul(gates[0], gates[2]))
		y = f.Mul(gates[1], f.Part(y, 2, x.Dim(1)))
		return f.Call("out_proj", f.Copy(f.Permute(y, 0, 2, 1)))
	}}
}
