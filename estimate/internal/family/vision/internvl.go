package vision

import (
	"math"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// InternVL has a ViT with layer scale, and joins the patches of each square before two layers project
// them (arXiv:2504.10479; modeling_internvl.py).
var InternVL = &family.Family{
	Name:  "InternVL's tower",
	Tower: internVLTower,
	Look:  internVLLook,
	Role:  family.Encoder,
	Types: []family.Type{{Name: "internvl", Base: "InternVLModel", Read: readInternVL}},
}

// internViT holds the differences of InternVL's encoder from a ViT.
type internViT struct {
	rms, unplaced, masks, unpooled bool // the norms, no learned positions, a token for masked patches, a last norm
}

// internEncoder is InternVL's image encoder.
var internEncoder = encoder{
	name: "internvl_vision", class: true,
	read: func(c *family.Config, t *family.Model) {
		c.Encoder(t)
		c.Pixels(&t.Transformer, 14)
		t.QKVBias = c.Flag("attention_bias", false)
		if c.Flag("use_qk_norm", false) {
			t.QKNorm = layer.NormAllHeads
		}
	},
	parts: func(c family.Transformer) tape.Sequential {
		own := internOf(c).vit
		side := min(c.Side(), setting.MaxField)
		norm := tape.Layer(layer.LayerNorm{Size: c.Hidden})
		if own.rms {
			norm = layer.RMSNorm{Size: c.Hidden, Unfused: true}
		}
		embeddings := tape.Sequential{tape.Inline(patches{
			projection: layer.Conv2d{In: c.Channels, Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch},
			tokens:     min(setting.Product(side, side), setting.MaxField-1) + 1, hidden: c.Hidden, unplaced: own.unplaced, dropout: c.Drop(),
		})}
		if own.masks {
			embeddings = append(embeddings, unused("mask_token", 1, 1, c.Hidden))
		}
		last := tape.Layer(tape.Identity{})
		if own.unpooled {
			last = layer.LayerNorm{Size: c.Hidden}
		}
		scaled := layer.Scaled{Shape: []int{c.Hidden}}
		return tape.Sequential{
			tape.As("embeddings", embeddings),
			tape.As("encoder.layer", tape.Repeat{N: c.Blocks, Layer: tape.Sequential{
				tape.Skip(tape.As("layernorm_before", norm), tape.As("attention", layer.Attention{
					Hidden: c.Hidden, Heads: c.Heads, Plain: c.Plain, Dropout: c.Dropout, NoBias: !c.QKVBias, OutBias: true, QKNorm: c.QKNorm,
					Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "projection_layer"},
				}), tape.As("lambda_1", scaled)),
				tape.Skip(tape.As("layernorm_after", norm), tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseGELU)}),
					tape.As("dropout", c.Drop()), tape.As("lambda_2", scaled)),
			}}),
			tape.As("layernorm", last),
		}
	},
	run: func(f *tape.Flow, c family.Transformer, x tape.Tensor) ([]tape.Tensor, tape.Tensor) {
		states := throughBlocks(f, "encoder.layer", c.Blocks, f.Call("embeddings", x))
		return states, f.Call("layernorm", states[len(states)-1])
	},
}

// intern is what InternVL takes of its encoder.
type intern struct {
	picked
	vit internViT
}

func internOf(c family.Transformer) intern {
	if own := family.Own[intern](c); own != nil {
		return *own
	}
	return intern{picked: picked{act: layer.UseGELU}}
}

func internVLTower(c family.Transformer, width int) []tape.Layer {
	own := internOf(c)
	wide := merged(c)
	return []tape.Layer{
		tape.As("vision_tower", internEncoder.tower(c, own.states, !own.whole)),
		tape.As("multi_modal_projector", tape.Sequential{
			tape.Inline(shuffled(setting.Or(c.Merge, 2))),
			tape.As("layer_norm", layer.LayerNorm{Size: wide}),
			tape.As("linear_1", layer.Linear{In: wide, Out: width}),
			tape.As("act", own.act.Layer(layer.UseGELU)),
			tape.As("linear_2", layer.Linear{In: width, Out: width}),
		}),
	}
}

// internVLLook is that of an image in up to twelve tiles, and whole if there are several. Two tokens
// more stand around its vectors (processing_internvl.py; image_processing_got_ocr2.py,
// get_optimal_tiled_canvas).
func internVLLook(c family.Transformer) (family.Look, error) {
	const most = 12
	if internOf(c).whole || c.Side() < 1 || c.Side()%c.Merge != 0 {
		return family.Look{}, family.Unfit("patches do not divide into squares")
	}
	ratio, area := float64(c.Prompt.Width)/float64(c.Prompt.Height), float64(c.Prompt.Width)*float64(c.Prompt.Height)
	best, tiles := math.Inf(1), 1
	for n := 1; n <= most; n++ {
		for columns := 1; columns <= n; columns++ {
			if n%columns != 0 {
				continue
			}
			far := math.Abs(ratio - float64(columns)/float64(n/columns))
			if far < best || far == best && area > 0.5*float64(c.Image)*float64(c.Image)*float64(n) {
				best, tiles = far, n
			}
		}
	}
	if tiles > 1 {
		tiles++
	}
	side := c.Side() / c.Merge
	return family.Look{Tokens: 2 + tiles*side*side, Sized: true, Inputs: family.Joined(tiles, c.Channels, c.Image, c.Image)}, nil
}

func readInternVL(c *family.Config, a *family.Model) {
	imageText{head: "InternVLForConditionalGeneration", usual: "qwen2", vision: internEncoder.name, numbers: func(v, c *family.Config, t *family.Model) {
		own := &intern{vit: internViT{rms: v.Word("norm_type") == "rms_norm", unplaced: !v.Flag("use_absolute_position_embeddings", true), masks: v.Flag("use_mask_token", false), unpooled: !v.Flag("use_mean_pooling", true)}}
		internEncoder.read(v, t)
		own.whole = c.Word("vision_feature_select_strategy") == "full"
		if own.states = layerNumbers(c, "vision_feature_layer", t.Blocks, -1); len(own.states) == 1 && own.states[0] == -1 {
			own.states = nil // what the last norm returns
		}
		projector := family.Model{}
		c.Activation(&projector, c.Word("projector_hidden_act"), "gelu")
		own.act = projector.Activation
		c.Bounded(&t.Merge, "downsample_ratio", int(math.Min(1/math.Max(1e-6, c.Ratio("downsample_ratio", 0.5)), setting.MaxField)))
		t.Own = own
	}}.read(c, a)
}
