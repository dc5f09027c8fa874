package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// HuBERT is wav2vec 2.0 without an adapter and with fewer classes. The convolution of its positions may have a BatchNorm
// in place of the weight norm (transformers' modeling_hubert.py).
var HuBERT = soundFamily("HuBERT", family.Type{Name: "hubert", Base: "HubertModel", Read: readHuBERT})

func readHuBERT(c *family.Config, a *family.Model) {
	style := soundStyle{module: "hubert", heads: someSoundHeads}
	if c.Flag("conv_pos_batch_norm", false) {
		style.positions = batchNormedConv
	}
	readSounds(c, a, style)
	family.Own[sounds](a.Transformer).unnormed = !c.Flag("feat_proj_layer_norm", true)
}

// batchNormedConv returns the convolution that adds positions to normed vectors.
func batchNormedConv(c family.Transformer, s *sounds) tape.Layer {
	parts := tape.Sequential{
		tape.As("conv", layer.Conv1d{In: c.Hidden, Out: c.Hidden, Kernel: s.kernel, Padding: s.kernel / 2, Groups: s.groups}),
		tape.As("batch_norm", layer.BatchNorm{Features: c.Hidden}),
	}
	return tape.Module{Name: "PositionalConvEmbedding", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv", f.Call("batch_norm", f.Permute(x, 0, 2, 1)))
		return f.Permute(f.Apply(s.act.Layer(layer.UseGELU), f.Part(y, 2, x.Dim(1))), 0, 2, 1)
	}}
}
