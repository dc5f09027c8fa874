package vision

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// SwinV2 is Swin with norms after attention and MLP, scores by the angle between queries and keys, and
// biases that a small MLP makes of distances (arXiv:2111.09883; transformers' modeling_swinv2.py).
var SwinV2 = &family.Family{
	Name:   "Swin V2",
	Images: true,
	Layers: swinV2,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "swinv2", Base: "Swinv2Model", Read: readSwinV2}},
}

// stagesV2 are the settings that only Swin V2 has, besides Swin's.
type stagesV2 struct {
	Stages
	noBias   bool // queries and values have no bias
	placed   bool // there are learned positions, which the model cannot add: it has one too many
	backbone bool // there is no last norm
}

func swinV2(c family.Transformer) []tape.Layer {
	own := *setting.Or(family.Own[stagesV2](c), &stagesV2{})
	if len(own.Each) > maxStages {
		return []tape.Layer{tape.Wrong("there are more than 8 Stages")}
	}
	embed := own.patches(c)
	if own.placed {
		embed = append(embed, unused("position_embeddings", 1, setting.Product(c.Side(), c.Side())+1, c.Hidden))
	}
	stages, side, width := own.layers(c, func(in swinStage, b int, drops bool) tape.Layer {
		// Windows are no larger than the image, whose side is rounded down here.
		a := cosineAttention{hidden: in.width, heads: in.heads, window: min(c.Window, max(1, in.grid)), bias: !own.noBias, dropout: c.ScoreDropout}
		if in.grid > a.window && b%2 == 1 {
			a.shift = c.Window / 2
		}
		return swinV2Block(c, a, in.side, in.ffn, drops)
	}, laterMerging)
	body := tape.Sequential{tape.As("embeddings", append(embed, tape.As("dropout", c.Drop()))), tape.As("encoder.layers", stages)}
	if own.backbone {
		return body
	}
	body = append(body, tape.As("layernorm", layer.LayerNorm{Size: width}))
	return own.heads(c, "swinv2", body, side, width)
}

// contiguous copies its input.
type contiguous struct{}

func (contiguous) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return t.Copy(x) }

// laterMerging is layer.PatchMerging with the norm after the projection.
func laterMerging(width int) tape.Layer {
	parts := tape.Sequential{tape.As("reduction", layer.Linear{In: 4 * width, Out: 2 * width, NoBias: true}), tape.As("norm", layer.LayerNorm{Size: 2 * width})}
	return tape.Module{Name: "PatchMerging", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		if x.Dim(1)%2+x.Dim(2)%2 > 0 {
			x = f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), x.Dim(1) + x.Dim(1)%2, x.Dim(2) + x.Dim(2)%2, x.Dim(3)}})
		}
		quarter := f.Part(f.Part(x, 1, x.Dim(1)/2), 2, x.Dim(2)/2)
		return f.Call("norm", f.Call("reduction", f.Cat(3, quarter, quarter, quarter, quarter)))
	}}
}

func swinV2Block(c family.Transformer, a cosineAttention, side, ffn int, drops bool) tape.Layer {
	drop := tape.If(drops, layer.StochasticDepth{})
	return tape.Sequential{
		tape.Skip(imaged(side, a.hidden, tape.As("attention", a.layer())), tape.As("layernorm_before", layer.LayerNorm{Size: a.hidden}), tape.As("drop_path", drop)),
		tape.Skip(
			tape.As("intermediate.dense", layer.Linear{In: a.hidden, Out: ffn}), tape.Inline(c.Activation.Layer(layer.UseGELU)),
			tape.As("output.dense", layer.Linear{In: ffn, Out: a.hidden}), tape.Inline(c.Drop()),
			tape.As("layernorm_after", layer.LayerNorm{Size: a.hidden}), tape.Inline(drop),
		),
	}
}

// cosineAttention is attention within windows of an image, with its scores in memory.
type cosineAttention struct {
	hidden, heads, window, shift int
	bias                         bool
	dropout                      float64
}

// distanceWidth is that of the middle of the MLP that makes biases of distances.
const distanceWidth = 512

func (a cosineAttention) layer() tape.Layer {
	tokens, sides := a.window*min(a.window, setting.MaxField), 2*a.window-1
	linear := layer.Linear{In: a.hidden, Out: a.hidden, NoBias: !a.bias}
	self := tape.Module{
		Parts: tape.Sequential{
			tape.As("query", linear), tape.As("key", layer.Linear{In: a.hidden, Out: a.hidden, NoBias: true}), tape.As("value", linear),
			tape.As("continuous_position_bias_mlp", tape.Sequential{layer.Linear{In: 2, Out: distanceWidth}, layer.ReLU{InPlace: true}, layer.Linear{In: distanceWidth, Out: a.heads, NoBias: true}}),
		},
		Params: []tape.Param{
			{Name: "logit_scale", Shape: alloc.Shape{a.heads, 1, 1}},
			{Name: "relative_coords_table", Shape: alloc.Shape{1, sides, sides, 2}, Buffer: true},
			{Name: "relative_position_index", Shape: alloc.Shape{tokens, tokens}, DType: alloc.Int64, Buffer: true},
		},
		Run: a.attend,
	}
	drop := (family.Transformer{Dropout: a.dropout}).Drop()
	parts := tape.Sequential{tape.As("self", self), tape.As("output", tape.Sequential{tape.As("dense", layer.Linear{In: a.hidden, Out: a.hidden}), tape.As("dropout", drop)})}
	return tape.Module{Name: "WindowAttention", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		f.Rank(x, 4, "(batch, height, width, hidden)")
		high, wide := (x.Dim(1)-1)/a.window+1, (x.Dim(2)-1)/a.window+1
		padded := alloc.Shape{x.Dim(0), high * a.window, wide * a.window, a.hidden}
		y := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: padded})
		if a.shift > 0 {
			y = f.Copy(y)
		}
		y = f.View(f.Copy(y), x.Dim(0)*high*wide, tokens, a.hidden)
		y = f.View(f.Call("output", f.Call("self", y)), padded...)
		if y = f.Copy(y); a.shift > 0 {
			y = f.Copy(y)
		}
		if !slices.Equal(padded, x.Shape) {
			y = f.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape})
		}
		return y
	}}
}

// attend compares queries and keys of length 1, and adds the biases and the mask of shifted windows.
func (a cosineAttention) attend(f *tape.Flow, x tape.Tensor) tape.Tensor {
	windows, tokens := x.Dim(0), x.Dim(1)
	size := a.hidden / max(1, a.heads)
	q, k := f.Call("query", x), f.Call("key", x)
	v := f.Call("value", x)
	length := tape.Own{Shape: alloc.Shape{windows, a.heads, tokens, 1}}
	unit := func(x tape.Tensor) tape.Tensor {
		y := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}, KeepOwn: []tape.Own{length, length}})
		return f.Copy(y) // heads before tokens
	}
	scores := alloc.Shape{windows, a.heads, tokens, tokens}
	s := f.MatMul(unit(q), unit(k), size, scores...)
	factor := tape.Own{Shape: alloc.Shape{a.heads, 1, 1}}
	s = f.Op(tape.Op{In: []tape.Tensor{s}, Shape: scores, Params: true, Keep: []tape.Tensor{s}, KeepOwn: []tape.Own{factor}})
	s = f.Add(s, a.biases(f, tokens))
	if a.shift > 0 {
		s = f.Scale(f.Scale(s)) // the mask is added twice
	}
	s = f.Apply(layer.Softmax{}, s)
	if a.dropout > 0 {
		s = f.Apply(layer.Dropout{P: a.dropout}, s)
	}
	return f.Copy(f.MatMul(s, f.Copy(v), tokens, windows, tokens, a.hidden))
}

// biases makes the biases of the distances in a window.
func (a cosineAttention) biases(f *tape.Flow, tokens int) tape.Tensor {
	sides := 2*a.window - 1
	distances := f.Const(f.Activation(), 1, sides, sides, 2)
	made := f.Call("continuous_position_bias_mlp", f.View(distances, 1, sides, sides, 2))
	b := f.Op(tape.Op{In: []tape.Tensor{made}, Shape: alloc.Shape{tokens * tokens, a.heads}})
	b = f.Op(tape.Op{In: []tape.Tensor{b}, Shape: alloc.Shape{1, a.heads, tokens, tokens}})
	return f.Scale(f.Apply(layer.Sigmoid{}, b))
}

func readSwinV2(c *family.Config, a *family.Model) {
	const classifies, predicts, backbone = "Swinv2ForImageClassification", "Swinv2ForMaskedImageModeling", "Swinv2Backbone"
	class := c.Class(classifies, predicts, backbone)
	own := &stagesV2{noBias: !c.Flag("qkv_bias", true), placed: c.Flag("use_absolute_embeddings", false), backbone: class == backbone}
	readStages(c, a, &own.Stages)
	a.Own, a.ScoreDropout = own, c.Dropout("attention_probs_dropout_prob")
	switch class {
	case classifies:
		a.Classes = c.Labels()
	case predicts:
		c.Number(&own.stride, "encoder_stride", 32)
	}
}
