package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// FalconH1 is Llama with a mixer of Mamba 2 beside attention in each layer, and constant factors
// (modeling_falcon_h1.py).
var FalconH1 = &Family{
	Name: "Falcon-H1",
	style: style{
		names: decoderNames{last: "final_layernorm", mlp: "feed_forward"}, embedded: multiplied, after: multiplied, block: falconH1Block,
		recurrent: func(c Transformer) *recurrence {
			s := headSpace(c)
			r := replaced("mamba", layer.HeadMixer{Hidden: c.Hidden, HeadSpace: s}, s.Keeps())
			r.beside = true
			return r
		},
	},
	Types: []Type{{Name: "falcon_h1", Base: "FalconH1Model", Read: readFalconH1}},
	GGUF:  []GGUF{{Name: "falcon-h1", Read: ggufFalconH1}},
}

// falconH1Block adds the outputs of the mixer and of attention, which read one norm.
func falconH1Block(_ Transformer, b blockParts) tape.Layer {
	parts := tape.Sequential{b.mlp, b.recurrent, b.attention, tape.As("input_layernorm", b.norm), tape.As("pre_ff_layernorm", b.norm)}
	return tape.Module{Name: "DecoderBlock", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		normed := f.Call("input_layernorm", x)
		mixed := f.Scale(f.Call("mamba", normed))
		attended := f.Scale(f.Call("self_attn", f.Scale(normed)))
		x = f.Add(x, f.Add(mixed, attended))
		return f.Add(x, f.Scale(f.Call("feed_forward", f.Call("pre_ff_layernorm", x))))
	}}
}

func readFalconH1(c *Config, a *Model) {
	c.biases(a)
	c.likeLlama(a)
	s := headSpaceOf(c, a)
	c.optional(&s.Inner, "mamba_d_ssm") // null means that the Hidden is expanded
	s.OutBias, s.Scaled = c.Flag("projectors_bias", false), true
	switch {
	case !c.Flag("mamba_rms_norm", false):
		s.Gate = layer.GateAlone
	case c.Flag("mamba_norm_before_gate", true):
		s.Gate = layer.NormFirst
	}
	a.mark(Recurrent, func(int) bool { return true })
}
