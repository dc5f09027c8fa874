package vision

import (
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Phi4Vision and phi4Sounds are the towers of Phi-4 multimodal: SigLIP's for images, and a Conformer for
// sounds (transformers' modeling_phi4_multimodal.py). Its text is Phi-3. The adapters that come with its
// checkpoints are loaded as PEFT's and are no part of the model.
var (
	Phi4Vision = &family.Family{
		Name:  "Phi-4's tower",
		Tower: phi4Vision,
		Role:  family.Encoder,
		Types: []family.Type{{Name: "phi4_multimodal", Base: "Phi4MultimodalModel", Read: readPhi4}},
	}
	phi4Sounds = &family.Family{Name: "Phi-4's tower of sounds", Tower: phi4Audio, Role: family.Encoder}
)

func phi4Vision(c family.Transformer, width int) []tape.Layer {
	side := c.Side()
	learned := func(name string, shape ...int) tape.Layer {
		return tape.Inline(layer.Learned{Name: name, Shape: alloc.Shape(shape)})
	}
	return []tape.Layer{tape.As("embed_tokens_extend.image_embed", tape.Sequential{
		tape.As("img_processor", tape.Sequential{
			tape.As("embeddings", tape.Sequential{
				tape.As("patch_embedding", c.PatchConv(false)),
				tape.As("position_embedding", layer.Embedding{Num: setting.Product(side, side), Dim: c.Hidden}),
			}),
			tape.As("encoder.layers", tape.Repeat{N: c.Blocks, Layer: clipBlock(c, layer.UseGELUTanh)}),
			tape.As("post_layernorm", layer.LayerNorm{Size: c.Hidden}),
			tape.As("head", probe{c}),
		}),
		tape.As("img_projection_up", layer.Linear{In: c.Hidden, Out: width}),
		tape.As("img_projection_down", layer.Linear{In: width, Out: width}),
		learned("global_img_feature_extensor", 1, 1, c.Hidden),
		learned("sub_img_feature_extensor", 1, 1, 1, c.Hidden),
	})}
}

// conformer are the numbers that only the tower of sounds has.
type conformer struct {
	pointwise, separable, depth, kernel int // of the convolutions in a block
	buckets                             int // of distances
	halvings, channels, last            int // of the convolutions before the blocks, and what remains of the spectrum
	joined                              int // vectors that are projected together
}

func phi4Audio(c family.Transformer, width int) []tape.Layer {
	own := *setting.Or(family.Own[conformer](c), &conformer{})
	norm := layer.LayerNorm{Size: c.Hidden}
	feed := tape.Sequential{
		tape.As("layer_norm", norm), tape.As("gate_up_proj", layer.Linear{In: c.Hidden, Out: setting.Product(2, c.FFN)}), tape.As("down_proj", layer.Linear{In: c.FFN, Out: c.Hidden}),
	}
	deep := setting.Product(c.Hidden, own.depth)
	bias := func(name string) tape.Layer {
		return tape.Inline(layer.Learned{Name: name, Shape: alloc.Shape{1, own.pointwise, 1}})
	}
	block := tape.Sequential{
		tape.As("feed_forward_in", feed),
		tape.As("self_attn", layer.Attention{Hidden: c.Hidden, Heads: c.Heads}),
		tape.As("conv", tape.Sequential{
			tape.As("layer_norm", norm),
			tape.As("glu", tape.Sequential{tape.As("ext_pw_conv_1d", layer.Conv1d{In: c.Hidden, Out: setting.Product(2, own.pointwise), Kernel: 1}), bias("b1"), bias("b2")}),
			tape.As("dw_sep_conv_1d", tape.Sequential{
				tape.As("dw_conv", layer.Conv1d{In: c.Hidden, Out: deep, Kernel: own.kernel, Groups: c.Hidden}), tape.As("pw_conv", layer.Conv1d{In: deep, Out: own.separable, Kernel: 1}),
			}),
			tape.As("ext_pw_conv_1d", layer.Conv1d{In: c.Hidden, Out: own.pointwise, Kernel: 1}),
		}),
		tape.As("feed_forward_out", feed), tape.As("layer_norm_att", norm), tape.As("layer_norm", norm),
	}
	convs := tape.Sequential{layer.Conv2d{In: 1, Out: own.channels, Kernel: 3}}
	for range own.halvings - 1 {
		convs = append(convs, layer.Conv2d{In: own.channels, Out: own.channels, Kernel: 3, Groups: own.channels}, layer.Conv2d{In: own.channels, Out: own.channels, Kernel: 1})
	}
	up, down := layer.Linear{In: setting.Product(c.Hidden, own.joined), Out: width}, layer.Linear{In: width, Out: width}
	return []tape.Layer{tape.As("embed_tokens_extend.audio_embed", tape.Sequential{
		tape.As("encoder", tape.Sequential{
			tape.As("encoder_embedding", tape.Module{Params: []tape.Param{
				{Name: "global_mean", Shape: alloc.Shape{c.Channels}, Buffer: true}, {Name: "global_invstd", Shape: alloc.Shape{c.Channels}, Buffer: true},
			}, Run: func(_ *tape.Flow, x tape.Tensor) tape.Tensor { return x }}),
			tape.As("embed.conv", convs),
			tape.As("embed.out", layer.Linear{In: setting.Product(own.channels, own.last), Out: c.Hidden}),
			tape.As("relative_attention_bias_layer.bias_values", layer.Embedding{Num: own.buckets, Dim: c.Heads}),
			tape.As("encoders", tape.Repeat{N: c.Blocks, Layer: block}),
		}),
		tape.As("up_proj_for_speech", up), tape.As("down_proj_for_speech", down),
		tape.As("up_proj_for_vision_speech", up), tape.As("down_proj_for_vision_speech", down),
	})}
}

func readPhi4(c *family.Config, a *family.Model) {
	imageText{head: "Phi4MultimodalForCausalLM", text: "phi3", vision: "phi4_multimodal_vision", numbers: func(v, _ *family.Config, t *family.Model) {
		towerNumbers(v, &t.Transformer)
		v.Activation(t, v.Word("hidden_act"), "gelu_pytorch_tanh")
	}}.read(c, a)
	tower, own, joins := family.Model{}, &conformer{}, 0
	tower.Family = phi4Sounds
	s := c.Component("audio_config", "phi4_multimodal_audio")
	s.Number(&tower.Hidden, "hidden_size", 1024)
	s.Number(&tower.FFN, "intermediate_size", 1536)
	s.Number(&tower.Blocks, "num_blocks", 24)
	s.Number(&tower.Heads, "num_attention_heads", 16)
	s.Number(&tower.Channels, "input_size", 80)
	s.Number(&own.pointwise, "ext_pw_out_channel", 1024)
	s.Number(&own.separable, "depthwise_separable_out_channel", 1024)
	s.Number(&own.depth, "depthwise_multiplier", 1)
	s.Number(&own.kernel, "kernel_size", 3)
	s.Number(&own.buckets, "bias_max_distance", 1000)
	if !s.Flag("bias_symmetric", false) {
		own.buckets = setting.Product(2, own.buckets)
	}
	s.Number(&joins, "time_reduction", 8)
	s.Number(&own.channels, "nemo_conv_channels", 1024)
	s.Number(&own.joined, "downsample_rate", 1)
	own.halvings, own.last = bits.Len(uint(joins))-1, tower.Channels
	for range own.halvings {
		own.last = (own.last-1)/2 + 1
	}
	s.Number(&own.last, "nemo_final_size", own.last)
	tower.Own = own
	c.Check("audio_config", &tower)
	a.Audio = &tower.Transformer
}
