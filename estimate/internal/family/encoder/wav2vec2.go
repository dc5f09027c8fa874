package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Wav2Vec2 reads sound, as samples: convolutions turn them into few vectors, which an encoder reads
// (arXiv:2006.11477; transformers' modeling_wav2vec2.py). Here nothing is masked, and no block is
// skipped at random.
var Wav2Vec2 = &family.Family{
	Name:   "wav2vec 2.0",
	Layers: wav2vec2,
	Input: func(_ *family.Model, batch, length int) []family.Input {
		return []family.Input{family.Reals(batch, length)}
	},
	Role:  family.Encoder,
	Usual: 160_000, // ten seconds at 16,000 samples a second
	Types: []family.Type{{Name: "wav2vec2", Base: "Wav2Vec2Model", Read: readWav2Vec2}},
}

// sounds holds the settings that only wav2vec 2.0 has.
type sounds struct {
	widths, kernels, strides []int   // of the convolutions
	biased                   bool    // they have biases
	normed                   bool    // each convolution has a norm, not only the first
	first                    bool    // norms come before attention and MLP, not after
	masks                    bool    // a learned vector replaces what training masks
	kernel, groups           int     // of the convolution that adds positions
	middle, projected, last  float64 // dropouts of the MLP, of the encoder's input and of its output
}

func wav2vec2(c family.Transformer) []tape.Layer {
	own := family.Own[sounds](c)
	if own == nil {
		own = &sounds{widths: []int{1}, kernels: []int{1}, strides: []int{1}, kernel: 1, groups: 1}
	}
	drop := func(p float64) tape.Layer { return (family.Transformer{Dropout: p}).Drop() }
	norm := layer.LayerNorm{Size: c.Hidden}
	wide := own.widths[len(own.widths)-1]
	encoder := tape.Sequential{tape.Skip(tape.As("pos_conv_embed", own.positionConv(c.Hidden)))}
	if !own.first {
		encoder = append(encoder, tape.As("layer_norm", norm))
	}
	encoder = append(encoder, tape.Inline(c.Drop()), tape.As("layers", tape.Repeat{N: c.Blocks, Layer: soundBlock(c, own, drop(own.middle))}))
	if own.first {
		encoder = append(encoder, tape.As("layer_norm", norm))
	}
	body := tape.Sequential{
		tape.As("feature_extractor", own.extractor()),
		tape.As("feature_projection", tape.Sequential{
			tape.As("layer_norm", layer.TurnedNorm{LayerNorm: layer.LayerNorm{Size: wide}}), tape.As("projection", layer.Linear{In: wide, Out: c.Hidden}), tape.Inline(drop(own.projected)),
		}),
	}
	if own.masks {
		body = append(body, tape.Inline(maskVector{c.Hidden}))
	}
	body = append(body, tape.As("encoder", encoder))
	if c.NoHead {
		return []tape.Layer{tape.Inline(body)}
	}
	return []tape.Layer{tape.As("wav2vec2", body), tape.Inline(drop(own.last)), tape.As("lm_head", layer.Linear{In: c.Hidden, Out: c.Vocab})}
}

// extractor returns the convolutions.
func (s sounds) extractor() tape.Layer {
	parts := tape.Sequential{}
	in := 1
	for i, out := range s.widths {
		conv := tape.As("conv", layer.Conv1d{In: in, Out: out, Kernel: s.kernels[i], Stride: s.strides[i], NoBias: !s.biased})
		one := tape.Sequential{conv}
		switch {
		case s.normed:
			one = append(one, tape.Inline(tape.Permute{0, 2, 1}), tape.As("layer_norm", layer.TurnedNorm{LayerNorm: layer.LayerNorm{Size: out}}), tape.Inline(tape.Permute{0, 2, 1}))
		case i == 0:
			one = append(one, tape.As("layer_norm", layer.GroupNorm{Groups: out, Channels: out}))
		}
		parts = append(parts, append(one, tape.Inline(layer.GELU{})))
		in = out
	}
	return tape.Module{Name: "FeatureEncoder", Parts: tape.Sequential{tape.As("conv_layers", parts)}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv_layers", f.View(x, x.Dim(0), 1, x.Dim(1)))
		return f.Permute(y, 0, 2, 1)
	}}
}

// positionConv returns the convolution that adds positions. Its weight norm computes the weight from
// directions and lengths in each pass.
func (s sounds) positionConv(hidden int) tape.Layer {
	conv := layer.Conv1d{In: hidden, Out: hidden, Kernel: s.kernel, Padding: s.kernel / 2, Groups: s.groups}
	parts := tape.Sequential{tape.As("conv", conv), tape.Inline(weightNorm{conv})}
	return tape.Module{Name: "PositionalConvEmbedding", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv", f.Apply(weightNorm{conv}, f.Permute(x, 0, 2, 1)))
		return f.Permute(f.Apply(layer.GELU{}, f.Part(y, 2, x.Dim(1))), 0, 2, 1)
	}}
}

// weightNorm computes a convolution's weight from its directions and a length for each position of the
// kernel, and keeps it.
type weightNorm struct{ conv layer.Conv1d }

func (l weightNorm) Declare(d *tape.Declaration) { d.Param("weight_g", 1, 1, l.conv.Kernel) }

func (l weightNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	weight := alloc.Shape{l.conv.Out, l.conv.In / max(1, l.conv.Groups), l.conv.Kernel}
	made := t.Op(tape.Op{In: []tape.Tensor{t.Const(t.Activation(), 1)}, Shape: weight, Params: true, KeepOutput: true, KeepOwn: []tape.Own{{Shape: weight[2:], DType: alloc.Float32}}})
	t.Hold(made)
	return x
}

// maskVector is the vector that replaces what training masks.
type maskVector struct{ hidden int }

func (l maskVector) Declare(d *tape.Declaration) { d.Param("masked_spec_embed", l.hidden) }

func (maskVector) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

func soundBlock(c family.Transformer, own *sounds, middle tape.Layer) tape.Layer {
	attention := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.ScoreDropout,
		Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"},
	}
	before, after := tape.As("layer_norm", layer.LayerNorm{Size: c.Hidden}), tape.As("final_layer_norm", layer.LayerNorm{Size: c.Hidden})
	attend := []tape.Layer{tape.As("attention", attention), tape.Inline(c.Drop())}
	feed := []tape.Layer{
		tape.As("feed_forward.intermediate_dense", layer.Linear{In: c.Hidden, Out: c.FFN}), tape.Inline(c.Activation.Layer(layer.UseGELU)), tape.Inline(middle),
		tape.As("feed_forward.output_dense", layer.Linear{In: c.FFN, Out: c.Hidden}), tape.Inline(c.Drop()),
	}
	if own.first {
		return tape.Sequential{tape.Skip(append([]tape.Layer{before}, attend...)...), tape.Skip(append([]tape.Layer{after}, feed...)...)}
	}
	return tape.Sequential{tape.Skip(attend...), before, tape.Skip(feed...), after}
}

func readWav2Vec2(c *family.Config, a *family.Model) {
	class := c.Class("Wav2Vec2ForCTC")
	c.Sizes(&a.Transformer)
	c.Number(&a.Vocab, "vocab_size", 32)
	a.NoHead = class == c.Base
	c.Activation(a, c.Word("hidden_act"), "gelu")
	if c.Flag("add_adapter", false) || c.Has("adapter_attn_dim") {
		c.Unknown("add_adapter, adapter_attn_dim", "an adapter")
	}
	p := func(key string) float64 { return c.Ratio(key, 0.1) }
	a.Dropout, a.ScoreDropout = p("hidden_dropout"), p("attention_dropout")
	own := &sounds{
		widths: c.List("conv_dim"), kernels: c.List("conv_kernel"), strides: c.List("conv_stride"), biased: c.Flag("conv_bias", false), normed: c.Word("feat_extract_norm") == "layer",
		masks: c.Ratio("mask_time_prob", 0.05) > 0 || c.Ratio("mask_feature_prob", 0) > 0,
		first: c.Flag("do_stable_layer_norm", false), middle: p("activation_dropout"), projected: c.Ratio("feat_proj_dropout", 0), last: p("final_dropout"),
	}
	c.Number(&own.kernel, "num_conv_pos_embeddings", 128)
	c.Number(&own.groups, "num_conv_pos_embedding_groups", 16)
	for list, usual := range map[*[]int][]int{&own.widths: {512, 512, 512, 512, 512, 512, 512}, &own.kernels: {10, 3, 3, 3, 3, 2, 2}, &own.strides: {5, 2, 2, 2, 2, 2, 2}} {
		if *list == nil {
			*list = usual
		}
	}
	if n := len(own.widths); n == 0 || n > family.MaxBlocks || len(own.kernels) != n || len(own.strides) != n {
		c.Fail("conv_dim, conv_kernel, conv_stride", "they are not lists of one length")
		own.widths, own.kernels, own.strides = []int{1}, []int{1}, []int{1}
	}
	own.kernel, own.groups = min(own.kernel, setting.MaxField), min(own.groups, setting.MaxField)
	a.Own = own
}
