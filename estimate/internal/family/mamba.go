package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// mamba builds Mamba: blocks of a state-space mixer, and a stream between them in float32.
func (c Transformer) mamba() []tape.Layer {
	block := layer.MambaBlock{Norm: layer.RMSNorm{Size: c.Hidden, Unfused: true}, Mixer: layer.MambaMixer{Hidden: c.Hidden, StateSpace: *c.stateSpace()}}
	layers := []tape.Layer{tape.Named{Name: "backbone", Layer: tape.Sequential{
		tape.Named{Name: "embeddings", Layer: layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
		tape.Named{Name: "layers", Layer: tape.Repeat{N: c.Blocks, Layer: block}},
		tape.Named{Name: "norm_f", Layer: layer.RMSNorm{Size: c.Hidden, Unfused: true}},
	}}}
	if c.NoHead {
		return layers
	}
	head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: nn.ByColumns}
	if c.Tied {
		head.Tied = "backbone.embeddings.weight"
	}
	return append(layers, tape.Inlined{Layer: layer.Narrowed{}}, tape.Named{Name: "lm_head", Layer: head})
}

func (c Transformer) stateSpace() *layer.StateSpace {
	s := layer.StateSpace{}
	if c.Mixer != nil {
		s = *c.Mixer
	}
	hidden := min(max(c.Hidden, 0), setting.MaxField/2)
	s.Inner, s.State, s.Rank, s.Kernel = setting.Or(s.Inner, 2*hidden), setting.Or(s.State, 16), setting.Or(s.Rank, (hidden+15)/16), setting.Or(s.Kernel, 4)
	return &s
}
