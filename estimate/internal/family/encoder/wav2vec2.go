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
var Wav2Vec2 = soundFamily("wav2vec 2.0", family.Type{Name: "wav2vec2", Base: "Wav2Vec2Model", Read: func(c *family.Config, a *family.Model) {
	readSounds(c, a, soundStyle{module: "wav2vec2", heads: allSoundHeads, pretrained: wav2vec2Pretraining, adapts: true})
}})

// soundFamily returns a family of wav2vec 2.0 or a successor.
func soundFamily(name string, types ...family.Type) *family.Family {
	return &family.Family{
		Name:   name,
		Layers: wav2vec2,
		Input: func(_ *family.Model, batch, length int) []family.Input {
			return []family.Input{family.Reals(batch, length)}
		},
		Role:  family.Encoder,
		Usual: 160_000, // ten seconds at 16,000 samples a second
		Types: types,
	}
}

// soundStyle holds the differences of a successor from wav2vec 2.0. Its functions get the Transformer's numbers.
type soundStyle struct {
	module     string     // the name of the body in models with a head
	heads      soundHeads // the classes that there are
	pretrained func(c family.Transformer, own *sounds) []tape.Layer
	attention  func(c family.Transformer, block int) tape.Layer
	positions  func(c family.Transformer, own *sounds) tape.Layer // instead of a convolution with weight norm
	masks      bool                                               // there always is a vector that replaces what training masks
	adapts     bool                                               // there may be an adapter after the encoder
}

// sounds holds the settings that only wav2vec 2.0 and its successors have.
type sounds struct {
	soundStyle
	soundHead
	widths, kernels, strides []int            // of the convolutions
	act                      layer.Activation // of the convolutions
	biased                   bool             // they have biases
	normed                   bool             // each convolution has a norm, not only the first
	first                    bool             // norms come before attention and MLP, not after
	masked                   bool             // a learned vector replaces what training masks
	unnormed                 bool             // no norm follows the convolutions
	kernel, groups           int              // of the convolution that adds positions
	convs                    int              // number of those, if there are several
	middle, projected, last  float64          // dropouts of the MLP, of the encoder's input and of its output
	adapted                  int              // width of an adapter in each block; 0 means none
	adapter                  soundAdapter     // after the encoder
}

func wav2vec2(c family.Transformer) []tape.Layer {
	own := family.Own[sounds](c)
	if own == nil {
		own = &sounds{widths: []int{1}, kernels: []int{1}, strides: []int{1}, kernel: 1, groups: 1}
	}
	if body := tape.Inline(own.body(c)); c.NoHead {
		return []tape.Layer{body}
	}
	return own.headed(c, tape.As(own.module, own.body(c)))
}

func dropoutOf(p float64) tape.Layer { return (family.Transformer{Dropout: p}).Drop() }

// body returns the model without a head.
func (s *sounds) body(c family.Transformer) tape.Layer {
	norm := layer.LayerNorm{Size: c.Hidden}
	positions := s.positions
	if positions == nil {
		positions = normedConv
	}
	encoder := tape.Sequential{tape.Skip(tape.As("pos_conv_embed", positions(c, s)))}
	if !s.first {
		encoder = append(encoder, tape.As("layer_norm", norm))
	}
	encoder = append(encoder, tape.Inline(c.Drop()), tape.Inline(s.weighted.collect()), tape.As("layers", s.blocks(c)))
	if s.first {
		encoder = append(encoder, tape.As("layer_norm", norm))
	}
	wide := s.widths[len(s.widths)-1]
	project := tape.Sequential{tape.As("projection", layer.Linear{In: wide, Out: c.Hidden}), tape.Inline(dropoutOf(s.projected))}
	if !s.unnormed {
		project = append(tape.Sequential{tape.As("layer_norm", layer.TurnedNorm{LayerNorm: layer.LayerNorm{Size: wide}})}, project...)
	}
	body := tape.Sequential{tape.As("feature_extractor", s.extractor()), tape.As("feature_projection", project)}
	if s.masked {
		body = append(body, tape.Inline(maskVector{c.Hidden}))
	}
	body = append(body, tape.As("encoder", encoder))
	if s.adapter.layers > 0 {
		body = append(body, tape.As("adapter", s.adapter.layer(c.Hidden)))
	}
	return body
}

// blocks returns the blocks. The first may differ from the others.
func (s *sounds) blocks(c family.Transformer) tape.Layer {
	return family.Stacked(c.Blocks, func(block int) int { return min(block, 1) }, func(_, block int) tape.Layer {
		attention := tape.Layer(layer.Attention{
			Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.ScoreDropout,
			Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"},
		})
		if s.attention != nil {
			attention = s.attention(c, block)
		}
		return append(soundBlock(c, s, attention), tape.Inline(s.weighted.collect()))
	})
}

// extractor returns the convolutions.
func (s *sounds) extractor() tape.Layer {
	parts := tape.Sequential{}
	in := 1
	for i, out := range s.widths[:len(s.kernels)] {
		conv := tape.As("conv", layer.Conv1d{In: in, Out: out, Kernel: s.kernels[i], Stride: s.strides[i], NoBias: !s.biased})
		one := tape.Sequential{conv}
		switch {
		case s.normed:
			one = append(one, tape.Inline(tape.Permute{0, 2, 1}), tape.As("layer_norm", layer.TurnedNorm{LayerNorm: layer.LayerNorm{Size: out}}), tape.Inline(tape.Permute{0, 2, 1}))
		case i == 0:
			one = append(one, tape.As("layer_norm", layer.GroupNorm{Groups: out, Channels: out}))
		}
		parts = append(parts, append(one, tape.Inline(s.act.Layer(layer.UseGELU))))
		in = out
	}
	return tape.Module{Name: "FeatureEncoder", Parts: tape.Sequential{tape.As("conv_layers", parts)}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv_layers", f.View(x, x.Dim(0), 1, x.Dim(1)))
		return f.Permute(y, 0, 2, 1)
	}}
}

// normedConv returns the convolution that adds positions. Its weight norm computes the weight from
// directions and lengths in each pass.
func normedConv(c family.Transformer, s *sounds) tape.Layer {
	conv := layer.Conv1d{In: c.Hidden, Out: c.Hidden, Kernel: s.kernel, Padding: s.kernel / 2, Groups: s.groups}
	parts := tape.Sequential{tape.As("conv", conv), tape.Inline(weightNorm{conv})}
	return tape.Module{Name: "PositionalConvEmbedding", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("conv", f.Permute(f.Apply(weightNorm{conv}, x), 0, 2, 1))
		return f.Permute(f.Apply(s.act.Layer(layer.UseGELU), f.Part(y, 2, x.Dim(1))), 0, 2, 1)
	}}
}

// weightNorm computes a convolution's weight from its directions and a length for each position of the
// kernel, and keeps it.
type weightNorm struct{ conv layer.Conv1d }

func (l weightNorm) Declare(d *tape.Declaration) { d.Param("weight_g", 1, 1, l.conv.Kernel) }

func (l weightNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	weight := alloc.Shape{l.conv.Out, l.conv.In / max(1, l.conv.Groups), l.conv.Kernel}
	made := t.Op(tape.Op{In: []tape.Tensor{t.Const(t.Activation(), 1)}, Shape: weight, Params: true, KeepOutput: true, KeepOwn: []tape.Own{{Shape: weight[2:], DType: alloc.Float32}}})
	return t.Op(tape.Op{In: []tape.Tensor{x, made}, Shape: x.Shape, View: true}) // the convolution reads both
}

// maskVector is the vector that replaces what training masks.
type maskVector struct{ hidden int }

func (l maskVector) Declare(d *tape.Declaration) { d.Param("masked_spec_embed", l.hidden) }

func (maskVector) Forward(_ *tape.Tape, x tape.Tensor) tape.Tensor { return x }

func soundBlock(c family.Transformer, own *sounds, attention tape.Layer) tape.Sequential {
	before, after := tape.As("layer_norm", layer.LayerNorm{Size: c.Hidden}), tape.As("final_layer_norm", layer.LayerNorm{Size: c.Hidden})
	attend := []tape.Layer{tape.As("attention", attention), tape.Inline(c.Drop())}
	feed := []tape.Layer{
		tape.As("feed_forward.intermediate_dense", layer.Linear{In: c.Hidden, Out: c.FFN}), tape.Inline(c.Activation.Layer(layer.UseGELU)), tape.Inline(dropoutOf(own.middle)),
		tape.As("feed_forward.output_dense", layer.Linear{In: c.FFN, Out: c.Hidden}), tape.Inline(c.Drop()),
	}
	if !own.first {
		return tape.Sequential{tape.Skip(attend...), before, tape.Skip(feed...), after}
	}
	block := tape.Sequential{tape.Skip(append([]tape.Layer{before}, attend...)...), tape.Skip(append([]tape.Layer{after}, feed...)...)}
	if own.adapted > 0 {
		block = append(block, tape.Skip(tape.As("adapter_layer", tape.Sequential{
			tape.As("norm", layer.LayerNorm{Size: c.Hidden}), tape.As("linear_1", layer.Linear{In: c.Hidden, Out: own.adapted}),
			tape.Inline(layer.ReLU{}), tape.As("linear_2", layer.Linear{In: own.adapted, Out: c.Hidden}),
		})))
	}
	return block
}

// soundAdapter shortens what the encoder returns.
type soundAdapter struct{ layers, width, kernel, stride int }

func (a soundAdapter) layer(hidden int) tape.Layer {
	var parts, convs tape.Sequential
	if a.width != hidden {
		parts = tape.Sequential{tape.As("proj", layer.Linear{In: hidden, Out: a.width}), tape.As("proj_layer_norm", layer.LayerNorm{Size: a.width})}
	}
	for range a.layers {
		convs = append(convs, tape.Sequential{
			tape.As("conv", layer.Conv1d{In: a.width, Out: 2 * a.width, Kernel: a.kernel, Stride: a.stride, Padding: 1}), tape.Inline(halfGate{}),
		})
	}
	return append(parts, tape.Inline(tape.Permute{0, 2, 1}), tape.As("layers", convs), tape.Inline(tape.Permute{0, 2, 1}))
}

// halfGate is nn.functional.glu over the channels: one half of them, times the sigmoid of the other.
type halfGate struct{}

func (halfGate) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, channels, length)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), x.Dim(1) / 2, x.Dim(2)}, Keep: []tape.Tensor{x}})
}

// readSounds reads the settings of wav2vec 2.0 and its successors.
func readSounds(c *family.Config, a *family.Model, style soundStyle) {
	c.Sizes(&a.Transformer)
	c.Number(&a.Vocab, "vocab_size", 32)
	own := &sounds{soundStyle: style}
	var convs family.Model
	c.Activation(&convs, c.Word("feat_extract_activation"), "gelu")
	c.Activation(a, c.Word("hidden_act"), "gelu")
	p := func(key string) float64 { return c.Ratio(key, 0.1) }
	a.Dropout, a.ScoreDropout = p("hidden_dropout"), p("attention_dropout")
	own.act, own.widths, own.kernels, own.strides = convs.Activation, c.List("conv_dim"), c.List("conv_kernel"), c.List("conv_stride")
	own.biased, own.normed = c.Flag("conv_bias", false), c.Word("feat_extract_norm") == "layer"
	own.masked = style.masks || c.Ratio("mask_time_prob", 0.05) > 0 || c.Ratio("mask_feature_prob", 0) > 0
	own.first, own.middle, own.projected, own.last = c.Flag("do_stable_layer_norm", false), p("activation_dropout"), c.Ratio("feat_proj_dropout", 0), p("final_dropout")
	c.Number(&own.kernel, "num_conv_pos_embeddings", 128)
	c.Number(&own.groups, "num_conv_pos_embedding_groups", 16)
	for list, usual := range map[*[]int][]int{&own.widths: {512, 512, 512, 512, 512, 512, 512}, &own.kernels: {10, 3, 3, 3, 3, 2, 2}, &own.strides: {5, 2, 2, 2, 2, 2, 2}} {
		if *list == nil {
			*list = usual
		}
	}
	layers := c.Whole("num_feat_extract_layers", len(own.widths))
	if n := len(own.widths); n == 0 || n > family.MaxBlocks || len(own.kernels) != n || len(own.strides) != n || layers < 1 || layers > n {
		c.Fail("conv_dim, conv_kernel, conv_stride", "they are not lists of one length, for at least num_feat_extract_layers")
		own.widths, own.kernels, own.strides, layers = []int{1}, []int{1}, []int{1}, 1
	}
	own.kernels, own.strides = own.kernels[:layers], own.strides[:layers]
	own.kernel, own.groups = min(own.kernel, setting.MaxField), min(own.groups, setting.MaxField)
	if c.Has("adapter_attn_dim") {
		c.Number(&own.adapted, "adapter_attn_dim", 0)
	}
	switch {
	case !c.Flag("add_adapter", false):
	case style.adapts:
		own.readAdapter(c, a.Hidden)
	default:
		c.Unknown("add_adapter", "true")
	}
	own.readHead(c, a)
	a.Own = own
}

// readAdapter reads the adapter after the encoder.
func (s *sounds) readAdapter(c *family.Config, hidden int) {
	c.Number(&s.adapter.layers, "num_adapter_layers", 3)
	c.Number(&s.adapter.width, "output_hidden_size", hidden)
	c.Number(&s.adapter.kernel, "adapter_kernel_size", 3)
	c.Number(&s.adapter.stride, "adapter_stride", 2)
	if s.adapter.layers > family.MaxBlocks || s.adapter.width > setting.MaxField/2 {
		c.Fail("num_adapter_layers, output_hidden_size", "an adapter of %d layers, %d wide", s.adapter.layers, s.adapter.width)
		s.adapter = soundAdapter{}
	}
}
