package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Data2VecAudio is wav2vec 2.0 with several convolutions for positions, each with a norm that has no
// weight (transformers' modeling_data2vec_audio.py).
var Data2VecAudio = soundFamily("data2vec audio", family.Type{Name: "data2vec-audio", Base: "Data2VecAudioModel", Read: readData2VecAudio})

func readData2VecAudio(c *family.Config, a *family.Model) {
	readSounds(c, a, soundStyle{module: "data2vec_audio", heads: mostSoundHeads, positions: stackedConvs, adapts: true})
	own := family.Own[sounds](a.Transformer)
	c.Number(&own.convs, "num_conv_pos_embeddings", 5)
	c.Number(&own.kernel, "conv_pos_kernel_size", 19)
	own.normed, own.first, own.adapted = true, false, 0
	if own.convs > family.MaxBlocks {
		c.Fail("num_conv_pos_embeddings", "%d convolutions", own.convs)
		own.convs = 1
	}
}

func stackedConvs(c family.Transformer, s *sounds) tape.Layer {
	conv := layer.Conv1d{In: c.Hidden, Out: c.Hidden, Kernel: s.kernel, Padding: s.kernel / 2, Groups: s.groups}
	norm := layer.TurnedNorm{LayerNorm: layer.LayerNorm{Size: c.Hidden, NoAffine: true}}
	one := tape.Module{Name: "PositionalConvLayer", Parts: tape.Sequential{tape.As("conv", conv), tape.As("layer_norm", norm)}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Part(f.Call("conv", x), 2, x.Dim(2))
		return f.Apply(s.act.Layer(layer.UseGELU), f.Permute(f.Call("layer_norm", f.Permute(y, 0, 2, 1)), 0, 2, 1))
	}}
	return tape.Sequential{tape.Inline(tape.Permute{0, 2, 1}), tape.As("layers", tape.Repeat{N: s.convs, Layer: one}), tape.Inline(tape.Permute{0, 2, 1})}
}
