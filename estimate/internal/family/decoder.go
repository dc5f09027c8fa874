package family

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// decoder builds the layers of the families that have a style.
func (c Transformer) decoder() []tape.Layer {
	s := c.style()
	body := tape.Sequential{tape.Named{Name: s.names.embed, Layer: layer.Embedding{Num: c.Vocab, Dim: setting.Or(c.EmbedDim, c.Hidden), Split: true}}}
	if s.embedded != nil {
		body = append(body, s.embedded(c)...)
	}
	if !s.still {
		body = append(body, tape.Named{Name: "rotary_emb", Layer: frequencies{c.rotated() / 2, c.rotations()}})
	}
	body = append(body, tape.Named{Name: s.names.blocks, Layer: c.decoderBlocks(s)})
	if s.last == nil {
		body = append(body, tape.Named{Name: s.names.last, Layer: s.norm(c)})
	} else {
		body = append(body, s.last(c)...)
	}
	layers := []tape.Layer{under(s.names.root, body)}
	if c.Classes != 0 {
		return append(layers, tape.Named{Name: "score", Layer: layer.Linear{In: c.Hidden, Out: c.Classes, NoBias: true}})
	}
	if !c.NoHead {
		head := layer.Linear{In: setting.Or(c.EmbedDim, c.Hidden), Out: c.Vocab, NoBias: c.Family != Phi && !c.HeadBias, Split: nn.ByColumns}
		if c.Tied {
			head.Tied = "." + s.names.root + "." + s.names.embed + ".weight"
		}
		layers = append(layers, tape.Named{Name: s.names.head, Layer: head})
		if c.CappedLogits {
			layers = append(layers, tape.Named{Name: "softcap", Layer: softCap{}})
		}
		if s.after != nil {
			layers = append(layers, s.after(c)...)
		}
	}
	return layers
}

// under is a layer at a path.
func under(path string, l tape.Layer) tape.Named {
	outer, inner, nested := strings.Cut(path, ".")
	if nested {
		l = tape.Sequential{under(inner, l)}
	}
	return tape.Named{Name: outer, Layer: l}
}

// decoderBlocks are the blocks, each kind made once.
func (c Transformer) decoderBlocks(s style) tape.Layer {
	if c.Blocks < 0 {
		return tape.Wrong(fmt.Sprintf("Blocks is %d: want 0 or more", c.Blocks))
	}
	marked := false
	for _, kind := range c.Kinds {
		marked = marked || kind&Sparse != 0
	}
	sparse := func(block int) bool {
		if marked || c.Experts == 0 {
			return c.Experts != 0 && c.kind(block)&Sparse != 0
		}
		return block >= c.DenseBlocks
	}
	return stacked(c.Blocks, func(block int) int {
		kind := int(c.kind(block) &^ Sparse)
		if sparse(block) {
			kind |= int(Sparse)
		}
		return kind
	}, func(kind, block int) tape.Layer {
		if sparse(block) {
			return c.decoderBlock(s, BlockKind(kind), c.mixture(s))
		}
		c := c
		c.thinned = BlockKind(kind)&Thinned != 0
		return c.decoderBlock(s, BlockKind(kind), s.mlp(c))
	})
}

// gemma reports whether norms are shifted and embeddings scaled.
func (c Transformer) gemma() bool { return c.Family == Gemma || c.Family == Gemma2 }

// rotations is the number of kinds of layers that rotate by tables of their own:
// Gemma 3 has one for layers with a window and one for those without.
func (c Transformer) rotations() int {
	if c.Family == Gemma2 && c.QKNorm != layer.NoQKNorm || c.Family == Gemma3n {
		return 2
	}
	return 1
}

// softCap is cap * tanh(x / cap), as Gemma 2 bounds its logits.
type softCap struct{}

func (softCap) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	x, err := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape})
	if err == nil {
		x, err = layer.KeepOutput(t, x)
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape})
}

// scale multiplies by a constant, as Gemma does with its embeddings.
type scale struct{}

func (scale) Declare(d *tape.Declaration) {
	d.Add(tape.Param{Name: "factor", Shape: alloc.Shape{}, DType: alloc.Float32, Buffer: true})
}

func (scale) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape})
}

// frequencies holds the buffers of the rotary positions, for so many kinds of layers.
type frequencies struct{ n, kinds int }

// Kind names the row.
func (frequencies) Kind() string { return "RotaryEmbedding" }

func (l frequencies) Declare(d *tape.Declaration) {
	names := []string{"inv_freq", "original_inv_freq"}
	if l.kinds == 2 {
		names = []string{"full_attention_inv_freq", "full_attention_original_inv_freq", "sliding_attention_inv_freq", "sliding_attention_original_inv_freq"}
	}
	for _, name := range names {
		d.Add(tape.Param{Name: name, Shape: alloc.Shape{l.n}, DType: alloc.Float32, Buffer: true})
	}
}

func (frequencies) Forward(_ *tape.Tape, x tape.Tensor) (tape.Tensor, error) { return x, nil }

// rotated is the number of elements of a head that rotate.
func (c Transformer) rotated() int {
	if c.Latent != nil {
		return c.Latent.RopeSize
	}
	if c.RotaryDim == 0 && c.Family == Phi {
		return c.headSize() / 2
	}
	return setting.Or(c.RotaryDim, c.headSize())
}

// decoderBlock is one block of a decoder; its parts are made once for all blocks.
type decoderBlock struct{ tape.Sequential }

// Kind names the row.
func (decoderBlock) Kind() string { return "DecoderBlock" }

func (b decoderBlock) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	x, err := b.Sequential.Forward(t, x)
	t.Hold(*layer.EagerWeights.Of(t)) // which the block's code names and does not use
	*layer.EagerWeights.Of(t) = tape.Tensor{}
	return x, err
}

// decoderBlock makes the block with the MLP or mixture.
func (c Transformer) decoderBlock(s style, kind BlockKind, mlp tape.Layer) tape.Layer {
	parts := blockParts{norm: s.norm(c), dropout: c.dropout(), attention: tape.Named{Name: s.names.attention, Layer: c.attention(s, kind)}, mlp: tape.Named{Name: s.names.mlp, Layer: mlp}}
	if kind&Recurrent != 0 && c.Delta != nil {
		parts.attention = tape.Named{Name: "linear_attn", Layer: layer.DeltaAttention{Hidden: c.Hidden, DeltaNet: *c.Delta}}
	}
	if kind&Recurrent != 0 && c.ShortConv > 0 {
		parts.attention = tape.Named{Name: "conv", Layer: c.shortConv()}
	}
	if c.Latent != nil {
		latent := *c.Latent
		latent.Hidden, latent.Heads = c.Hidden, c.Heads
		parts.attention.Layer = latent
	}
	return s.block(c, parts)
}

func (c Transformer) attention(s style, kind BlockKind) layer.Attention {
	a := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: !c.Bias && !c.QKVBias,
		NoOutBias: !c.Bias, Rotary: !s.still, RotaryDim: c.RotaryDim, Plain: c.Plain, Eager: c.Eager,
		QKNorm: c.QKNorm, Capped: c.CappedScores, Shifted: c.gemma(), Rotations: c.rotations(), PerText: c.Batched, Returns: true, Widens: c.Family == GPTNeoX, Elementary: true,
	}
	if kind&Windowed != 0 {
		a.Window = c.Window
	}
	a.Borrowed = kind&Borrowing != 0
	if s.attention != nil {
		s.attention(c, &a)
	}
	a.Rotary = a.Rotary && kind&NoRotation == 0
	return a
}

// mixture is what stands in place of the MLP.
func (c Transformer) mixture(s style) tape.Layer {
	m := layer.MoE{
		Hidden: c.Hidden, FFN: setting.Or(c.ExpertFFN, c.FFN), Experts: c.Experts, TopK: c.TopK,
		Shared: c.SharedFFN, SharedGate: c.SharedGate, Router: c.Router, Groups: c.Groups, TopGroups: c.TopGroups, Unscaled: c.UnscaledTopK, Activation: c.Activation,
	}
	if s.mixture != nil {
		return s.mixture(c, m)
	}
	return m
}
